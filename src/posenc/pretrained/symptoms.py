# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with where a model thinks its tokens are: each symptom, how it is measured, what to do."""

import copy
import math
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn

from posenc import frequencies
from posenc.errors import InputError, on_one_line
from posenc.pretrained.attach import NAME, Turns
from posenc.pretrained.findings import Symptom
from posenc.pretrained.loss import loss_by_position
from posenc.pretrained.patient import PROBE, Patient, Table, tables_of
from posenc.pretrained.rope_config import check_parameters
from posenc.pretrained.stated import stated

ROUNDING, ROUNDING_HALF = 1e-3, 0.2
"""Differences of logits that count, as a share of their spread, in float32 and in half precision."""


def symptoms(case: Patient, tokenizer: Any | None) -> Symptom:
    """Everything found, the configuration first, then what the model does."""
    as_asked = True
    if case.record is None or not case.record.design.rotations:
        found = list(_configuration(case))
        yield from found
        as_asked = not found
    bypassed = list(_bypassed(case))
    yield from bypassed
    yield from _declared(case)
    if case.record is None:
        yield from stated(case)
    if bypassed:
        return
    if not torch.isfinite(case.logits(case.ids())).all():
        yield "not_finite", f"{PROBE} random tokens give NaN or infinite logits", None
        return
    blind = list(_future(case))
    yield from blind
    if blind:
        return
    for probe in (_cache, _padding, _packing, _implementation):
        yield from probe(case)
    if tokenizer is None:
        return
    swapped = list(_layout(case, tokenizer))
    yield from swapped
    if as_asked and not swapped and case.record is None:  # else any base may look better
        yield from _base(case, tokenizer)


def _configuration(case: Patient) -> Symptom:
    """The table that the model holds against the one that its configuration makes."""
    try:
        check_parameters(case.config)
        rebuilt = case.rebuilt_rotary()
    except InputError as error:
        yield "config_not_buildable", str(error), None
        return
    except Exception as error:  # what transformers raises at a configuration is anything
        yield "config_not_buildable", f"{type(error).__name__}: {on_one_line(error)}", None
        return
    held, asked = case.tables(at_rest=True), tables_of(rebuilt, case.parameters)
    for kind in asked:
        where = "" if len(asked) == 1 else f" of {kind}"
        if kind not in held:
            yield "config_not_applied", f"the model has no frequencies{where}", None
            continue
        yield from _compared(case, held[kind], asked[kind], rebuilt, where)
        yield from _ignored(case, held[kind], where)


def _compared(case: Patient, held: Table, asked: Table, rebuilt: nn.Module, where: str) -> Symptom:
    ours, theirs = held.inv_freq.double(), asked.inv_freq.double()
    if ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-6, atol=0):
        if not math.isclose(held.attention_factor, asked.attention_factor, rel_tol=1e-6):
            told = f"attention factor{where} {held.attention_factor:.4g}, asked for {asked.attention_factor:.4g}"
            yield "config_not_applied", told, held.attention_factor
        return
    if ours.shape != theirs.shape:
        told = f"{len(ours)} frequencies{where}, where the configuration asks for {len(theirs)}"
        yield "config_not_applied", told, len(ours) / len(theirs)
        return
    error = float((ours - theirs).abs().max()) * (case.length - 1)
    phase = f"{error:.3g} rad at position {case.length - 1}"
    rounded = [asked.inv_freq.to(dtype).double() for dtype in (torch.bfloat16, torch.float16)]
    if any(torch.equal(ours, x.to(ours.device)) for x in rounded):
        yield "frequencies_rounded", f"frequencies{where} held in half precision: phases are off by {phase}", error
        return
    told = f"frequencies{where} differ from the configuration's by {phase}"
    before = case.logits(case.ids())
    with case.with_rotary(rebuilt):
        change = float((case.logits(case.ids()) - before).abs().max())
    if math.isfinite(change):
        yield "config_not_applied", f"{told}; with these, {PROBE} tokens' logits change by up to {change:.3g}", change
    else:
        yield "config_not_applied", told, error


def _ignored(case: Patient, held: Table, where: str) -> Symptom:
    """What a layer type's parameters say and transformers does not do."""
    said, width = held.parameters, held.rotary_dim
    if said.get("rope_type") == "yarn" and said.get("truncate") is False:
        original = int(said.get("original_max_position_embeddings") or case.length)
        options = {key: said[key] for key in ("beta_fast", "beta_slow") if said.get(key) is not None}
        asked = frequencies.yarn(
            width, said["rope_theta"], factor=said["factor"], original_max_positions=original, truncate=False, **options
        ).inv_freq
        difference = (held.inv_freq.double().cpu() - asked).abs()
        if float((difference / asked).max()) > 1e-3:
            error = float(difference.max()) * (case.length - 1)
            yield "truncate_ignored", f"phases{where} are off by {error:.3g} rad at position {case.length - 1}", error
    part = said.get("partial_rotary_factor")
    if part is not None and said.get("rope_type") != "proportional" and int(case.head_dim * part) != width:
        told = f"{width} of {case.head_dim} channels rotate{where}, asked for {int(case.head_dim * part)}"
        yield "partial_rotary_ignored", told, width / case.head_dim
    same = said.get("original_max_position_embeddings") == case.length
    if said.get("rope_type") == "llama3" and same:
        yield "llama3_without_effect", f"original_max_position_embeddings is {case.length} too", None


def _bypassed(case: Patient) -> Symptom:
    record = case.record
    if record is None:
        if entry := getattr(case.config, "posenc", None):
            yield "extension_not_applied", f"config.posenc is {entry}, and nothing of it is attached", None
        return
    bypassed = bool(record.design.encodings) and not str(case.config._attn_implementation).startswith(NAME)
    if bypassed or (record.design.rotations and not isinstance(case.decoder.rotary_emb, Turns)):
        told = f"extended by {record.report.method}; attention is {case.config._attn_implementation!r} now"
        yield "attention_bypassed", told, None


def _declared(case: Patient) -> Symptom:
    """The length that the frequencies are made for against the one that the configuration gives."""
    if case.record is not None:
        meant, how = case.record.report.new_length or 0, "by posenc.extend"
        if meant > case.length:
            told = f"stretched for {meant} tokens {how}, and max_position_embeddings is {case.length}"
            yield "length_not_declared", told, meant / case.length


def _future(case: Patient) -> Symptom:
    ids = case.ids()
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % case.config.vocab_size
    told = "another last token moves the logits before it"
    yield from _differ(case, "sees_the_future", told, case.logits(other)[:, :-1], case.logits(ids)[:, :-1])


def _cache(case: Patient) -> Symptom:
    """Half of the probe in one call, the rest token by token; at the start, and across a length where tables change.

    Positions are passed, so that no long text is needed to get there."""
    starts = {0}
    if case.record is None:
        for said in case.parameters.values():
            if said.get("rope_type") in ("dynamic", "longrope"):
                name = "original_max_position_embeddings"
                starts.add(int((said["rope_type"] == "longrope" and said.get(name)) or case.length) - PROBE // 2)
    for start in sorted(max(start, 0) for start in starts):
        ids = case.ids()
        positions = torch.arange(start, start + PROBE, device=ids.device)[None]
        with case.with_rotary(copy.deepcopy(case.decoder.rotary_emb)):  # a pass may move what it holds
            whole = case.logits(ids, position_ids=positions)
        with case.with_rotary(copy.deepcopy(case.decoder.rotary_emb)):
            parts, cache = [], None
            for part in torch.arange(PROBE, device=ids.device).split([PROBE // 2, *[1] * (PROBE // 2)]):
                inputs = {"position_ids": positions[:, part], "past_key_values": cache, "use_cache": True}
                output = case.model(ids[:, part], **inputs)
                cache = output.past_key_values
                parts.append(output.logits.float())
        at = f"across position {start + PROBE // 2}" if start else "from the first tokens on"
        yield from _differ(case, "cache_differs", f"decoding {at} moves the logits", torch.cat(parts, 1), whole)


def _padding(case: Patient) -> Symptom:
    """A padded row beside a full one, with the right positions and with none."""
    ids = case.ids(batch=2)
    pads = PROBE // 3
    mask = torch.ones_like(ids)
    mask[1, :pads] = 0
    alone = case.logits(ids[1:, pads:])
    right = (mask.cumsum(-1) - 1).clamp(min=0)
    told = f"{pads} pads move the logits behind them"
    padded = case.logits(ids, attention_mask=mask, position_ids=right)[1:, pads:]
    wrong = list(_differ(case, "padding_differs", told, padded, alone))
    yield from wrong
    if not wrong:
        padded = case.logits(ids, attention_mask=mask)[1:, pads:]
        yield from _differ(case, "positions_from_padding", told, padded, alone)


def _packing(case: Patient) -> Symptom:
    ids = case.ids()
    first = PROBE // 3
    positions = torch.cat([torch.arange(first), torch.arange(PROBE - first)])[None].to(ids.device)
    packed = case.logits(ids, position_ids=positions)[:, first:]
    told = "a text packed in front moves the logits"
    yield from _differ(case, "packing_leaks", told, packed, case.logits(ids[:, first:]))


def _implementation(case: Patient) -> Symptom:
    name = case.config._attn_implementation
    if name == "eager" or (case.record is not None and case.record.design.encodings):
        return
    ours = case.logits(case.ids())
    with case.with_implementation("eager"):
        eager = case.logits(case.ids())
    yield from _differ(case, "attention_differs", f"the logits of {name} are not those of eager", ours, eager)


TEXT = (
    "The sun rose over the hills, and the birds began to sing. A farmer opened his gate and led the cows to the field, "
    "as he did every morning. His daughter came after him with a basket of bread and cheese. They sat down under the "
    'old tree by the river and ate. "It will rain tomorrow," he said, and looked at the sky.'
)


def _layout(case: Patient, tokenizer: Any) -> Symptom:
    """Only where queries and keys come from a projection each and meet no norm of their own."""
    ids = tokenizer(TEXT, return_tensors="pt", verbose=False).input_ids[:, : case.length]
    projections = [
        getattr(module, name)
        for module in case.decoder.modules()
        if hasattr(module, "q_proj") and hasattr(module, "k_proj") and not hasattr(module, "q_norm")
        for name in ("q_proj", "k_proj")
    ]
    table = next(iter(case.tables().values()))
    if not projections or ids.shape[1] < PROBE or table.rotary_dim != case.head_dim:
        return
    other = "interleaved" if case.family.layout == "half" else "half"

    def reorder(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        heads = output.unflatten(-1, (-1, case.head_dim))
        return heads[..., order].flatten(-2)

    order = torch.arange(case.head_dim)
    order = order.view(-1, 2).T.flatten() if other == "interleaved" else order.view(2, -1).T.flatten()
    as_it_is = float(loss_by_position(case.model, ids)[:, 1:].mean())
    hooks = [projection.register_forward_hook(reorder) for projection in projections]
    try:
        swapped = float(loss_by_position(case.model, ids)[:, 1:].mean())
    finally:
        for hook in hooks:
            hook.remove()
    if swapped < as_it_is - 0.5:
        told = f"loss {as_it_is:.2f} on a plain text as rotated ({case.family.layout}), {swapped:.2f} as {other}"
        yield "layout_swapped", told, as_it_is - swapped


PAGE, MOST_TOKENS, LEAST_TOKENS = "execmodel", 384, 200
"""The page of Python's reference that is read under other bases, and how much of it."""
GAIN, SURE = 0.03, 2.5
"""By how many nats a token another base must be better, and by how many standard errors: measured on SmolLM2-135M, whose
base is 0.10 nats (3 standard errors) better than a tenth of it and 0.15 (6) than ten times it."""


def _base(case: Patient, tokenizer: Any) -> Symptom:
    """A plain text under ten times the base, and a tenth of it. Only for a model that predicts the text at all."""
    ids = tokenizer(topics[PAGE], return_tensors="pt", verbose=False).input_ids[:, : min(case.length, MOST_TOKENS)]
    if ids.shape[1] < LEAST_TOKENS:
        return
    as_it_is = loss_by_position(case.model, ids)[:, 1:].double()
    if as_it_is.mean() > 0.75 * math.log(case.config.vocab_size):
        return
    for times in (0.1, 10.0):
        with case.with_rotary(case.rebuilt_rotary(times)):
            gain = as_it_is - loss_by_position(case.model, ids)[:, 1:].double()
        sure = float(gain.mean() / (gain.std() / math.sqrt(gain.numel())).clamp(min=1e-12))
        if gain.mean() > GAIN and sure > SURE:
            loss = float(as_it_is.mean())
            told = (
                f"loss {loss:.3f} on a plain text, {loss - float(gain.mean()):.3f} with rope_theta times {times:g} "
                f"({sure:.1f} standard errors)"
            )
            yield "base_doubtful", told, float(gain.mean())


def _differ(case: Patient, name: str, told: str, ours: Tensor, wanted: Tensor) -> Symptom:
    """A finding where logits differ by more than rounding can do."""
    ratio = float((ours - wanted).square().mean().sqrt() / wanted.std())
    if ratio > (ROUNDING_HALF if case.model.dtype in (torch.bfloat16, torch.float16) else ROUNDING):
        yield name, f"{told}, by {ratio:.3g} of their spread (root mean square)", ratio
