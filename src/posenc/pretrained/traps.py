# SPDX-License-Identifier: Apache-2.0
"""Checks of `doctor` for faults of 2025 and 2026: memory that nobody wrote, three-axis positions, and
compiled passes that compute something else."""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc import frequencies
from posenc.encodings.rotary_axes import MRotary
from posenc.errors import InputError
from posenc.pretrained.checked import weight_files
from posenc.pretrained.findings import Evidence
from posenc.pretrained.models import cache_name
from posenc.pretrained.multimodal_positions import multimodal as multimodal_positions
from posenc.pretrained.parameters import is_number
from posenc.pretrained.probe import ALL_LAYERS, PROBE, FrequencyTable, Probe, base_of, differ

QWEN = "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"
"""How model types begin that number the tokens of an image as Qwen2-VL's paper does."""


def uninitialised(probe: Probe, kind: str, configured: FrequencyTable) -> Evidence:
    """Buffers with what no schedule gives: NaN, infinity, zeros or negative numbers where the configuration has none, or
    frequencies that rise where its fall."""
    prefix, wanted = "" if kind == ALL_LAYERS else f"{kind}_", configured.inv_freq
    falling = bool((wanted.diff() <= 0).all())
    stateful = configured.parameters.get("rope_type") in ("dynamic", "longrope")  # which go back to the original ones
    for name in (f"{prefix}inv_freq", *([f"{prefix}original_inv_freq"] if stateful else ())):
        buffer = getattr(probe.rotary, name, None)
        if buffer is None or buffer.shape != wanted.shape:
            continue
        found = buffer.detach().float().cpu()
        signs = {
            "not finite": ~found.isfinite(),
            "negative": found < 0,
            "0": (found == 0) & bool(wanted.any()) & (not found.any()),
            "above the one before": (torch.cat([found[:1], found[:-1]]) < found * (1 - 1e-6)) & falling,
        }
        for sign, where in signs.items():
            if count := int(where.sum()):
                text = f"{name}: {count} of {len(found)} frequencies are {sign}"
                yield "frequencies_uninitialised", text, count / len(found)
                return


def not_restored(probe: Probe) -> Evidence:
    """What from_pretrained leaves of the rotary module's buffers, which no checkpoint has: transformers allocates them, and the
    model's `_init_weights` fills them."""
    rotary = copy.deepcopy(probe.rotary)
    names = [name for name in rotary._non_persistent_buffers_set if isinstance(getattr(rotary, name), Tensor)]
    for name in names:
        setattr(rotary, name, torch.full_like(getattr(rotary, name), math.nan))
    try:
        probe.decoder._init_weights(rotary)
    except Exception:  # a configuration that cannot be built, of which there is a finding
        return
    if left := [name for name in sorted(names) if getattr(rotary, name).isnan().any()]:
        text = f"{type(rotary).__name__}: {', '.join(left)} stay as they are allocated"
        yield "frequencies_not_restored", text, float(len(left))


def stored_frequencies(probe: Probe, folder: Path) -> Evidence:
    """Frequencies in a checkpoint's files, which earlier versions of transformers wrote and read, and later ones ignore; they are
    of plain RoPE, or of the schedule."""
    from safetensors import SafetensorError, safe_open

    table = next(iter(probe.tables().values()))
    base = table.parameters.get("rope_theta")
    try:
        for file in weight_files(folder):
            with safe_open(file, "pt") as opened:
                for name in sorted(key for key in opened.keys() if key.endswith("rotary_emb.inv_freq")):  # noqa: SIM118
                    if len(opened.get_slice(name).get_shape()) != 1:
                        continue
                    stored = opened.get_tensor(name)
                    if not stored.is_floating_point():
                        continue
                    known = [table.inv_freq.double().cpu()]
                    if is_number(base) and base > 0:
                        known.append(frequencies.default(table.rotary_dim, base=base).inv_freq)
                    if not any(_rounded(stored, each) for each in known):
                        text = f"{name} in {file.name}: {_off(stored, known[-1], probe)}"
                        yield "stored_frequencies_differ", text, None
                        return
    except (InputError, SafetensorError, OSError):  # there are none to read
        return


def _rounded(stored: Tensor, known: Tensor) -> bool:
    """Whether frequencies are others in the dtype of the former."""
    eps = torch.finfo(stored.dtype).eps
    tiny = torch.finfo(torch.float16).smallest_normal * eps if stored.dtype == torch.float16 else 0.0
    return stored.shape == known.shape and torch.allclose(stored.double(), known, rtol=max(2 * eps, 1e-4), atol=tiny)


def _off(stored: Tensor, known: Tensor, probe: Probe) -> str:
    if stored.shape != known.shape:
        return f"{stored.numel()} frequencies, and the configuration rotates {known.numel()} pairs"
    error = float((stored.double() - known).abs().max()) * (probe.length - 1)
    text = f"off by {error:.3g} rad at position {probe.length - 1}"
    base = base_of(stored)
    return text if base is None else f"{text}, those of rope_theta={base:.6g}"


def impossible_sections(probe: Probe) -> Evidence:
    """Sections of M-RoPE with which no forward pass runs."""
    for parameters in probe.parameters.values():
        if sections := parameters.get("mrope_section"):
            try:
                _expected_axes(probe, list(sections), bool(parameters.get("mrope_interleaved")))
            except InputError as error:
                yield "axes_differ", f"mrope_section: {error}", None


def _expected_axes(probe: Probe, sections: list[int], interleaved: bool) -> Tensor:
    """Whether each pair, (pairs, 3), turns by the time, the height and the width."""
    table = next(iter(probe.tables().values()))
    interleaved = interleaved or str(probe.model.config.model_type).startswith("qwen3")  # which has no other
    return MRotary(table.rotary_dim, sections=sections, interleaved=interleaved).tables()["frequency"] > 0


def multimodal(probe: Probe) -> Evidence:
    """M-RoPE: text alone, the axis by which each pair turns, and the positions of an image that is not square."""
    for parameters in probe.parameters.values():
        if sections := parameters.get("mrope_section"):
            yield from _axes(probe, list(sections), bool(parameters.get("mrope_interleaved")))
            yield from _image_positions(probe)


def positions_of_text(probe: Probe) -> Evidence:
    """Text has the positions 0, 1, 2, ..., on all axes, however they are passed."""
    ids = probe.ids()
    positions = torch.arange(PROBE, device=ids.device)[None]
    given = {"one row": positions}
    if any(parameters.get("mrope_section") for parameters in probe.parameters.values()):
        given["three equal rows"] = positions.expand(3, 1, -1)
    plain = probe.logits(ids)
    for what, passed in given.items():
        text = f"text with position_ids of {what} has other logits than without position_ids"
        yield from differ(probe, "text_positions_differ", text, probe.logits(ids, position_ids=passed), plain)


def counted_on(probe: Probe) -> Evidence:
    """A text in two calls has the positions of one, whatever prompt came before it."""
    sections = any(parameters.get("mrope_section") for parameters in probe.parameters.values())
    name, ids = "positions_of_another_prompt" if sections else "text_positions_differ", probe.ids()
    cache = getattr(probe.model(ids[:, : PROBE // 2], use_cache=True), cache_name())
    rest = probe.model(ids[:, PROBE // 2 :], **{cache_name(): cache}, use_cache=True).logits.float()
    text = "text in two calls with a cache, without position_ids, has other logits than in one"
    yield from differ(probe, name, text, rest, probe.logits(ids)[:, PROBE // 2 :])


def _axes(probe: Probe, sections: list[int], interleaved: bool) -> Evidence:
    """Each row of position_ids alone, and the pairs that it turns."""
    table = next(iter(probe.tables().values()))
    expected = _expected_axes(probe, sections, interleaved)
    x = torch.zeros(1, 1, 1, device=table.inv_freq.device)
    for axis, name in enumerate(("time", "height", "width")):
        positions = torch.zeros(3, 1, 1, dtype=torch.int64, device=x.device)
        positions[axis] = 1
        sin = probe.decoder.rotary_emb(x, positions)[1]
        if sin.shape != (1, 1, table.rotary_dim):
            return  # three tables, which its attention mixes
        turned = sin[0, 0, : table.rotary_dim // 2].cpu() != 0
        if wrong := int((turned != expected[:, axis]).sum()):
            text = f"{wrong} of {len(turned)} pairs follow the {name} where mrope_section={sections} says otherwise"
            yield "axes_differ", text, wrong / len(turned)
            return


def _image_positions(probe: Probe) -> Evidence:
    """A prompt with two images, 2 x 3 and 3 x 1 tokens, by the model's own function."""
    config, model = probe.model.config, probe.model.base_model
    if not hasattr(model, "get_rope_index") or not str(config.model_type).startswith(QWEN):
        return
    merge = int(config.vision_config.spatial_merge_size)
    grids = torch.tensor([[1, 2, 3], [1, 3, 1]])
    types = torch.tensor([[0] * 3 + [1] * 6 + [0] * 2 + [1] * 3 + [0] * 4])
    begins = torch.cat([types[:, 1:] > types[:, :-1], torch.zeros(1, 1, dtype=torch.bool)], 1)
    ids = torch.where(types > 0, config.image_token_id, 0).masked_fill(begins, config.vision_start_token_id)
    found: Any = model.get_rope_index(
        input_ids=ids, mm_token_type_ids=types, image_grid_thw=grids * torch.tensor([1, merge, merge]),
        attention_mask=torch.ones_like(ids),
    )[0]  # fmt: skip
    expected = multimodal_positions([3, (2, 3), 2, (3, 1), 4], rule="qwen2_vl").k
    if found.shape[-1] != expected.shape[-2] or not torch.equal(found[:, 0].T, expected.reshape(-1, 3)):
        off = (found[:, 0].T - expected.reshape(-1, 3)).abs()
        axes = [name for name, axis in zip(("time", "height", "width"), off.T, strict=True) if axis.any()]
        text = f"get_rope_index: two images' positions are off by up to {int(off.max())} in {', '.join(axes)}"
        yield "image_positions_differ", text, float(off.max())


def compiled(probe: Probe) -> Evidence:
    """The compiled pass against the plain one, at the first positions and at the last."""
    if probe.compiled is None:
        return
    ids = probe.ids()
    for start in sorted({0, max(probe.length - PROBE, 0)}):
        inputs = {"position_ids": torch.arange(start, start + PROBE, device=ids.device)[None], "use_cache": False}
        plain = probe.model(ids, **inputs).logits.float()
        logits = probe.compiled(ids, **inputs).logits.float()
        text = f"compiled, tokens at positions {start} to {start + PROBE - 1} have other logits"
        if differences := list(differ(probe, "compiled_differs", text, logits, plain)):
            yield from differences
            return
