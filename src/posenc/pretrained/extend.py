# SPDX-License-Identifier: Apache-2.0
"""Longer context for a pretrained model, in place, and back."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.encoding import Encoding
from posenc.encodings.mapped import Rerotated
from posenc.encodings.rotary import Rotary
from posenc.errors import InputError
from posenc.frequencies import create, stretch
from posenc.pretrained.attach import Attachment, Design, check_attention, combined, softmax_scale
from posenc.pretrained.changes import MISSING, ChangeReport, ModelChange
from posenc.pretrained.learned_table import TableExtension, has_learned_table, plan_table
from posenc.pretrained.methods import Lengths, Plan, check_lengths, from_plain_rope, plan, reach, written_factor
from posenc.pretrained.models import Layer, ModelStructure, Rope, longer_lengths, model_structure, record_of, unwrap
from posenc.pretrained.parameters import STEP
from posenc.pretrained.rope_config import SCORES, hf_config, pinned, same_frequencies, writable

CONFIGURED = ("rope_parameters", "max_position_embeddings", "original_max_position_embeddings")
"""Fields of a configuration from which plain transformers rotates as an extended model does, beside head_dim."""

TUNING = {
    "works without": "whether it is better than leaving the model alone, posenc.choose measures",
    "needs it": "needs fine-tuning",
    "comes with it": "for models that were fine-tuned for these numbers",
}


@dataclass(frozen=True)
class Extension(ChangeReport):
    """What `extend` did to a model."""

    model_type: str
    method: str
    """With every option that was set"""
    trained_length: int
    """Tokens the model was good for"""
    new_length: int | None
    """Tokens it is made for now, None: the method does not depend on it"""
    original_length: int
    """Tokens before the scaling that the model was loaded with"""
    schedule: dict[str, Any] | None
    """As data; None: there is none"""
    map: dict[str, Any] | None
    """Likewise"""
    attention: tuple[str, ...]
    """Other parts of the attention"""
    stretch: tuple[float, ...]
    """How many times slower each pair turns than in plain RoPE, fastest pair first"""
    attention_factor: float
    """Multiplies cos and sin"""
    exact_tokens: int
    """How many from the start of any text are read exactly as before, by construction"""
    tuning: str
    """Whether the method works without fine-tuning"""
    plain: bool
    """Plain transformers can do the same from the saved configuration"""
    layers: tuple[int, int]
    """How many are changed, of how many"""
    reach: int | None = None
    """Tokens within which no distance is beyond those of training, by construction; None: any number"""
    notes: tuple[str, ...] = ()
    """What else is worth knowing"""

    @property
    def expected(self) -> str:
        """What to expect within the context length that the model had before, by construction."""
        if self.exact_tokens >= self.trained_length:
            return f"outputs are unchanged up to {self.trained_length} tokens"
        if self.exact_tokens > 0:
            return f"outputs are unchanged for the first {self.exact_tokens} tokens of a text, and change after them"
        return "outputs change at all lengths, short inputs included"

    def __str__(self) -> str:
        length = self.reach if self.new_length is None else self.new_length
        new = "any length" if length is None else f"{length} tokens"
        lines = [f"{self.model_type} extended by {self.method}: from {self.trained_length} tokens to {new}"]
        if self.schedule is not None:
            plain = sum(abs(s - 1) < 1e-9 for s in self.stretch)
            slowest, fastest = max(self.stretch), min(self.stretch)
            lines.append(
                f"frequencies: {plain} of {len(self.stretch)} pairs as in plain RoPE"
                + (f", others up to {slowest:.4g} times slower" if slowest > 1 + 1e-9 else "")
                + (f", others up to {1 / fastest:.4g} times faster" if fastest < 1 - 1e-9 else "")
                + f"; cos and sin times {self.attention_factor:.4g}"
            )
        if self.map is not None:
            options = ", ".join(f"{key} {value}" for key, value in self.map.items() if key != "name")
            lines.append(f"positions: {self.map['name']} with {options}")
        if self.attention:
            lines.append(f"attention: {', '.join(self.attention)}")
        lines.append(f"layers: {self.layers[0]} of {self.layers[1]} changed")
        unchanged = "longer ones no better than before: only the length in the configuration was changed"
        tuning = TUNING[self.tuning] if self.layers[0] else unchanged
        lines.append(f"effect: {self.expected}; {tuning}")
        same, other = "does the same from the saved configuration", "cannot express this: extend after loading"
        lines.append(f"plain transformers {same if self.plain else other}")
        return "\n  ".join([*lines, *self.notes])


def extend(
    model: Any, method: str, *, factor: float | None = None, target_length: int | None = None, **options: Any
) -> Extension | TableExtension:
    """Extend the context window of a transformers causal language model, in place; `restore` undoes it.

    `posenc.extend` of a configuration alone (a config.json, a folder with one, its fields or a PretrainedConfig) gives what to write or
    type in each program, a `posenc.pretrained.recipe.Recipe`.

    model: Llama and similar models, see `FAMILIES` in posenc/pretrained/families.py, under a PEFT wrapper or not. method: see
    `posenc.pretrained.methods.METHODS`, as "yarn", "ntk+log_n" or "rerope:window=2048+softmax_n"; `posenc.choose` measures which.
    factor: the new length over the context length; or target_length, in tokens; both None: the factor that a schedule's own text
    states ("yarn:factor=4"). Methods that do not depend on the new length need neither. options: of the method's parts, as in
    `extend(model, "rerope", window=2048)`.

    A model that was loaded with a scaling (llama3, longrope, yarn, linear) keeps it: a schedule changes the frequencies that it has, each
    pair as the pair of plain RoPE that turns as often within the context length. "yarn+replace" discards the scaling and starts from
    plain RoPE, at the length before the scaling, from which factor counts then.

    BERT, GPT-2 and other models with a learned table take "hierarchical" (option alpha), see
    `learned_table.plan_table`.

    A model that is extended already is extended anew from what it was, never twice. If anything fails, the model stays as
    it was. max_position_embeddings becomes the new length, and rope_parameters what plain transformers needs for the same
    frequencies, so that save_pretrained keeps them; unless how the model was loaded ("dynamic", "linear") forbids it, which
    `load` handles.

    Raises:
        InputError: a model, method, option or length that is not supported, with the reason; options that do not reach
            the new length, with how far they do.
    """
    inner = unwrap(model)
    previous = record_of(inner)
    planned: Callable[..., ModelChange] = plan_table if has_learned_table(inner) else plan_rotary
    attachment = planned(inner, method, factor, target_length, options)
    report: Extension | TableExtension = attachment.report
    if previous is not None:
        if previous.report == report:
            return previous.report
        previous.detach()
    try:
        attachment.attach()
    except BaseException:
        if previous is not None:
            previous.attach()
        raise
    return report


def restore(model: Any) -> bool:
    """Undo `extend`: the very modules, tables and configuration values that were there are put back.

    Returns:
        Whether there was anything to undo.
    """
    extension = record_of(unwrap(model))
    if extension is not None:
        extension.detach()
    return extension is not None


def plan_rotary(
    inner: Any, method: str, factor: float | None, target_length: int | None, options: Mapping[str, Any]
) -> Attachment:
    """The extension of a rotary model, with everything made that can fail."""
    structure = model_structure(inner)
    if factor is None and target_length is None:
        factor = written_factor(method)
    counted = _before_scaling(structure) if from_plain_rope(method) else structure.loaded_length
    target = target_of(structure, factor, target_length, counted)
    cut = factor is not None and target is not None and factor * counted != target
    original, loaded = (Lengths(trained, target) for trained in (_before_scaling(structure), structure.loaded_length))
    chosen = plan(method, options, original, loaded, factor if cut else None)
    design = _design(structure, chosen, target)
    return Attachment(structure, design, _report(structure, chosen, design, target))


def _before_scaling(structure: ModelStructure) -> int:
    """Tokens for which plain RoPE is that of the model before any scaling."""
    schedule = structure.rope.schedule
    times = schedule["factor"] if schedule["name"] == "linear" else 1
    return max(round(structure.trained_length / times), 1)


def target_of(
    structure: ModelStructure, factor: float | None, target_length: int | None, counted: int | None = None
) -> int | None:
    """The new length; None: not given. counted: tokens from which the factor counts, those that the model reads unless given.

    Raises:
        InputError: both are given, or one that is shorter than the model's context length.
    """
    loaded = structure.loaded_length
    counted = counted or loaded
    check_lengths(factor, target_length)
    if factor is not None:
        target_length = round(factor * counted)
    if target_length is not None and target_length < loaded:
        raise InputError(
            f"the model reads {loaded} tokens already",
            f"pass target_length={2 * loaded} or more"
            + (
                f" (under replace, factor counts from {counted}, its length before the scaling)"
                if counted < loaded
                else ""
            ),
            target_length=target_length,
        )
    return None if target_length is None else int(target_length)  # of NumPy, transformers refuses it


def _design(structure: ModelStructure, chosen: Plan, target: int | None) -> Design:
    length = structure.loaded_length if target is None else target
    config: dict[str, Any] = {"posenc": MISSING}
    changed = structure.unbounded if chosen.rotates else tuple(structure.ropes)
    loaded = {rope.schedule["name"] for rope in structure.ropes.values()}
    raw = not chosen.rotates  # the rotary module turns nothing
    schedule_only = not raw and chosen.map is None and not chosen.attention
    rotates = chosen.schedule is not None or raw or chosen.map is not None
    # beside our attention, unchanged frequencies are ours too, which no cast rounds; unless they follow each text's length
    rotates = rotates or not (schedule_only or loaded & {"dynamic", "longrope"})
    rotations = _rotations(structure, chosen, changed, length) if rotates else {}
    composed = not chosen.replaces and any(rope.scaled for rope in structure.ropes.values())
    # left as they are: a length that "dynamic" would read, and frequencies on which the rest could not be extended anew
    repeats = not composed and chosen.factor is None and "tapered" not in chosen.text
    if chosen.schedule is not None and (schedule_only or repeats):
        made = {t: rotations[t].schedule for t in changed}
        plain = hf_config(structure, {t: rotations[t].frequencies() for t in changed}, length, made)
        config |= {name: getattr(plain, name) for name in CONFIGURED if hasattr(plain, name)}
        if vars(structure.config).get("head_dim", 0) is None:
            config["head_dim"] = plain.head_dim
    elif chosen.schedule is None and "dynamic" not in loaded:
        config |= {"max_position_embeddings": length, "rope_parameters": pinned(structure)}
    if schedule_only:
        return Design(rotations, frozenset(), (), config)
    config["posenc"] = {"method": chosen.text, "target_length": target}
    identity = frozenset(changed if raw else ())
    if not chosen.rotates and not chosen.attention:
        return Design(rotations, identity, (), config)
    check_attention(structure)
    if all(layer.window is not None for layer in structure.layers):
        raise InputError(
            f"every layer of this model sees at most {structure.layers[0].window} tokens",
            "load it with sliding_window=None to let it see more, or use a frequency schedule",
            method=chosen.text,
        )
    if "softmax_n" in chosen.attention and any(hasattr(layer.module, "sinks") for layer in structure.layers):
        raise InputError(f"{structure.model_type} has learned sinks", "leave softmax_n out", method=chosen.text)
    places = {
        number: rotations[layer.layer_type]
        for number, layer in enumerate(structure.layers)
        if chosen.map is not None and layer.rotates and layer.layer_type in changed
    }
    turning: dict[int, Encoding] = {}
    if chosen.map is not None:  # one object for all layers that are alike, which then share tables and plans
        mapped = {each: Rerotated(each, chosen.map) for each in set(places.values())}
        turning = {number: mapped[each] for number, each in places.items() if structure.layers[number].window is None}
    of_layers = []
    for number, layer in enumerate(structure.layers):
        parts = [turning[number]] if number in turning else []
        if layer.window is None:  # others stay as they were
            parts += chosen.attention.values()
        of_layers.append(tuple(parts))
    sums = {parts: combined(*parts) for parts in dict.fromkeys(of_layers)}
    mapped_layers = frozenset(() if chosen.map is None else changed)
    return Design(rotations, identity, tuple(sums[parts] for parts in of_layers), config, mapped_layers)


def _rotations(structure: ModelStructure, chosen: Plan, changed: Sequence[str], length: int) -> dict[str, Rotary]:
    """Layer type -> its new rotation, one object where the model has one."""

    def made(layer_type: str) -> Rotary:
        rope = structure.ropes[layer_type]
        new = chosen.schedule is not None and layer_type in changed
        schedule = _composed(rope, chosen, structure.loaded_length) if new else rope.at(length)
        return rope.rotation(schedule)

    if structure.rope_per_type:
        return {layer_type: made(layer_type) for layer_type in structure.ropes}
    return dict.fromkeys(structure.ropes, made(changed[0]))


def _composed(rope: Rope, chosen: Plan, length: int) -> dict[str, Any]:
    """The schedule of a method on the frequencies of a model that is loaded for `length` tokens: each pair is divided by what the
    schedule divides the pair of plain RoPE by that turns as often. Latent attention has YaRN's temperature in the softmax factor,
    since only a part of its channels rotates."""
    schedule = chosen.schedule or {}
    loaded = create(rope.at(length), rope.rotary_dim, base=rope.rope_theta)
    had = stretch(loaded, rope.rotary_dim, base=rope.rope_theta)
    if chosen.replaces or (bool((had == 1).all()) and loaded.attention_factor == 1):
        temperature = (
            rope.latent and schedule.get("name") == "yarn" and not schedule.keys() & {*SCORES, "attention_factor"}
        )
        return schedule | (SCORES if temperature else {})
    divisors = had.clone()
    for unit in had.unique():
        finer = create(_in_units(schedule, float(unit)), rope.rotary_dim, base=rope.rope_theta)
        divisors[had == unit] *= stretch(finer, rope.rotary_dim, base=rope.rope_theta)[had == unit]
    scale = loaded.attention_factor * finer.attention_factor
    return {"name": "explicit", "stretch": divisors.tolist(), "attention_factor": scale}


def _in_units(schedule: Mapping[str, Any], unit: float) -> dict[str, Any]:
    """A schedule that counts turns in positions `unit` times as large."""
    scaled = dict(schedule)
    if "original_max_positions" in scaled and "length" not in scaled:
        scaled["original_max_positions"] = max(round(scaled["original_max_positions"] / unit), 1)
    return scaled | {"of": _in_units(scaled["of"], unit)} if isinstance(scaled.get("of"), Mapping) else scaled


def _report(structure: ModelStructure, chosen: Plan, design: Design, target: int | None) -> Extension:
    main = next(t for t, rope in structure.ropes.items() if rope is structure.rope)
    rotation = design.rotations[main].frequencies() if design.rotations else structure.rope.frequencies()
    # a schedule may have another set for short inputs
    lengths = (1, structure.loaded_length) if design.rotations else ()
    dim, theta = structure.rope.rotary_dim, structure.rope.rope_theta
    before = [create(structure.ropes[main].at(n), dim, base=theta) for n in lengths]
    same = all(same_frequencies(rotation, each) for each in before)
    exact = (
        min(structure.loaded_length if chosen.exact is None else chosen.exact, structure.loaded_length) if same else 0
    )
    reached = reach(chosen, rotation, structure.rope, structure.loaded_length, target)
    changed = sum(_changes(structure, chosen, layer, same) for layer in structure.layers)
    return Extension(
        model_type=structure.model_type,
        method=chosen.text,
        trained_length=structure.loaded_length,
        new_length=target,
        original_length=structure.trained_length,
        schedule=chosen.schedule,
        map=chosen.map,
        attention=(*([] if chosen.rotates else ["no rotation"]), *(str(part) for part in chosen.attention.values())),
        stretch=tuple(stretch(rotation, dim, base=theta).tolist()),
        attention_factor=rotation.attention_factor,
        exact_tokens=exact,
        tuning="needs it" if _discards(structure, chosen) else chosen.tuning,
        plain=not design.encodings and chosen.rotates and writable(structure, design.config.get("rope_parameters", {})),
        layers=(changed, len(structure.layers)),
        reach=reached,
        notes=tuple(_notes(structure, chosen, design, reached if changed else None, target, rotation.attention_factor)),
    )


def _discards(structure: ModelStructure, chosen: Plan) -> bool:
    return structure.rope.scaled and chosen.schedule is not None and chosen.replaces


def _changes(structure: ModelStructure, chosen: Plan, layer: Layer, same: bool) -> bool:
    scheduled = not same and chosen.schedule is not None and layer.layer_type in structure.unbounded
    mapped = chosen.map is not None and layer.window is None
    around = bool(chosen.attention) and layer.window is None
    return around or (layer.rotates and (scheduled or mapped or not chosen.rotates))


def _notes(
    structure: ModelStructure, chosen: Plan, design: Design, reached: int | None, target: int | None, factor: float
) -> Iterator[str]:
    """factor: of cos and sin."""
    if reached is not None and target is not None and reached * (1 + STEP) < target:
        yield f"reaches {reached} of {target} tokens by construction: what is farther apart was not trained"
    for field, other in longer_lengths(structure.config, structure.loaded_length):
        yield (
            f"the configuration also states {field}={other:g}: lengths count from {structure.loaded_length}; if the model was "
            "trained to the longer one, set max_position_embeddings to it"
        )
    name = structure.rope.schedule["name"]
    if name in ("yarn", "longrope"):
        times, original, loaded = structure.rope.schedule["factor"], structure.trained_length, structure.loaded_length
        if not 1 / (1 + STEP) < times * original / loaded < 1 + STEP:
            yield (
                f"factor={times:g} of {name} and original_max_position_embeddings={original} make {round(times * original)} tokens, and "
                f"the model is for {loaded}: lengths count from {original}; if a number is wrong, correct it before extending "
                "(posenc.doctor(model) names the causes)"
            )
    if _discards(structure, chosen):
        yield (
            f"discards {name}, by which the model as loaded is scaled from {structure.trained_length} tokens: if it was trained so, it has to "
            "be trained anew; without replace the schedule starts from the frequencies that it has"
        )
    elif structure.rope.scaled:
        yield f"the model as loaded is scaled by {name}, which stays"
    if structure.family.latent and chosen.schedule is not None and "rope_parameters" in design.config:
        times = softmax_scale(structure, design.config["rope_parameters"]) * structure.head_dim**0.5
        if not math.isclose(times, 1, rel_tol=1e-6):
            yield f"all scores are multiplied by {times:.4g}, which is the temperature of yarn"
    if structure.family.latent and factor != 1:
        yield "the temperature multiplies the part of the scores that rotates, as transformers has it for such options"
    if chosen.schedule is not None and chosen.schedule["name"] in ("dynamic", "longrope"):
        yield "the schedule depends on the length: it is that of the new one for every text, shorter ones too"
    if without := sum(not layer.rotates for layer in structure.layers):
        yield f"layers without position: {without}"
    if windows := sum(layer.window is not None for layer in structure.layers):
        shared = chosen.schedule is not None and not structure.rope_per_type
        yield f"layers with a sliding window: {windows}, {'their frequencies change too' if shared else 'as before'}"
        widest = max(layer.window or math.inf for layer in structure.layers)
        if chosen.schedule is not None and widest <= structure.trained_length:
            yield (
                f"no query sees more than {widest} keys, so that no distance is longer than in training whatever the input's length: "
                "new frequencies change distances that were trained; without them, longer inputs rotate as trained"
            )
