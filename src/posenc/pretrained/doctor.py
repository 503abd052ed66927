# SPDX-License-Identifier: Apache-2.0
"""doctor: how a model encodes positions, and what is wrong with it, each finding with a measured number."""

import math
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn

from posenc import frequencies
from posenc.errors import InputError, described, on_one_line
from posenc.functional import Layout, layout_permutation
from posenc.pretrained.adapters import apart
from posenc.pretrained.attach import NAME, RotaryModule
from posenc.pretrained.computed import Comparison
from posenc.pretrained.config_file import ConfigFile
from posenc.pretrained.findings import Diagnosis, Evidence, diagnosis
from posenc.pretrained.gguf_reader import read_config
from posenc.pretrained.inference import evaluating, loss_by_position
from posenc.pretrained.models import (
    cache_name,
    has_frequencies,
    set_after_loading,
    set_since,
    tables_of,
    unwrap,
)
from posenc.pretrained.probe import ALL_LAYERS, PROBE, FrequencyTable, Probe, base_of, differ
from posenc.pretrained.stated import ORIGINAL, edited, impossible_numbers, stated, unstated
from posenc.pretrained.traps import (
    compiled,
    counted_on,
    impossible_sections,
    multimodal,
    not_restored,
    positions_of_text,
    stored_frequencies,
    uninitialised,
)


@torch.no_grad()
def doctor(model: Any, tokenizer: Any | None = None) -> Diagnosis:
    """Examine a model, and leave it unchanged.

    Its frequencies are compared with its configuration, and short runs of random tokens show what padding, packing, a
    cache and the attention implementation do to its logits.

    Args:
        model: a causal language model of transformers, of a type in `FAMILIES` of posenc/pretrained/families.py or
            `EXAMINED` of posenc/pretrained/probe.py. Compiled by torch.compile or model.compile(), its compiled passes are
            compared with plain ones.
        tokenizer: its own; with it a plain text is read as well, which shows weights in the wrong layout.

    Raises:
        InputError: not a transformers model, or of a type that is not supported.
    """
    probe = Probe(model)
    comparison = Comparison(probe)
    with evaluating(probe.model), probe.with_rotary(), probe.uncompiled():
        evidence = list(_evidence(probe, comparison, tokenizer))
    return diagnosis(probe.description(comparison.summary()), iter(evidence))


def _evidence(probe: Probe, comparison: Comparison, tokenizer: Any | None) -> Evidence:
    """First the configuration, then what the model does; a cause, and not what follows from it."""
    if probe.attachment is None:
        later = set_after_loading(probe.config.rope_parameters)
        cannot: Evidence = (("config_not_applied", text, None) for text in later)
        incomplete = list(cannot) or list(impossible_numbers(probe.config))
        if incomplete:
            yield from incomplete
            return
    of_posenc = probe.attachment is not None and bool(probe.attachment.design.rotations)
    differences = [] if of_posenc else list(configuration(probe))
    bypassed = list(_bypassed(probe))
    for text in apart(unwrap(probe.model)):
        yield "adapter_extension_differs", text, None
    yield from (*differences, *bypassed)
    if probe.attachment is None:
        file = _stored(probe)
        for text in () if file is None else file.contradictions():
            yield "fields_contradict", text, None
        for text in () if file is None else file.beside():
            yield "scaling_beside_the_model", text, None
        yield from () if file is None else (*edited(probe.config, file), *unstated(probe.config, file))
        yield from stated(probe.config, file)
        yield from not_restored(probe)
        yield from () if file is None else stored_frequencies(probe, Path(probe.config.name_or_path))
    impossible = list(impossible_sections(probe))
    yield from impossible
    if bypassed or impossible:
        return
    try:
        logits = probe.logits(probe.ids())
    except Exception as error:  # whatever the model's code raises
        if not differences:
            yield "does_not_run", f"{PROBE} random tokens: {described(error)}", None
        return
    if not torch.isfinite(logits).all():
        yield "not_finite", f"{PROBE} random tokens give NaN or infinite logits", None
        return
    other = probe.ids()
    other[0, -1] = (other[0, -1] + 1) % probe.config.vocab_size
    text = "another last token moves the logits before it"
    not_causal = list(differ(probe, "sees_the_future", text, probe.logits(other)[:, :-1], logits[:, :-1]))
    if not_causal:
        yield from not_causal
        return
    comparison.run(far=not differences)
    if comparison.found:
        yield from comparison.evidence()
        return
    for check in (positions_of_text, _cache, _padding, _packing, multimodal, compiled):
        yield from check(probe)
    if comparison.unchecked:
        yield from _implementation(probe)
    if tokenizer is None:
        return
    swapped = list(_layout(probe, tokenizer))
    yield from swapped
    if differences or swapped or probe.attachment:  # else any base may look better
        return
    doubtful = list(_base(probe, tokenizer))
    yield from doubtful or _plain_text(probe, tokenizer)


# ------------------------------------------------------------------------------------------ the table and the configuration


def configuration(probe: Probe) -> Evidence:
    """The frequencies in the model against those that its configuration gives."""
    try:
        rebuilt = probe.rebuilt_rotary()
    except Exception as error:  # transformers raises errors of many types here
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        yield "config_not_buildable", f"{kind}{on_one_line(error)}", None
        return
    current = probe.tables_in(probe.rotary)
    for kind, table in probe.tables_in(rebuilt).items():
        if kind not in current:
            yield "config_not_applied", f"the model has no frequencies{probe.where(kind)}", None
            continue
        if garbage := list(uninitialised(probe, kind, table)):
            yield from garbage
            continue
        prefix = "" if kind == ALL_LAYERS else f"{kind}_"
        for buffer in tables_of(probe.rotary, prefix, table.parameters):
            found = list(_compared(probe, replace(current[kind], inv_freq=buffer), table, rebuilt, probe.where(kind)))
            if found:
                yield from found
                break
        ignored = list(_ignored(probe, current[kind], probe.where(kind)))
        yield from ignored or _of_the_code(probe, table, probe.where(kind))


def _compared(
    probe: Probe, current: FrequencyTable, configured: FrequencyTable, rebuilt: nn.Module, where: str
) -> Evidence:
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
    text, change = f"frequencies{where} differ from the configuration's by {phase}", _moved(probe, rebuilt)
    if math.isfinite(change):
        text, error = f"{text}; with these, {PROBE} tokens' logits change by up to {change:.3g}", change
    yield "config_not_applied", text, error


def _moved(probe: Probe, rotary: nn.Module) -> float:
    """By how much another rotary module moves the logits; NaN: there are none to compare."""
    try:
        before = probe.logits(probe.ids())
        with probe.with_rotary(rotary):
            return float((probe.logits(probe.ids()) - before).abs().max())
    except RuntimeError:  # sizes that do not fit
        return math.nan


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
    if (base := base_of(rebuilt.inv_freq)) is not None:
        text += f"; they are those of rope_theta={base:.6g} without a schedule"
    yield "config_not_computed", text, error


def _ignored(probe: Probe, current: FrequencyTable, where: str) -> Evidence:
    """Parameters of a layer type that transformers does not apply."""
    given, width = current.parameters, current.rotary_dim
    kind, part = given.get("rope_type"), given.get("partial_rotary_factor")
    if kind == "yarn" and given.get("truncate") is False:
        original = int(given.get(ORIGINAL) or probe.length)
        options = {key: given[key] for key in ("beta_fast", "beta_slow") if given.get(key) is not None}
        untruncated = frequencies.yarn(
            width, base=given["rope_theta"], factor=given["factor"], original_max_positions=original, truncate=False, **options
        ).inv_freq  # fmt: skip
        difference = (current.inv_freq.double().cpu() - untruncated).abs()
        if float((difference / untruncated).max()) > 1e-3:
            error = float(difference.max()) * (probe.length - 1)
            yield "truncate_ignored", f"phases{where} are off by {error:.3g} rad at position {probe.length - 1}", error
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


def _stored(probe: Probe) -> ConfigFile | None:
    file = Path(getattr(probe.config, "name_or_path", None) or "") / "config.json"
    return read_config(file) if file.parts[:-1] and file.is_file() else None


# ------------------------------------------------------------------------------------------ probes of the logits


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
        yield from found or (() if start else counted_on(probe))


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


def _implementation(probe: Probe) -> Evidence:
    name = probe.config._attn_implementation
    if name == "eager" or (probe.attachment is not None and probe.attachment.design.encodings):
        return
    ours = probe.logits(probe.ids())
    try:
        probe.model.set_attn_implementation("eager")
        eager = probe.logits(probe.ids())
    finally:
        probe.model.set_attn_implementation(name)
    yield from differ(probe, "attention_differs", f"the logits of {name} are not those of eager", ours, eager)


# ------------------------------------------------------------------------------------------ reading a plain text

TEXT = (
    "The sun rose over the hills, and the birds began to sing. A farmer opened his gate and led the cows to the field, "
    "as he did every morning. His daughter came after him with a basket of bread and cheese. They sat down under the "
    'old tree by the river and ate. "It will rain tomorrow," he said, and looked at the sky.'
)


def _layout(probe: Probe, tokenizer: Any) -> Evidence:
    """Only where queries and keys come from a projection each, without a norm."""
    ids = tokenizer(TEXT, return_tensors="pt", verbose=False).input_ids[:, : probe.length]
    projections = [
        getattr(module, name)
        for module in probe.decoder.modules()
        if hasattr(module, "q_proj") and hasattr(module, "k_proj") and not hasattr(module, "q_norm")
        for name in ("q_proj", "k_proj")
    ]
    table = next(iter(probe.tables().values()))
    if not projections or ids.shape[1] < PROBE or table.rotary_dim != probe.head_dim:
        return
    layout = probe.family.layout
    other: Layout = "interleaved" if layout == "half" else "half"
    order = layout_permutation(probe.head_dim, source=other, target=layout)

    def reorder(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return output.unflatten(-1, (-1, probe.head_dim))[..., order].flatten(-2)

    loss = float(loss_by_position(probe.model, ids)[:, 1:].mean())
    hooks = [projection.register_forward_hook(reorder) for projection in projections]
    try:
        swapped = float(loss_by_position(probe.model, ids)[:, 1:].mean())
    finally:
        for hook in hooks:
            hook.remove()
    if swapped < loss - 0.5:
        text = f"loss {loss:.2f} on a plain text as rotated ({layout}), {swapped:.2f} as {other}"
        yield "layout_swapped", text, loss - swapped


MOST_NATS = 1.0
"""Nats a character of `TEXT` beyond which a model does not predict it. The frequencies of English words alone give about 1.5
(2.14 bits; Shannon, Prediction and Entropy of Printed English, 1951). SmolLM2-135M needs 0.62 in float32, and 1.03 without its rotation."""


def _plain_text(probe: Probe, tokenizer: Any) -> Evidence:
    """The loss on a plain text, where the tokenizer has its words."""
    ids = tokenizer(TEXT, return_tensors="pt", verbose=False).input_ids[:, : probe.length]
    if ids.shape[1] < PROBE or int((ids == tokenizer.unk_token_id).sum() if tokenizer.unk_token_id is not None else 0):
        return
    losses = loss_by_position(probe.model, ids)[:, 1:]
    read = len(tokenizer.decode(ids[0, 1:], skip_special_tokens=True))
    nats = float(losses.sum()) / max(read, 1)
    if nats > MOST_NATS:
        text = f"loss {float(losses.mean()):.2f} a token on a plain English text, {nats:.2f} a character"
        yield "text_not_predicted", text, nats


PAGE, MOST_TOKENS, LEAST_TOKENS = "execmodel", 384, 200
"""The page of Python's reference that is read under other bases, and how much of it."""
GAIN, STANDARD_ERRORS = 0.03, 2.5
"""By how many nats a token another base must be better, and by how many standard errors: measured on SmolLM2-135M, whose
base is 0.10 nats (3 standard errors) better than a tenth of it and 0.15 (6) than ten times it."""


def _base(probe: Probe, tokenizer: Any) -> Evidence:
    """A plain text under ten times the base, and a tenth of it. Only for a model that predicts the text at all."""
    ids = tokenizer(topics[PAGE], return_tensors="pt", verbose=False).input_ids[:, : min(probe.length, MOST_TOKENS)]
    if ids.shape[1] < LEAST_TOKENS:
        return
    losses = loss_by_position(probe.model, ids)[:, 1:].double()
    loss = float(losses.mean())
    if loss > 0.75 * math.log(probe.config.vocab_size):
        return
    for times in (0.1, 10.0):
        with probe.with_rotary(probe.rebuilt_rotary(times)):
            gains = losses - loss_by_position(probe.model, ids)[:, 1:].double()
        gain = float(gains.mean())
        errors = gain / max(float(gains.std()) / math.sqrt(gains.numel()), 1e-12)
        if gain > GAIN and errors > STANDARD_ERRORS:
            text = (
                f"loss {loss:.3f} on a plain text, {loss - gain:.3f} with rope_theta times {times:g} "
                f"({errors:.1f} standard errors)"
            )
            yield "base_doubtful", text, gain
