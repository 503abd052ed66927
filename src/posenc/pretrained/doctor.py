# SPDX-License-Identifier: Apache-2.0
"""doctor: how a model encodes positions, and what is wrong with it, each finding with a measured number."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from posenc.errors import InputError, described, on_one_line
from posenc.pretrained.attach import NAME, RotaryModule
from posenc.pretrained.computed import Comparison
from posenc.pretrained.findings import Diagnosis, Evidence, diagnosis
from posenc.pretrained.inference import evaluating
from posenc.pretrained.models import cache_name, has_frequencies, set_after_loading, set_since, tables_of
from posenc.pretrained.probe import ALL_LAYERS, PROBE, FrequencyTable, Probe, differ
from posenc.pretrained.stated import ORIGINAL, edited, impossible_numbers, stated


@torch.no_grad()
def doctor(model: Any) -> Diagnosis:
    """Examine a model, and leave it unchanged.

    Its frequencies are compared with its configuration, and short runs of random tokens show what padding, packing, a
    cache and the attention implementation do to its logits.

    Args:
        model: a causal language model of transformers, of a type in `FAMILIES` of posenc/pretrained/families.py. One that is
            compiled is examined as it is without, an encoder without runs.

    Raises:
        InputError: not a transformers model, or of a type that is not supported.
    """
    probe, found = Examined(model), list[tuple[str, str, float | None]]()
    with evaluating(probe.model), probe.with_rotary(), probe.uncompiled():
        for check in CHECKS:
            if check.run is _runs and probe.family.encoder:
                break
            if check.extended or probe.attachment is None:
                new = list(check.run(probe))
                found += new
                if probe.over or (new and check.ends):
                    break
    return diagnosis(probe.description(probe.comparison.summary()), iter(found))


class Examined(Probe):
    """A model while it is examined. comparison: of its attention. differences: its frequencies are not those of the configuration.
    over: no pass can be made."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.comparison, self.differences, self.over = Comparison(self), False, False


# ------------------------------------------------------------------------------------------ the table and the configuration


def _incomplete(probe: Examined) -> Evidence:
    later = [("config_not_applied", text, None) for text in set_after_loading(probe.config.rope_parameters)]
    yield from later or impossible_numbers(probe.config)


def _configuration(probe: Examined) -> Evidence:
    if probe.attachment is None or not probe.attachment.design.rotations:
        for found in _differences(probe):
            probe.differences = True
            yield found


def _differences(probe: Probe) -> Evidence:
    """The frequencies in the model against those that its configuration gives."""
    try:
        rebuilt = type(probe.rotary)(copy.deepcopy(probe.config)).to(next(probe.rotary.buffers()).device)
    except Exception as error:  # transformers raises errors of many types here
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        yield "config_not_buildable", f"{kind}{on_one_line(error)}", None
        return
    current = probe.tables_in(probe.rotary)
    for kind, table in probe.tables_in(rebuilt).items():
        if kind not in current:
            yield "config_not_applied", f"the model has no frequencies{probe.where(kind)}", None
            continue
        prefix = "" if kind == ALL_LAYERS else f"{kind}_"
        for buffer in tables_of(probe.rotary, prefix, table.parameters):
            found = list(_compared(probe, replace(current[kind], inv_freq=buffer), table, probe.where(kind)))
            if found:
                yield from found
                break
        ignored = list(_ignored(probe, current[kind], probe.where(kind)))
        yield from ignored or _of_the_code(probe, table, probe.where(kind))


def _compared(probe: Probe, current: FrequencyTable, configured: FrequencyTable, where: str) -> Evidence:
    ours, theirs = current.inv_freq.double(), configured.inv_freq.double()
    if ours.shape != theirs.shape:
        text = f"{len(ours)} frequencies{where}, where the configuration asks for {len(theirs)}"
        yield "config_not_applied", text, len(ours) / len(theirs)
        return
    if torch.allclose(ours, theirs, rtol=1e-6, atol=0):
        factor, wanted = current.attention_factor, configured.attention_factor
        if not math.isclose(factor, wanted, rel_tol=1e-6):
            yield "config_not_applied", f"attention factor{where} {factor:.4g}, asked for {wanted:.4g}", factor
        return
    error = float((ours - theirs).abs().max()) * (probe.length - 1)
    phase = f"{error:.3g} rad at position {probe.length - 1}"
    rounded = [configured.inv_freq.to(dtype).double() for dtype in (torch.bfloat16, torch.float16)]
    if any(torch.equal(ours, x.to(ours.device)) for x in rounded):
        yield "frequencies_rounded", f"frequencies{where} are in half precision: phases are off by {phase}", error
        return
    yield "config_not_applied", f"frequencies{where} differ from the configuration's by {phase}", error


def _of_the_code(probe: Probe, rebuilt: FrequencyTable, where: str) -> Evidence:
    """What the module's code makes of the configuration, against what the configuration states."""
    try:
        rope = probe.stated(rebuilt)
        asked = rope.frequencies()
    except InputError:  # numbers of which there are other findings
        return
    if has_frequencies(rebuilt.inv_freq, rebuilt.attention_factor, rope):
        return
    error = float((rebuilt.inv_freq.double().cpu() - asked.inv_freq).abs().max()) * (probe.length - 1)
    text = f"{type(probe.rotary).__name__} makes other frequencies{where} than it states: off by {error:.3g} rad at position {probe.length - 1}"
    if not math.isclose(rebuilt.attention_factor, asked.attention_factor, rel_tol=1e-6):
        text += f", attention factor {rebuilt.attention_factor:.4g} for {asked.attention_factor:.4g}"
    yield "config_not_computed", text, error


def _ignored(probe: Probe, current: FrequencyTable, where: str) -> Evidence:
    """Parameters of a layer type that transformers does not apply."""
    given, width = current.parameters, current.rotary_dim
    kind, part = given.get("rope_type"), given.get("partial_rotary_factor")
    asked = width if part is None or kind == "proportional" else int(probe.head_dim * part)
    if width != asked + asked % 2:  # an odd channel has no partner but the next one
        text = f"{width} of {probe.head_dim} channels rotate{where}, asked for {asked}"
        yield "partial_rotary_ignored", text, width / probe.head_dim


def _bypassed(probe: Probe) -> Evidence:
    attachment = probe.attachment
    if attachment is None:
        if entry := getattr(probe.config, "posenc", None):
            yield "extension_not_applied", f"config.posenc is {entry}, and nothing of it is attached", None
        return
    implementation, design = str(probe.config._attn_implementation), attachment.design
    other_attention = bool(design.encodings) and not implementation.startswith(NAME)
    if other_attention or (design.rotations and not isinstance(probe.decoder.rotary_emb, RotaryModule)):
        text = f"extended by {attachment.report.method}; attention is {implementation!r} now"
        yield "attention_bypassed", text, None
    for why in set_since(probe.config, attachment):
        yield "set_after_extending", why, None
    length = attachment.report.new_length or 0
    if length > probe.length:
        text = f"stretched for {length} tokens by posenc.extend, and max_position_embeddings is {probe.length}"
        yield "length_not_declared", text, length / probe.length


def _file(probe: Examined) -> Evidence:
    """What the file states, against itself and against the configuration."""
    file = probe.file
    if file is not None:
        yield from (("fields_contradict", text, None) for text in file.contradictions())
        yield from (("scaling_beside_the_model", text, None) for text in file.beside())
        yield from edited(probe.config, file)
    yield from stated(probe.config, file)


# ------------------------------------------------------------------------------------------ probes of the logits


def _runs(probe: Examined) -> Evidence:
    try:
        logits = probe.logits(probe.ids())
    except Exception as error:  # whatever the model's code raises
        probe.over = True
        if not probe.differences:  # of which it may be a consequence
            yield "does_not_run", f"{PROBE} random tokens: {described(error)}", None
        return
    if not torch.isfinite(logits).all():
        yield "not_finite", f"{PROBE} random tokens give NaN or infinite logits", None
        return
    other = probe.ids()
    other[0, -1] = (other[0, -1] + 1) % probe.config.vocab_size
    text = "another last token moves the logits before it"
    yield from differ(probe, "sees_the_future", text, probe.logits(other)[:, :-1], logits[:, :-1])


def _attention(probe: Examined) -> Evidence:
    probe.comparison.run(far=not probe.differences)
    yield from probe.comparison.evidence()


def _cache(probe: Probe) -> Evidence:
    """Half of the probe in one call, the rest token by token; at the start, and across a length where frequencies change.

    Positions are passed, so that no long text is needed to get there."""
    starts = {0}
    for parameters in probe.parameters.values() if probe.attachment is None else ():
        kind = parameters.get("rope_type")
        if kind in ("dynamic", "longrope"):
            original = parameters.get(ORIGINAL) if kind == "longrope" else None
            starts.add(max(int(original or probe.length) - PROBE // 2, 0))
    for start in sorted(starts):
        ids = probe.ids()
        positions = torch.arange(start, start + PROBE, device=ids.device)[None]
        with probe.with_rotary():
            full = probe.logits(ids, position_ids=positions)
        with probe.with_rotary():
            parts, cache = [], None
            for part in torch.arange(PROBE, device=ids.device).split([PROBE // 2, *[1] * (PROBE // 2)]):
                inputs = {"position_ids": positions[:, part], cache_name(): cache, "use_cache": True}
                output = probe.model(ids[:, part], **inputs)
                cache = getattr(output, cache_name())
                parts.append(output.logits.float())
        at = f"across position {start + PROBE // 2}" if start else "from the first tokens on"
        found = list(differ(probe, "cache_differs", f"decoding {at} moves the logits", torch.cat(parts, 1), full))
        yield from found or (() if start else _counted_on(probe))


def _positions_of_text(probe: Probe) -> Evidence:
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


def _counted_on(probe: Probe) -> Evidence:
    """A text in two calls has the positions of one, whatever prompt came before it."""
    sections = any(parameters.get("mrope_section") for parameters in probe.parameters.values())
    name, ids = "positions_of_another_prompt" if sections else "text_positions_differ", probe.ids()
    cache = getattr(probe.model(ids[:, : PROBE // 2], use_cache=True), cache_name())
    rest = probe.model(ids[:, PROBE // 2 :], **{cache_name(): cache}, use_cache=True).logits.float()
    text = "text in two calls with a cache, without position_ids, has other logits than in one"
    yield from differ(probe, name, text, rest, probe.logits(ids)[:, PROBE // 2 :])


def _padding(probe: Probe) -> Evidence:
    """A padded row beside a full one, with the right positions and with none."""
    ids, pads = probe.ids(batch=2), PROBE // 3
    mask = torch.ones_like(ids)
    mask[1, :pads] = 0
    alone = probe.logits(ids[1:, pads:])
    right = (mask.cumsum(-1) - 1).clamp(min=0)
    text = f"{pads} pads move the logits behind them"
    padded = probe.logits(ids, attention_mask=mask, position_ids=right)[1:, pads:]
    if wrong := list(differ(probe, "padding_differs", text, padded, alone)):
        yield from wrong
    else:
        padded = probe.logits(ids, attention_mask=mask)[1:, pads:]
        yield from differ(probe, "positions_from_padding", text, padded, alone)


def _packing(probe: Probe) -> Evidence:
    ids, first = probe.ids(), PROBE // 3
    positions = torch.cat([torch.arange(first), torch.arange(PROBE - first)])[None].to(ids.device)
    packed = probe.logits(ids, position_ids=positions)[:, first:]
    text = "a text packed in front moves the logits"
    yield from differ(probe, "packing_leaks", text, packed, probe.logits(ids[:, first:]))


# ------------------------------------------------------------------------------------------ the table


class Check(NamedTuple):
    """run: yields what it finds. ends: no check behind it is made once it has found something, which would follow from that.
    extended: it is made of a model that posenc.extend has extended, too."""

    run: Callable[[Examined], Evidence]
    ends: bool = False
    extended: bool = True


CHECKS = (
    Check(_incomplete, ends=True, extended=False),
    Check(_configuration),
    Check(_file, extended=False),
    Check(_bypassed, ends=True),
    Check(_runs, ends=True),
    Check(_attention, ends=True),
    *map(Check, (_positions_of_text, _cache, _padding, _packing)),
)
"""In this order: first the configuration, then what the model does; a cause, and not what follows from it."""
