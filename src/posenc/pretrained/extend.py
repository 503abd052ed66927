# SPDX-License-Identifier: Apache-2.0
"""Longer context for a pretrained model, in place, and back."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from posenc.checks import checked
from posenc.encoding import Encoding
from posenc.encodings.mapped import Mapped
from posenc.encodings.rotary import Rotary
from posenc.errors import InputError
from posenc.frequencies import Frequencies, create, stretch
from posenc.frequencies.schedules import check_factor
from posenc.pretrained.anatomy import Anatomy, Layer, Rope, anatomy, check_model, unwrapped
from posenc.pretrained.attach import Absent, Design, attach, attached, detach, together
from posenc.pretrained.learned_table import TableExtension, extend_table, has_learned_table, restore_table
from posenc.pretrained.methods import Lengths, Plan, plan, written_factor
from posenc.pretrained.reach import STEP, reach
from posenc.pretrained.report import Extension
from posenc.pretrained.rope_config import hf_config, pinned
from posenc.pretrained.vision.libraries import Timm, library_of
from posenc.pretrained.vision.resize import restore_size

CONFIGURED = ("rope_parameters", "max_position_embeddings", "original_max_position_embeddings", "head_dim")
"""What plain transformers reads of a configuration to turn as an extended model does."""


@checked
def extend(
    model: Any,
    method: str,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    **options: Any,
) -> Extension | TableExtension:
    """Make a transformers causal language model read longer texts, in place; `restore` undoes it.

    model: Llama and its kin, see `FAMILIES` in posenc/pretrained/anatomy.py; a PEFT wrapper is looked through. method: see
    `posenc.pretrained.methods.METHODS`, as "yarn", "ntk+log_n" or "rerope:window=2048+softmax_n". factor: the new length
    over the one the model had before any scaling; or target_length, in tokens; both None: what a schedule's own text says
    ("yarn:factor=4"). Methods that do not depend on the new length need neither. options: of the method's parts, as in
    `extend(model, "rerope", window=2048)`.

    BERT and other models with a learned table take "hierarchical" and "interpolate", see `extend_table`.

    A model that is extended already is extended anew from what it was, never twice. Whatever fails leaves the model as it
    was. max_position_embeddings becomes the new length, and rope_parameters what plain transformers needs for the same
    frequencies, so that save_pretrained keeps them; unless how the model was loaded ("dynamic", "linear") forbids it, which
    `load` knows what to do with.

    Raises:
        InputError: a model, method, option or length that is not supported, with the reason; options that do not reach
            the new length, with how far they do.
    """
    check_model(model)
    if has_learned_table(model):
        return extend_table(model, method, factor=factor, target_length=target_length, **options)
    inner = unwrapped(model)
    body, record = anatomy(inner), attached(inner)
    if factor is None and target_length is None:
        factor = written_factor(method)
    target = _target(body, factor, target_length)
    chosen = plan(method, options, Lengths(body.trained_length, target), Lengths(body.loaded_length, target))
    design = _design(body, chosen, target)
    report = _report(body, chosen, design, target)
    if record is not None:
        if record.report == report:
            found: Extension = record.report
            return found
        detach(record)
    try:
        attach(body, design, report)
    except BaseException:
        if record is not None:
            attach(body, record.design, record.report)
        raise
    return report


@checked
def restore(model: Any) -> bool:
    """Undo `extend` or `resize`: the very modules, tables and configuration values that were there are put back. Whether
    there was anything to undo."""
    check_model(model)
    resized = restore_size(model)
    if isinstance(library_of(model), Timm):
        return resized
    if has_learned_table(model):
        return restore_table(model)
    record = attached(unwrapped(model))
    if record is not None:
        detach(record)
    return resized or record is not None


def _target(body: Anatomy, factor: float | None, target_length: int | None) -> int | None:
    if factor is not None and target_length is not None:
        raise InputError(f"factor={factor} and target_length={target_length}: give one of them")
    if factor is not None:
        target_length = round(check_factor(factor) * body.trained_length)
    if target_length is not None and target_length < body.loaded_length:
        scaled = f", stretched from {body.trained_length} by {body.schedule['name']}" if body.rope.scaled else ""
        raise InputError(
            f"target_length={target_length}: the model reads {body.loaded_length} tokens as it is{scaled}; pass "
            f"target_length={2 * body.loaded_length} or more (factor counts from {body.trained_length})"
        )
    return target_length


def _design(body: Anatomy, chosen: Plan, target: int | None) -> Design:
    """What is to be attached, with everything made that can fail."""
    length = body.loaded_length if target is None else target
    config: dict[str, Any] = {"posenc": Absent}
    changed = _changed(body)
    loaded = {rope.schedule["name"] for rope in body.ropes.values()}
    alone = chosen.map is None and not chosen.attention
    turns = chosen.schedule is not None or chosen.map is not None
    # what is left as it is, is turned by ours too, which no cast rounds; unless it goes with the length of each text
    turns = turns or not (alone or loaded & {"dynamic", "longrope"})
    rotations = _rotations(body, chosen, changed, length) if turns else {}
    # a length that "dynamic" would read, or finer positions on which the rest could not be extended anew, stay
    if chosen.schedule is not None and (alone or "linear" not in loaded):
        plain = hf_config(body, {t: rotations[t].frequencies() for t in changed}, length)
        config |= {name: getattr(plain, name) for name in CONFIGURED if hasattr(plain, name)}
    elif chosen.schedule is None and "dynamic" not in loaded:
        config |= {"max_position_embeddings": length, "rope_parameters": pinned(body)}
    if alone:
        return Design(rotations, frozenset(), (), config)
    _check_attention(body, chosen)
    config["posenc"] = {"method": chosen.text, "target_length": target}
    still = frozenset(changed if chosen.map is not None else ())
    return Design(rotations, still, tuple(_encoding(layer, chosen, rotations, still) for layer in body.layers), config)


def _changed(body: Anatomy) -> list[str]:
    """The layer types whose rotation a method changes: all that share one, else those of the layers that see everything."""
    if body.rope_per_type and "full_attention" in body.ropes:
        return ["full_attention"]
    return list(body.ropes)


def _rotations(body: Anatomy, chosen: Plan, changed: list[str], length: int) -> dict[str, Rotary]:
    """Layer type -> its new rotation, one object where the model has one."""

    def made(layer_type: str) -> Rotary:
        rope = body.ropes[layer_type]
        new = chosen.schedule is not None and layer_type in changed
        schedule = _composed(rope, chosen.schedule or {}) if new else rope.at(length)
        return Rotary(body.head_dim, rope.rope_theta, body.layout, rope.rotary_dim, schedule)

    if body.rope_per_type:
        return {layer_type: made(layer_type) for layer_type in body.ropes}
    return dict.fromkeys(body.ropes, made(changed[0]))


def _composed(rope: Rope, schedule: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule on top of what the model has: in place of what only stretched it, but within the finer positions that a
    model under "linear" was trained on."""
    if rope.schedule["name"] != "linear":
        return dict(schedule)
    unit = float(rope.schedule["factor"])
    found = create(_finer(schedule, unit), rope.rotary_dim, rope.rope_theta)
    divisors = unit * stretch(found, rope.rotary_dim, rope.rope_theta)
    return {"name": "explicit", "stretch": divisors.tolist(), "attention_factor": found.attention_factor}


def _finer(schedule: Mapping[str, Any], unit: float) -> dict[str, Any]:
    """A schedule for lengths that are counted in positions `unit` times as large."""
    found = dict(schedule)
    for key in found.keys() & {"original_max_positions", "length"}:
        found[key] = max(round(found[key] / unit), 1)
    return found | {"of": _finer(found["of"], unit)} if isinstance(found.get("of"), Mapping) else found


def _encoding(layer: Layer, chosen: Plan, rotations: Mapping[str, Rotary], still: frozenset[str]) -> Encoding | None:
    """What attention does in a layer. One with a window of its own keeps what it had."""
    parts: list[Encoding] = []
    if layer.rotates and layer.layer_type in still:
        rotation = rotations[layer.layer_type]
        parts.append(rotation if layer.window is not None else Mapped(rotation, chosen.map or {}))
    if layer.window is None:
        parts += chosen.attention.values()
    return together(*parts)


def _check_attention(body: Anatomy, chosen: Plan) -> None:
    """Refuse what `posenc.attention` cannot serve.

    Raises:
        InputError: capped scores, no layer that sees everything, or two kinds of sinks.
    """
    if any(layer.softcap is not None for layer in body.layers):
        raise InputError(
            f"method={chosen.text!r}: {body.model_type} caps its scores (attn_logit_softcapping), which only its own "
            "attention does; take a frequency schedule, such as yarn"
        )
    full = [layer for layer in body.layers if layer.window is None]
    if not full:
        raise InputError(
            f"method={chosen.text!r}: every layer of this model sees {body.layers[0].window} tokens at most; load it with "
            "sliding_window=None to let it see more, or take a frequency schedule"
        )
    if "softmax_n" in chosen.attention and any(hasattr(layer.module, "sinks") for layer in body.layers):
        raise InputError(f"method={chosen.text!r}: {body.model_type} has learned sinks, a denominator of its own")


def _report(body: Anatomy, chosen: Plan, design: Design, target: int | None) -> Extension:
    main = next((t for t in body.ropes if t == "full_attention"), next(iter(body.ropes)))
    turned = design.rotations[main].frequencies() if design.rotations else body.rope.frequencies()
    lengths = (1, body.loaded_length) if design.rotations else ()  # a schedule may have one set for short texts alone
    before = [create(body.ropes[main].at(n), body.rotary_dim, body.rope_theta) for n in lengths]
    exact = body.loaded_length if chosen.exact is None else min(chosen.exact, body.loaded_length)
    if not all(_equal(turned, each) for each in before):
        exact = 0
    size = 2 * len(body.layers) * body.num_kv_heads * body.head_dim * _item_size(body.model)
    reached = reach(chosen, turned, body.rope, body.loaded_length, target)
    changed = sum(_changes(body, chosen, layer) for layer in body.layers)
    return Extension(
        model_type=body.model_type,
        method=chosen.text,
        trained_length=body.loaded_length,
        new_length=target,
        original_length=body.trained_length,
        schedule=chosen.schedule,
        map=chosen.map,
        attention=tuple(str(encoding) for encoding in chosen.attention.values()),
        stretch=tuple(stretch(turned, body.rotary_dim, body.rope_theta).tolist()),
        attention_factor=turned.attention_factor,
        exact_tokens=exact,
        tuning=chosen.tuning,
        raw_keys=chosen.map is not None,
        cache_bytes_per_token=size,
        plain=not design.encodings,
        layers=(changed, len(body.layers)),
        reach=reached,
        notes=tuple(_notes(body, chosen, reached if changed else None, target)),
    )


def _changes(body: Anatomy, chosen: Plan, layer: Layer) -> bool:
    """Whether a method changes anything in a layer."""
    turned = chosen.schedule is not None and layer.layer_type in _changed(body)
    mapped = chosen.map is not None and layer.window is None
    return (layer.rotates and (turned or mapped)) or (bool(chosen.attention) and layer.window is None)


def _equal(one: Frequencies, other: Frequencies) -> bool:
    same = one.attention_factor == other.attention_factor
    return same and bool(((one.inv_freq - other.inv_freq).abs() <= 1e-12 * other.inv_freq).all())


def _item_size(model: nn.Module) -> int:
    return next((p.element_size() for p in model.parameters() if p.is_floating_point()), 4)


def _notes(body: Anatomy, chosen: Plan, reached: int | None, target: int | None) -> list[str]:
    notes = []
    if reached is not None and target is not None and reached * (1 + STEP) < target:
        notes.append(f"reaches {reached} of {target} tokens by construction: what is farther apart was not trained")
    if body.rope.scaled:
        name = body.schedule["name"]
        if name == "linear" or chosen.schedule is None:
            notes.append(f"the model as loaded is scaled by {name}, which stays")
        else:
            notes.append(
                f"the model as loaded is scaled by {name} from {body.trained_length} tokens; the new schedule takes its "
                "place and starts from there"
            )
    if chosen.schedule is not None and chosen.schedule["name"] in ("dynamic", "longrope"):
        notes.append("the schedule depends on the length: it is that of the new one for every text, shorter ones too")
    still = sum(not layer.rotates for layer in body.layers)
    if still:
        notes.append(f"layers without position: {still}")
    windows = sum(layer.window is not None for layer in body.layers)
    if windows:
        together = chosen.schedule is not None and not body.rope_per_type
        what = "their frequencies change with the others'" if together else "as before"
        notes.append(f"layers with a sliding window: {windows}, {what}")
    return notes
