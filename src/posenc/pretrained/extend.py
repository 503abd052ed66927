# SPDX-License-Identifier: Apache-2.0
"""Longer context for a pretrained model, in place, and back."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from posenc.encoding import Encoding
from posenc.encodings.mapped import Mapped
from posenc.encodings.rotary import Rotary
from posenc.errors import InputError, check_integers, check_numbers
from posenc.frequencies import create, stretch
from posenc.pretrained.attach import Attachment, CappedScores, Design, combined
from posenc.pretrained.changes import MISSING, RECORD, ChangeReport, ModelChange
from posenc.pretrained.learned_table import TableExtension, has_learned_table, plan_table
from posenc.pretrained.methods import STEP, Lengths, Plan, plan, reach, written_factor
from posenc.pretrained.models import Layer, ModelStructure, Rope, check_model, model_structure, unwrap
from posenc.pretrained.rope_config import hf_config, pinned, same_frequencies
from posenc.pretrained.vision.models import TimmModel, find_vision_model
from posenc.pretrained.vision.resize import restore_size

CONFIGURED = ("rope_parameters", "max_position_embeddings", "original_max_position_embeddings", "head_dim")
"""Fields of a configuration from which plain transformers rotates as an extended model does."""

TUNING = {
    "works without": "works without fine-tuning",
    "needs it": "needs fine-tuning",
    "comes with it": "for models that were fine-tuned for these numbers",
}


@dataclass(frozen=True)
class Extension(ChangeReport):
    """What `extend` did to a model.

    method: with every option that was set. trained_length: tokens the model was good for. new_length: tokens it is made for
    now, None: the method does not depend on it. original_length: tokens before the scaling that the model was loaded with.
    schedule, map: as data, None where there is none. stretch: how many times slower each pair turns than in plain RoPE,
    fastest pair first. attention_factor: multiplies cos and sin. attention: other parts of the attention. exact_tokens: how
    many from the start of any text are read exactly as before, by construction. tuning: whether the method works without
    fine-tuning. raw_keys: the cache contains unrotated keys. cache_bytes_per_token: for one sequence, in the model's dtype;
    the same as before. plain: plain transformers can do the same from the saved configuration. layers: changed, of all.
    reach: tokens within which no distance is beyond those of training, by construction; None: any number.
    notes: what else is worth knowing.
    """

    model_type: str
    method: str
    trained_length: int
    new_length: int | None
    original_length: int
    schedule: dict[str, Any] | None
    map: dict[str, Any] | None
    attention: tuple[str, ...]
    stretch: tuple[float, ...]
    attention_factor: float
    exact_tokens: int
    tuning: str
    raw_keys: bool
    cache_bytes_per_token: int
    plain: bool
    layers: tuple[int, int]
    reach: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """What to expect of texts that the model could read before, by construction."""
        if self.exact_tokens >= self.trained_length:
            return f"texts of up to {self.trained_length} tokens are read exactly as before"
        if self.exact_tokens > 0:
            return f"the first {self.exact_tokens} tokens of a text are read exactly as before, later ones differently"
        return "every text is read differently, short ones too"

    def __str__(self) -> str:
        length = self.reach if self.new_length is None else self.new_length
        new = "any length" if length is None else f"{length} tokens"
        lines = [f"{self.model_type} extended by {self.method}: from {self.trained_length} tokens to {new}"]
        if self.schedule is not None:
            plain = sum(abs(s - 1) < 1e-9 for s in self.stretch)
            lines.append(
                f"frequencies: {plain} of {len(self.stretch)} pairs as in plain RoPE, others up to "
                f"{max(self.stretch):.4g} times slower; cos and sin times {self.attention_factor:.4g}"
            )
        if self.map is not None:
            options = ", ".join(f"{key} {value}" for key, value in self.map.items() if key != "name")
            lines.append(f"positions: {self.map['name']} with {options}")
        if self.attention:
            lines.append(f"attention: {', '.join(self.attention)}")
        lines.append(f"layers: {self.layers[0]} of {self.layers[1]} changed")
        unchanged = "longer ones no better than before: only the length in the configuration was changed"
        tuning = TUNING[self.tuning] if self.layers[0] else unchanged
        lines.append(f"expected, by construction: {self.expected}; {tuning}")
        keys = "unrotated keys, rotated as each step reads them" if self.raw_keys else "rotated keys, as before"
        lines.append(f"cache: {self.cache_bytes_per_token} bytes a token, as before; {keys}")
        same, other = "does the same from the saved configuration", "cannot express this: extend after loading"
        lines.append(f"plain transformers {same if self.plain else other}")
        return "\n  ".join([*lines, *self.notes])


def extend(
    model: Any, method: str, *, factor: float | None = None, target_length: int | None = None, **options: Any
) -> Extension | TableExtension:
    """Make a transformers causal language model read longer texts, in place; `restore` undoes it.

    model: Llama and its kin, see `FAMILIES` in posenc/pretrained/models.py, under a PEFT wrapper or not. method: see
    `posenc.pretrained.methods.METHODS`, as "yarn", "ntk+log_n" or "rerope:window=2048+softmax_n". factor: the new length
    over the one the model had before any scaling; or target_length, in tokens; both None: the factor that a schedule's own
    text states ("yarn:factor=4"). Methods that do not depend on the new length need neither. options: of the method's
    parts, as in `extend(model, "rerope", window=2048)`.

    BERT, GPT-2 and other models with a learned table take "hierarchical" (option alpha) and "interpolate", see
    `learned_table.plan_table`.

    A model that is extended already is extended anew from what it was, never twice. If anything fails, the model stays as
    it was. max_position_embeddings becomes the new length, and rope_parameters what plain transformers needs for the same
    frequencies, so that save_pretrained keeps them; unless how the model was loaded ("dynamic", "linear") forbids it, which
    `load` handles.

    Raises:
        InputError: a model, method, option or length that is not supported, with the reason; options that do not reach
            the new length, with how far they do.
    """
    check_model(model)
    check_numbers(factor=factor)
    check_integers(1, target_length=target_length)
    inner = unwrap(model)
    plan_for = plan_table if has_learned_table(inner) else plan_rotary
    attachment: ModelChange = plan_for(inner, method, factor, target_length, options)
    previous: ModelChange | None = getattr(inner.base_model, RECORD, None)
    if previous is not None and previous.report == attachment.report:
        attachment = previous
    report: Extension | TableExtension = attachment.report
    if attachment is previous:
        return report
    if previous is not None:
        previous.detach()
    try:
        attachment.attach()
    except BaseException:
        if previous is not None:
            previous.attach()
        raise
    return report


def restore(model: Any) -> bool:
    """Undo `extend` or `resize`: the very modules, tables and configuration values that were there are put back.

    Returns:
        Whether there was anything to undo.
    """
    check_model(model)
    resized = restore_size(model)
    if isinstance(find_vision_model(model), TimmModel):
        return resized
    extension: ModelChange | None = getattr(unwrap(model).base_model, RECORD, None)
    if extension is not None:
        extension.detach()
    return resized or extension is not None


def plan_rotary(
    inner: Any, method: str, factor: float | None, target_length: int | None, options: Mapping[str, Any]
) -> Attachment:
    """The extension of a rotary model, with everything made that can fail."""
    structure = model_structure(inner)
    if factor is None and target_length is None:
        factor = written_factor(method)
    target = _target(structure, factor, target_length)
    lengths = (Lengths(trained, target) for trained in (structure.trained_length, structure.loaded_length))
    chosen = plan(method, options, *lengths)
    design = _design(structure, chosen, target)
    return Attachment(structure, design, _report(structure, chosen, design, target))


def _target(structure: ModelStructure, factor: float | None, target_length: int | None) -> int | None:
    if factor is not None and target_length is not None:
        raise InputError(f"factor={factor} and target_length={target_length}: give one of them")
    if factor is not None:
        if not 1 <= factor < math.inf:
            raise InputError(f"factor={factor}: the new length over the trained one, at least 1")
        target_length = round(factor * structure.trained_length)
    loaded = structure.loaded_length
    if target_length is not None and target_length < loaded:
        raise InputError(
            f"target_length={target_length}: the model reads {loaded} tokens as it is; pass target_length={2 * loaded} or "
            f"more (factor counts from {structure.trained_length}, its length before any scaling)"
        )
    return target_length


def _design(structure: ModelStructure, chosen: Plan, target: int | None) -> Design:
    length = structure.loaded_length if target is None else target
    config: dict[str, Any] = {"posenc": MISSING}
    changed = _changed_types(structure)
    loaded = {rope.schedule["name"] for rope in structure.ropes.values()}
    schedule_only = chosen.map is None and not chosen.attention
    rotates = chosen.schedule is not None or chosen.map is not None
    # beside our attention, unchanged frequencies are ours too, which no cast rounds; unless they follow each text's length
    rotates = rotates or not (schedule_only or loaded & {"dynamic", "longrope"})
    rotations = _rotations(structure, chosen, changed, length) if rotates else {}
    # left as they are: a length that "dynamic" would read, and finer positions on which the rest could not be extended anew
    if chosen.schedule is not None and (schedule_only or "linear" not in loaded):
        plain = hf_config(structure, {t: rotations[t].frequencies() for t in changed}, length)
        config |= {name: getattr(plain, name) for name in CONFIGURED if hasattr(plain, name)}
    elif chosen.schedule is None and "dynamic" not in loaded:
        config |= {"max_position_embeddings": length, "rope_parameters": pinned(structure)}
    if schedule_only:
        return Design(rotations, frozenset(), (), config)
    _check_attention(structure, chosen)
    config["posenc"] = {"method": chosen.text, "target_length": target}
    identity = frozenset(changed if chosen.map is not None else ())
    # one object for all layers that are alike, which then share tables and plans
    mapped = {rotation: Mapped(rotation, chosen.map or {}) for rotation in {rotations[t] for t in identity}}
    of_layers = [_parts(layer, chosen, rotations, mapped) for layer in structure.layers]
    sums = {parts: combined(*parts) for parts in dict.fromkeys(of_layers)}
    encodings = tuple(sums[parts] for parts in of_layers)
    return Design(rotations, identity, encodings, config)


def _changed_types(structure: ModelStructure) -> list[str]:
    """The layer types whose rotation a method changes: all that share one, else those with full attention."""
    if structure.rope_per_type and "full_attention" in structure.ropes:
        return ["full_attention"]
    return list(structure.ropes)


def _rotations(structure: ModelStructure, chosen: Plan, changed: list[str], length: int) -> dict[str, Rotary]:
    """Layer type -> its new rotation, one object where the model has one."""

    def made(layer_type: str) -> Rotary:
        rope = structure.ropes[layer_type]
        new = chosen.schedule is not None and layer_type in changed
        schedule = _composed(rope, chosen.schedule or {}) if new else rope.at(length)
        return Rotary(structure.head_dim, rope.rope_theta, structure.layout, rope.rotary_dim, schedule)

    if structure.rope_per_type:
        return {layer_type: made(layer_type) for layer_type in structure.ropes}
    return dict.fromkeys(structure.ropes, made(changed[0]))


def _composed(rope: Rope, schedule: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule instead of the model's own scaling, but within the finer positions that a model under "linear" was
    trained on."""
    if rope.schedule["name"] != "linear":
        return dict(schedule)
    unit = float(rope.schedule["factor"])
    finer = create(_in_units(schedule, unit), rope.rotary_dim, rope.rope_theta)
    divisors = unit * stretch(finer, rope.rotary_dim, rope.rope_theta)
    return {"name": "explicit", "stretch": divisors.tolist(), "attention_factor": finer.attention_factor}


def _in_units(schedule: Mapping[str, Any], unit: float) -> dict[str, Any]:
    """A schedule whose lengths are counted in positions `unit` times as large."""
    scaled = dict(schedule)
    for key in scaled.keys() & {"original_max_positions", "length"}:
        scaled[key] = max(round(scaled[key] / unit), 1)
    return scaled | {"of": _in_units(scaled["of"], unit)} if isinstance(scaled.get("of"), Mapping) else scaled


def _parts(
    layer: Layer, chosen: Plan, rotations: Mapping[str, Rotary], mapped: Mapping[Rotary, Mapped]
) -> tuple[Encoding, ...]:
    """What the encoding of our attention in a layer is the sum of. One with a sliding window stays as it was."""
    parts: list[Encoding] = []
    rotation = rotations.get(layer.layer_type)
    if layer.rotates and rotation is not None and rotation in mapped:
        parts.append(mapped[rotation] if layer.window is None else rotation)
    if layer.window is None:
        parts += chosen.attention.values()
    if layer.softcap is not None:
        parts.append(CappedScores(layer.softcap))
    return tuple(parts)


def _check_attention(structure: ModelStructure, chosen: Plan) -> None:
    """Refuse what `posenc.attention` cannot serve."""
    if all(layer.window is not None for layer in structure.layers):
        raise InputError(
            f"method={chosen.text!r}: every layer of this model sees at most {structure.layers[0].window} tokens; load it "
            "with sliding_window=None to let it see more, or use a frequency schedule"
        )
    if "softmax_n" in chosen.attention and any(hasattr(layer.module, "sinks") for layer in structure.layers):
        raise InputError(f"method={chosen.text!r}: {structure.model_type} has learned sinks; leave softmax_n out")


def _report(structure: ModelStructure, chosen: Plan, design: Design, target: int | None) -> Extension:
    main = next((t for t in structure.ropes if t == "full_attention"), next(iter(structure.ropes)))
    rotation = design.rotations[main].frequencies() if design.rotations else structure.rope.frequencies()
    # a schedule may have another set for short texts
    lengths = (1, structure.loaded_length) if design.rotations else ()
    dim, theta = structure.rope.rotary_dim, structure.rope.rope_theta
    before = [create(structure.ropes[main].at(n), dim, theta) for n in lengths]
    exact = structure.loaded_length if chosen.exact is None else min(chosen.exact, structure.loaded_length)
    if not all(same_frequencies(rotation, each) for each in before):
        exact = 0
    item = next((p.element_size() for p in structure.model.parameters() if p.is_floating_point()), 4)
    reached = reach(chosen, rotation, structure.rope, structure.loaded_length, target)
    changed = sum(_changes(structure, chosen, layer) for layer in structure.layers)
    return Extension(
        model_type=structure.model_type,
        method=chosen.text,
        trained_length=structure.loaded_length,
        new_length=target,
        original_length=structure.trained_length,
        schedule=chosen.schedule,
        map=chosen.map,
        attention=tuple(str(encoding) for encoding in chosen.attention.values()),
        stretch=tuple(stretch(rotation, dim, theta).tolist()),
        attention_factor=rotation.attention_factor,
        exact_tokens=exact,
        tuning=chosen.tuning,
        raw_keys=chosen.map is not None,
        cache_bytes_per_token=2 * len(structure.layers) * structure.num_kv_heads * structure.head_dim * item,
        plain=not design.encodings,
        layers=(changed, len(structure.layers)),
        reach=reached,
        notes=tuple(_notes(structure, chosen, reached if changed else None, target)),
    )


def _changes(structure: ModelStructure, chosen: Plan, layer: Layer) -> bool:
    """Whether a method changes anything in a layer."""
    scheduled = chosen.schedule is not None and layer.layer_type in _changed_types(structure)
    mapped = chosen.map is not None and layer.window is None
    return (layer.rotates and (scheduled or mapped)) or (bool(chosen.attention) and layer.window is None)


def _notes(structure: ModelStructure, chosen: Plan, reached: int | None, target: int | None) -> Iterator[str]:
    if reached is not None and target is not None and reached * (1 + STEP) < target:
        yield f"reaches {reached} of {target} tokens by construction: what is farther apart was not trained"
    name = structure.rope.schedule["name"]
    if structure.rope.scaled and (name == "linear" or chosen.schedule is None):
        yield f"the model as loaded is scaled by {name}, which stays"
    elif structure.rope.scaled:
        yield (
            f"the model as loaded is scaled by {name} from {structure.trained_length} tokens; the new schedule replaces it "
            "and starts from there"
        )
    if chosen.schedule is not None and chosen.schedule["name"] in ("dynamic", "longrope"):
        yield "the schedule depends on the length: it is that of the new one for every text, shorter ones too"
    if without := sum(not layer.rotates for layer in structure.layers):
        yield f"layers without position: {without}"
    if windows := sum(layer.window is not None for layer in structure.layers):
        shared = chosen.schedule is not None and not structure.rope_per_type
        yield f"layers with a sliding window: {windows}, {'their frequencies change too' if shared else 'as before'}"
