# SPDX-License-Identifier: Apache-2.0
"""The ways to make a pretrained model read longer texts, by name: what each changes, what it promises, and how its options
follow from the trained and the new length.

A method is written as "yarn", "yarn:beta_fast=16", "ntk+log_n" or "rerope:window=2048+softmax_n": at most one frequency
schedule (with changes to it, "yarn+resonance"), at most one position map, and any of the others. "none" is direct
extrapolation.
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
from posenc.errors import InputError, summary, unknown
from posenc.spec import Spec, check_options, parse_sum

Kind = Literal["none", "schedule", "change", "map", "attention"]
Tuning = Literal["works without", "needs it", "comes with it"]


@dataclass(frozen=True)
class Lengths:
    """trained: tokens the model is good for now. target: tokens it is to read; None: not said."""

    trained: int
    target: int | None

    @property
    def new(self) -> int:
        """The target.

        Raises:
            InputError: it was not said.
        """
        if self.target is None:
            raise InputError("this method depends on the new length: pass factor= or target_length=")
        return self.target

    @property
    def factor(self) -> float:
        """new / trained, at least 1."""
        return max(self.new / self.trained, 1.0)


Default = Callable[[Lengths], Any]


@dataclass(frozen=True)
class Method:
    """kind: "schedule" of frequencies, "change" applied to one, position "map", or the "attention" around it.
    make: what its options go to. tuning: whether it works without fine-tuning. defaults: options from the lengths.
    exact: how many tokens from the start are read exactly as before, from its options and the lengths; None: a schedule,
    whose frequencies tell.
    """

    kind: Kind
    make: Callable[..., Any]
    tuning: Tuning = "works without"
    defaults: Mapping[str, Default] = field(default_factory=dict)
    exact: Callable[[Mapping[str, Any], Lengths], int] | None = None

    @property
    def summary(self) -> str:
        """What it does, in a sentence or two."""
        return summary(self.make)

    @property
    def signed(self) -> Callable[..., Any]:
        """What has the annotations of its options."""
        made: Any = self.make
        return made.__init__ if isinstance(made, type) else made  # type: ignore[misc]

    def options(self) -> dict[str, Parameter]:
        """What a user may set."""
        ours = ("head_dim", "base", "of")
        return {name: p for name, p in signature(self.make).parameters.items() if name not in ours}


def _schedule(name: str, tuning: Tuning = "works without") -> Method:
    return Method("schedule", frequencies.SCHEDULES[name], tuning)


def _none() -> None:
    """Direct extrapolation: nothing is changed, positions run past the trained length."""


def _within(lengths: Lengths) -> int:
    """A window that leaves distances as they are: half the trained length (a quarter to a half of it measured best,
    Su, kexue.fm/archives/9708, and on stories15M)."""
    return max(lengths.trained // 2, 1)


def _slowdown(lengths: Lengths) -> float:
    """Leaky ReRoPE's factor with which the last token of the new length is not farther than in training."""
    window = _within(lengths)
    return float(max(math.ceil((lengths.new - window) / max(lengths.trained - window, 1)), 1))


def _group(lengths: Lengths) -> int:
    """Self-Extend's rule: two thirds of the trained length hold the window and all groups (LongLM's README)."""
    window = lengths.trained // 4
    return max(math.ceil((lengths.new - window) / (lengths.trained * 2 / 3 - window)), 1)


METHODS: dict[str, Method] = {
    "none": Method("none", _none, exact=lambda o, n: n.trained),
    # all frequencies, or more and more from pair to pair
    "linear": _schedule("linear", "needs it"),
    "ntk": _schedule("ntk"),
    "ntk_old": _schedule("ntk_old"),
    "ntk_fixed": _schedule("ntk_fixed"),
    "ntk_mixed": _schedule("ntk_mixed"),
    "abf": _schedule("abf", "needs it"),
    # slow frequencies, with a ramp
    "yarn": _schedule("yarn"),
    "yarn_paper": _schedule("yarn_paper"),
    "yarn_revised": _schedule("yarn_revised"),
    "llama3": _schedule("llama3"),
    # by the length of the text, which is the new length for good
    "dynamic": _schedule("dynamic"),
    "longrope": _schedule("longrope", "comes with it"),
    "explicit": _schedule("explicit"),
    # changes to a schedule
    "resonance": Method("change", frequencies.resonance, "needs it"),
    "tapered": Method("change", frequencies.tapered, "needs it"),
    # position maps
    "rerope": Method("map", position_maps.rerope, defaults={"window": _within}, exact=lambda o, n: o["window"]),
    "leaky_rerope": Method(
        "map",
        position_maps.leaky_rerope,
        defaults={"window": _within, "factor": _slowdown},
        exact=lambda o, n: o["window"],
    ),
    "self_extend": Method(
        "map",
        position_maps.self_extend,
        defaults={"window": lambda n: max(n.trained // 4, 1), "group": _group},
        exact=lambda o, n: n.trained if o["group"] == 1 else o["window"],
    ),
    "dual_chunk": Method(
        "map",
        position_maps.dual_chunk,
        defaults={"chunk": lambda n: max(n.trained * 3 // 4, 2), "local": lambda n: max(n.trained // 8, 1)},
        exact=lambda o, n: o["chunk"],
    ),
    "string": Method(
        "map",
        position_maps.string,
        defaults={"shift": lambda n: max(n.trained // 3, 1), "window": lambda n: max(min(n.trained // 16, 128), 1)},
        exact=lambda o, n: o["shift"],
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
    ),
    "streaming": Method(
        "map",
        position_maps.streaming,
        defaults={"sinks": lambda n: 4, "recent": lambda n: max(n.trained - 4, 1)},
        exact=lambda o, n: o["sinks"] + o["recent"],
    ),
    "lm_infinite": Method(
        "map",
        position_maps.lm_infinite,
        defaults={"sinks": lambda n: 10, "window": lambda n: n.trained},
        exact=lambda o, n: o["window"],
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


@dataclass(frozen=True)
class Plan:
    """A method for given lengths. text: the method, with every option of its maps and attention, so that it means the same
    for a model that has been saved with a longer length. schedule and map are data, None where there is none; attention is
    encodings by name."""

    text: str
    schedule: dict[str, Any] | None = None
    map: dict[str, Any] | None = None
    attention: dict[str, Encoding] = field(default_factory=dict)
    exact: int | None = None
    """Tokens from the start that all parts but the schedule leave exactly as they were; None: all."""
    tuning: Tuning = "works without"
    factor: float | None = None
    """What was written as the schedule's own factor; None: it follows from the lengths."""


def plan(method: str, options: Mapping[str, Any], schedules: Lengths, others: Lengths) -> Plan:
    """Read a method. options: keywords, which go to the part that has them. schedules: the lengths for a frequency
    schedule, from what the model had before any scaling; others: from what it is good for now.

    Raises:
        InputError: an unknown method or option, an option that two parts have, or parts that do not go together.
    """
    parts = [_read(spec) for spec in parse_sum(method)]
    _distribute(parts, options)
    _compatible(method, [name for name, _ in parts])
    schedule: dict[str, Any] | None = None
    found: dict[str, Any] | None = None
    attention: dict[str, Encoding] = {}
    exact: list[int] = []
    tuning: Tuning = "works without"
    factor: float | None = None
    for name, given in parts:
        chosen = METHODS[name]
        check_options(name, given, chosen.options(), chosen.signed)
        if chosen.tuning != "works without":
            tuning = chosen.tuning
        if chosen.kind in ("schedule", "change"):
            factor = given.get("factor", factor)
            schedule = {"name": name, **given} | ({} if schedule is None else {"of": schedule})
            continue
        given |= {key: default(others) for key, default in chosen.defaults.items() if key not in given}
        if chosen.kind == "map":
            found = {"name": name, **given}
            position_maps.create(found)
        elif chosen.kind == "attention":
            attention[name] = chosen.make(**given)
        assert chosen.exact is not None
        exact.append(chosen.exact(given, others))
    if schedule is not None:
        shape: dict[str, Any] = {"original_max_positions": schedules.trained}
        if schedules.target is not None or needs_length(schedule):
            shape |= {"factor": schedules.factor, "length": schedules.new}
        schedule = frequencies.complete(schedule, **shape)
    text = "+".join(str(Spec.of(name, given)) for name, given in parts)
    return Plan(text, schedule, found, attention, min(exact, default=None), tuning, factor)


def written_factor(method: str) -> float | None:
    """How many times longer a schedule in the text says that texts become, as in "yarn:factor=4"; None: it does not.

    Raises:
        InputError: an unknown method or option, or a value that is no number.
    """
    for spec in parse_sum(method):
        name, given = _read(spec)
        if METHODS[name].kind == "schedule" and "length" not in METHODS[name].options():
            check_options(name, given, METHODS[name].options(), METHODS[name].signed)
            return given.get("factor")
    return None


def needs_length(schedule: Mapping[str, Any]) -> bool:
    """Whether a schedule as data lacks what only the new length tells."""
    of = schedule.get("of")
    wanted = {n for n, p in METHODS[schedule["name"]].options().items() if p.default is Parameter.empty}
    return bool({"factor", "length"} & wanted - set(schedule)) or (of is not None and needs_length(of))


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
                f"{key}={value}: {names} both have it; write it where it belongs, {owners[0][0]}:{key}={value}"
            )
        name, given = owners[0]
        if key in given:
            raise InputError(f"{key}={value}: the method's text says {name}:{key}={given[key]}; give it once")
        given[key] = value.tolist() if isinstance(value, Tensor) else value


def _compatible(method: str, names: list[str]) -> None:
    kinds = [METHODS[name].kind for name in names]
    if "none" in kinds and len(names) > 1:
        raise InputError(f"method={method!r}: none is by itself; leave it out")
    for kind, what in (("schedule", "frequency schedule"), ("map", "position map")):
        if sum(found == kind for found in kinds) > 1:
            both = " and ".join(name for name in names if METHODS[name].kind == kind)
            raise InputError(f"method={method!r}: {both} are two of a kind; take one {what}")
    if len(set(names)) < len(names):
        raise InputError(f"method={method!r}: the same part twice")
    order = [kind for kind in kinds if kind in ("schedule", "change")]
    if "schedule" in order[1:]:
        raise InputError(f"method={method!r}: what changes a schedule comes after it, as in yarn+resonance")
