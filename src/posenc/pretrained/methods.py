# SPDX-License-Identifier: Apache-2.0
"""The methods that extend the context window of a pretrained model, by name: what each changes, what it promises, how its options
follow from the training length and the new one, and how far it reaches.

A method is written as "yarn", "yarn:beta_fast=16", "ntk+log_n" or "rerope:window=2048+softmax_n": at most one frequency
schedule (with changes to it, "yarn+resonance"), at most one position map, and any of the others. "none" is direct
extrapolation. A schedule starts from the frequencies that the model was loaded with, but under "yarn+replace" from plain RoPE.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any, Literal

from torch import Tensor

from posenc import frequencies, position_maps
from posenc.encoding import Encoding
from posenc.encodings.sinks import SoftmaxN
from posenc.encodings.temperature import LogN, StepTemperature, Temperature
from posenc.errors import LARGEST_SEQUENCE, InputError, check_integers, check_numbers, not_none, summary, unknown
from posenc.frequencies import Frequencies
from posenc.pretrained.models import Rope
from posenc.pretrained.parameters import STEP  # `resonance` moves wavelengths by less, to integers
from posenc.spec import Spec, check_options, parse_sum

MethodKind = Literal["none", "nope", "schedule", "change", "replace", "map", "attention"]
Tuning = Literal["works without", "needs it", "comes with it"]
Options = Mapping[str, Any]

BY_FACTOR = ("linear", "ntk", "ntk_fixed", "ntk_mixed", "yarn", "yarn_paper", "yarn_revised", "mrrope")
"""Schedules whose factor is how many times longer inputs become. llama3's is not: Llama 3.1 reads 16 times its original
length with a factor of 8, for which it was trained."""
OF_PLAIN_ROPE = ("longrope", "explicit")
"""Schedules that state what each frequency of plain RoPE is divided by, whatever a model had before."""


@dataclass(frozen=True)
class Lengths:
    """trained: tokens the model was trained for. target: tokens it is to read; None: not given."""

    trained: int
    target: int | None

    @property
    def new(self) -> int:
        """The target; an InputError where it was not given."""
        if self.target is None:
            raise InputError("this method depends on the new length", "pass factor= or target_length=")
        return self.target

    @property
    def factor(self) -> float:
        """new / trained, at least 1."""
        return max(self.new / self.trained, 1.0)


@dataclass(frozen=True)
class Method:
    """A method of extension, or a part of one."""

    kind: MethodKind
    """"schedule" of frequencies, "change" applied to one, "replace", position "map", the "attention" around it, or "nope"."""
    make: Callable[..., Any]
    """Takes the options"""
    tuning: Tuning = "works without"
    """Whether it works without fine-tuning"""
    defaults: Mapping[str, Callable[[Lengths], Any]] = field(default_factory=dict)
    """Options from the lengths"""
    exact: Callable[[Options, Lengths], int] | None = None
    """How many tokens from the start are computed exactly as before, from the options and the lengths; None: a schedule, whose frequencies decide"""
    reach: Callable[[Options, float], float] | None = None
    """Of a map: the longest sequence in which it makes no distance beyond the tokens that the frequencies serve, from the options and those tokens"""
    for_longer: bool = True
    """Of a map: whether its defaults reach beyond the tokens that the frequencies serve"""

    @property
    def summary(self) -> str:
        """What it does, in a sentence or two."""
        return summary(self.make)

    def options(self) -> dict[str, Parameter]:
        """What a user may set."""
        ours = ("head_dim", "base", "of")
        return {name: p for name, p in signature(self.make).parameters.items() if name not in ours}

    def check(self, name: str, options: Options) -> None:
        """Raises:
        InputError: options that the method does not have, or values of another type."""
        made: Any = self.make
        check_options(name, options, self.options(), made.__init__ if isinstance(made, type) else made)  # type: ignore[misc]


def _schedule(name: str, tuning: Tuning = "works without") -> Method:
    return Method("schedule", frequencies.SCHEDULES[name], tuning)


def _none() -> None:
    """Direct extrapolation: nothing is changed, positions run past the context length."""


def _nope() -> None:
    """DroPE: nothing is rotated, in no layer, so that no position is new. Gelberg et al. 2025 train the model on, at its
    old length, and scale the scores of longer inputs by 1 + c ln s (`temperature`)."""


def _replace() -> None:
    """The scaling that the model was loaded with is discarded, and the schedule starts from plain RoPE at the length before it. For a
    scaling that the model was not trained with, as one added to a configuration."""


def _window(lengths: Lengths) -> int:
    """A window that leaves distances as they are: half the context length (a quarter to a half of it measured best,
    Su, kexue.fm/archives/9708, and on stories15M)."""
    return max(lengths.trained // 2, 1)


def _slowdown(lengths: Lengths) -> float:
    """Leaky ReRoPE's factor with which the last token of the new length is not farther than in training."""
    window = _window(lengths)
    return float(max(math.ceil((lengths.new - window) / max(lengths.trained - window, 1)), 1))


def _group(lengths: Lengths) -> int:
    """Self-Extend's rule: two thirds of the context length contain the window and all groups (LongLM's README)."""
    window = lengths.trained // 4
    return max(math.ceil((lengths.new - window) / (lengths.trained * 2 / 3 - window)), 1)


def _unbounded(fits: Callable[[Options, float], bool]) -> Callable[[Options, float], float]:
    """Of a map whose distances end somewhere: any length if that is within the served ones, else as without the map."""
    return lambda options, served: math.inf if fits(options, served) else served


def _grouped_reach(o: Options, served: float) -> float:
    """Far distances are i // group - j // group + window - window / group, see `position_maps.self_extend`."""
    window, group = o["window"], o["group"]
    if window >= served:
        return served
    shift = window - window // group if window % group == 0 else window - window / group
    return math.ceil(served - shift) * group


def _lampe_reach(o: Options, served: float) -> float:
    shift = o["window"] - 1 - o["window"] * o["used"] // (o["length"] - 1)
    return math.ceil(math.ceil(served - shift) * (o["length"] - 1) / o["used"])


METHODS: dict[str, Method] = {
    "none": Method("none", _none, exact=lambda o, n: n.trained),
    "nope": Method("nope", _nope, "needs it", exact=lambda o, n: 0),
    # all frequencies, or more and more from pair to pair
    "linear": _schedule("linear", "needs it"),
    **{name: _schedule(name) for name in ("ntk", "ntk_old", "ntk_fixed", "ntk_mixed")},
    "abf": _schedule("abf", "needs it"),
    # slow frequencies, with a ramp; and by the length of the text, fixed at the new length
    **{name: _schedule(name) for name in ("yarn", "yarn_paper", "yarn_revised", "mrrope", "llama3", "dynamic")},
    "longrope": _schedule("longrope", "comes with it"),
    "explicit": _schedule("explicit"),
    # changes to a schedule
    "resonance": Method("change", frequencies.resonance, "needs it"),
    "tapered": Method("change", frequencies.tapered, "needs it"),
    "replace": Method("replace", _replace),
    # position maps; string is for inputs within the context length, and gains little beyond
    "rerope": Method(
        "map",
        position_maps.rerope,
        defaults={"window": _window},
        exact=lambda o, n: o["window"],
        reach=_unbounded(lambda o, n: o["window"] < n),
    ),
    "leaky_rerope": Method(
        "map",
        position_maps.leaky_rerope,
        defaults={"window": _window, "factor": _slowdown},
        exact=lambda o, n: o["window"],
        reach=lambda o, n: math.ceil((n - o["window"]) * o["factor"] + o["window"]) if o["window"] < n else n,
    ),
    "self_extend": Method(
        "map",
        position_maps.self_extend,
        defaults={"window": lambda n: max(n.trained // 4, 1), "group": _group},
        exact=lambda o, n: n.trained if o["group"] == 1 else o["window"],
        reach=_grouped_reach,
    ),
    "jet_long": Method(
        "map",
        position_maps.jet_long,
        defaults={
            "trained": lambda n: n.trained,
            "window": lambda n: max(min(n.trained // 2, 2049), 1),  # the source's 2048 of 32768; half measured best
            "groups": lambda n: math.ceil(n.factor),
            "least": lambda n: 1,
        },
        exact=lambda o, n: o["trained"] if o["least"] == 1 else o["window"],
        reach=lambda o, n: math.ceil(n) * o["groups"] if max(o["window"], o["trained"]) <= n else n,
    ),
    "dual_chunk": Method(
        "map",
        position_maps.dual_chunk,
        defaults={"chunk": lambda n: max(n.trained * 3 // 4, 2), "local": lambda n: max(n.trained // 8, 1)},
        exact=lambda o, n: o["chunk"],
        reach=_unbounded(lambda o, n: min(2 * (o["chunk"] - o["local"]) - 1, o["chunk"]) < n),
    ),
    "string": Method(
        "map",
        position_maps.string,
        defaults={"shift": lambda n: max(n.trained // 3, 1), "window": lambda n: max(min(n.trained // 16, 128), 1)},
        exact=lambda o, n: o["shift"],
        reach=lambda o, n: n + o["shift"] - o["window"] if o["shift"] <= n else n,
        for_longer=False,
    ),
    "lampe": Method(
        "map",
        position_maps.lampe,
        defaults={
            "window": lambda n: max(min(n.trained // 4, 512), 1),
            "used": lambda n: max(n.trained * 3 // 8, 1),  # of Llama 2's 4096, the 1536 of the authors' code
            "length": lambda n: n.new,
        },
        exact=lambda o, n: o["window"],
        reach=_lampe_reach,
    ),
    "streaming": Method(
        "map",
        position_maps.streaming,
        defaults={"sinks": lambda n: 4, "recent": lambda n: max(n.trained - 4, 1)},
        exact=lambda o, n: o["sinks"] + o["recent"],
        reach=_unbounded(lambda o, n: o["sinks"] + o["recent"] <= n),
    ),
    "lm_infinite": Method(
        "map",
        position_maps.lm_infinite,
        defaults={"sinks": lambda n: 10, "window": lambda n: n.trained},
        exact=lambda o, n: o["window"],
        reach=_unbounded(lambda o, n: o["window"] <= n),
    ),
    # the attention around it
    "log_n": Method(
        "attention",
        LogN,
        defaults={"train_length": lambda n: n.trained, "clip": lambda n: True},
        exact=lambda o, n: o["train_length"] if o["clip"] else 0,
    ),
    "temperature": Method(
        "attention",
        Temperature,
        defaults={"beta": lambda n: (0.1 * math.log(n.factor) + 1) ** 2},  # YaRN's, for methods that bring none
        exact=lambda o, n: n.trained if o["beta"] == 1 else 0,
    ),
    "step_temperature": Method(
        "attention",
        StepTemperature,
        defaults={"train_length": lambda n: n.trained, "first": lambda n: 0},
        exact=lambda o, n: o["train_length"] - o["first"],
    ),
    "softmax_n": Method(
        "attention", SoftmaxN, defaults={"n": lambda n: 1.0}, exact=lambda o, n: 0 if o["n"] else n.trained
    ),
}
"""Every method by name; the table of `posenc.extend`."""


@dataclass
class Plan:
    """A method for given lengths.

    text: the method, with every option of its maps and attention, so that it means the same for a model that has been saved
    with a longer length. schedule and map are data, None where there is none; attention is encodings by name. exact: tokens
    from the start that all parts but the schedule leave exactly as they were; None: all. factor: that the text states.
    rotates: False where nothing is rotated at all. replaces: whether the schedule starts from plain RoPE, and not from the frequencies
    that the model has.
    """

    text: str
    schedule: dict[str, Any] | None = None
    map: dict[str, Any] | None = None
    attention: dict[str, Encoding] = field(default_factory=dict)
    exact: int | None = None
    tuning: Tuning = "works without"
    factor: float | None = None
    rotates: bool = True
    replaces: bool = False


def plan(method: str, options: Options, original: Lengths, loaded: Lengths, factor: float | None = None) -> Plan:
    """Read a method. options: keywords, which go to the part that has them. original: the lengths for a frequency schedule that
    starts from plain RoPE, from what the model had before any scaling; loaded: those for all else. factor: of a schedule, where
    it is not that of the lengths.

    Raises:
        InputError: an unknown method or option, an option that two parts have, or parts that do not go together.
    """
    parts = _parts(method, options)
    found, exact = Plan(method, replaces=from_plain_rope(method)), list[int]()
    for name, given in parts:
        if factor is not None and METHODS[name].kind == "schedule" and "factor" in METHODS[name].options():
            given.setdefault("factor", factor)
        chosen = METHODS[name]
        if chosen.tuning != "works without":
            found.tuning = chosen.tuning
        if chosen.kind in ("schedule", "change"):
            found.factor = given.get("factor", found.factor)
            found.schedule = {"name": name, **given} | ({} if found.schedule is None else {"of": found.schedule})
        if chosen.kind in ("schedule", "change", "replace"):
            continue
        given |= {key: default(loaded) for key, default in chosen.defaults.items() if key not in given}
        if chosen.kind == "map":
            found.map = {"name": name, **given}
            position_maps.create(found.map)
        elif chosen.kind == "attention":
            found.attention[name] = chosen.make(**given)
        assert chosen.exact is not None
        exact.append(chosen.exact(given, loaded))
    if found.schedule is not None:
        schedules = original if found.replaces else loaded
        shape: dict[str, Any] = {"original_max_positions": schedules.trained}
        if schedules.target is not None or _needs_length(found.schedule):
            shape |= {"factor": schedules.factor, "length": schedules.new}
        found.schedule = frequencies.complete(found.schedule, **shape)
    found.text = "+".join(str(Spec.of(name, given)) for name, given in parts)
    found.exact = min(exact, default=None)
    found.rotates = all(name != "nope" for name, _ in parts)
    return found


def check(method: str, options: Options, factor: float | None, target_length: int | None) -> None:
    """Refuse what no model takes, before one is loaded.

    Raises:
        InputError: an unknown method or option, a factor below 1, two lengths, or none where the method depends on it.
    """
    check_lengths(factor, target_length)
    _parts(method, options)
    if factor is None and target_length is None and written_factor(method) is None:
        plan(method, options, Lengths(2**20, None), Lengths(2**20, None))


def check_lengths(factor: float | None, target_length: int | None) -> None:
    """Raises:
    InputError: two lengths, what is no number, a factor below 1, or more tokens than a sequence may have."""
    check_numbers(None, LARGEST_SEQUENCE, **not_none(factor=factor))
    check_integers(1, LARGEST_SEQUENCE, **not_none(target_length=target_length))
    if factor is not None and target_length is not None:
        raise InputError("give one of them", factor=factor, target_length=target_length)
    if factor is not None and factor < 1:
        raise InputError("the new length over the context length, at least 1", factor=factor)


def _parts(method: str, options: Options) -> list[tuple[str, dict[str, Any]]]:
    parts = [_read(spec) for spec in parse_sum(method)]
    _distribute(parts, options)
    _check_compatible(method, [name for name, _ in parts])
    for name, given in parts:
        METHODS[name].check(name, given)
    return parts


def written_factor(method: str) -> float | None:
    """The factor that a schedule in the text states, as in "yarn:factor=4"; None: it states none.

    Raises:
        InputError: an unknown method or option, or a value that is not a number.
    """
    for spec in parse_sum(method):
        name, given = _read(spec)
        if METHODS[name].kind == "schedule" and "length" not in METHODS[name].options():
            METHODS[name].check(name, given)
            return given.get("factor")
    return None


def from_plain_rope(method: str) -> bool:
    """Whether the schedule of a method starts from plain RoPE, whatever a model had before.

    Raises:
        InputError: an unknown method.
    """
    return any(_read(spec)[0] in ("replace", *OF_PLAIN_ROPE) for spec in parse_sum(method))


def served_by(rotation: Frequencies, rope: Rope, length: int) -> float:
    """The longest text in which no pair turns farther than in training, over `length` tokens by the frequencies as loaded: as many
    times these tokens as its slowest pair is slower. Infinite if even that one completed a turn, after which there are no new
    angles."""
    trained = frequencies.create(rope.at(length), rope.rotary_dim, base=rope.rope_theta)
    slowest, now = float(trained.inv_freq[-1]), float(rotation.inv_freq[-1])
    return math.inf if slowest * length >= 2 * math.pi or now == 0 else length * slowest / now


def reach(chosen: Plan, rotation: Frequencies, rope: Rope, loaded_length: int, target: int | None) -> int | None:
    """Tokens that a method serves by construction; None: any number.

    rotation: the frequencies under the method. rope: the rotation as loaded. loaded_length: tokens the model serves now.

    Raises:
        InputError: options that do not reach the target; names the reach, and what to change.
    """
    if not chosen.rotates:
        return None
    served = float(loaded_length) if chosen.schedule is None else served_by(rotation, rope, loaded_length)
    reached, remedy = served, ""
    wanted = loaded_length + 1 if target is None else target
    if chosen.map is not None:
        method = METHODS[chosen.map["name"]]
        assert method.reach is not None
        reached = served if served == math.inf else max(method.reach(chosen.map, served), served)
        if method.for_longer and reached * (1 + STEP) < wanted:
            remedy = f"leave the options of {chosen.map['name']} out, whose defaults reach farther"
    elif chosen.factor is not None and served * (1 + STEP) < wanted:
        innermost: Options = chosen.schedule or {}
        while isinstance(innermost.get("of"), Mapping):
            innermost = innermost["of"]
        if innermost.get("name") in BY_FACTOR:
            counted = rope.original_length if chosen.replaces else loaded_length
            remedy = f"give factor={wanted / counted:g} or more, or leave factor out"
    if remedy:
        missing = "the model reads as many without it" if target is None else f"{target} are wanted"
        raise InputError(f"reaches {reached:.0f} tokens, and {missing}", remedy, method=chosen.text)
    return None if reached == math.inf else round(reached)


def _needs_length(schedule: Options) -> bool:
    """Whether a schedule as data lacks what only the new length determines."""
    of = schedule.get("of")
    wanted = {n for n, p in METHODS[schedule["name"]].options().items() if p.default is Parameter.empty}
    return bool({"factor", "length"} & wanted - set(schedule)) or (of is not None and _needs_length(of))


def _read(spec: Spec) -> tuple[str, dict[str, Any]]:
    if spec.name not in METHODS:
        raise unknown("method", spec.name, METHODS)
    return spec.name, spec.values(spec.name, METHODS[spec.name].options())


def _distribute(parts: list[tuple[str, dict[str, Any]]], options: Mapping[str, Any]) -> None:
    """Give each keyword to the one part that has such an option."""
    for key, value in options.items():
        owners = [(name, given) for name, given in parts if key in METHODS[name].options()]
        if not owners:
            raise unknown("option", key, {o for name, _ in parts for o in METHODS[name].options()} | {"target_length"})
        if len(owners) > 1:
            names = " and ".join(name for name, _ in owners)
            raise InputError(
                f"{names} both have it",
                f"write it where it belongs, {owners[0][0]}:{key}={value}",
                argument=key,
                value=value,
            )
        name, given = owners[0]
        if key in given:
            raise InputError(
                f"the method already has {name}:{key}={given[key]}", "give it once", argument=key, value=value
            )
        given[key] = value.tolist() if isinstance(value, Tensor) else value


def _check_compatible(method: str, names: list[str]) -> None:
    kinds = [METHODS[name].kind for name in names]
    if "none" in kinds and len(names) > 1:
        raise InputError("none does not combine with others", "leave it out", method=method)
    if "nope" in kinds and set(kinds) - {"nope", "attention"}:
        raise InputError(
            "under nope nothing is rotated, so that frequencies and position maps have no effect",
            "leave them out, or nope",
            method=method,
        )
    for kind, what in (("schedule", "frequency schedule"), ("map", "position map")):
        if sum(each == kind for each in kinds) > 1:
            both = " and ".join(name for name in names if METHODS[name].kind == kind)
            raise InputError(f"{both} are two of a kind", f"take one {what}", method=method)
    if len(set(names)) < len(names):
        raise InputError("has the same part twice", method=method)
    order = [kind for kind in kinds if kind in ("schedule", "change")]
    if "schedule" in order[1:]:
        raise InputError("what changes a schedule comes after it, as in yarn+resonance", method=method)
    if "replace" in kinds and "schedule" not in kinds:
        raise InputError("replace needs a schedule to start from plain RoPE, as in yarn+replace", method=method)
