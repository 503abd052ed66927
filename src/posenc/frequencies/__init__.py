# SPDX-License-Identifier: Apache-2.0
"""RoPE's frequency schedules: pure functions of numbers, float64, no configuration object and no hidden state.

A schedule is a function of head_dim, base and its own options, or the same as data, {"name": "yarn", "factor": 4.0,
"original_max_positions": 8192}, which encodings keep and `create` computes.
"""

import math
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from posenc.checks import checked
from posenc.errors import InputError, unknown
from posenc.frequencies.applied import fastest, proportional, resonance, tapered
from posenc.frequencies.by_base import abf, default, explicit, linear, ntk, ntk_fixed, ntk_mixed, ntk_old
from posenc.frequencies.by_length import dynamic, dynamic_factor, longrope
from posenc.frequencies.by_parts import llama3, softmax_factor, yarn, yarn_paper, yarn_revised
from posenc.frequencies.difference import Difference, compared
from posenc.frequencies.vector import Frequencies, a_length, at_least_one, stretch, wavelengths
from posenc.spec import Spec, check_options, parse_sum

# fmt: off
__all__ = [
    "SCHEDULES", "Difference", "Frequencies", "abf", "as_text", "complete", "create", "default", "diff", "dynamic",
    "dynamic_factor", "explicit", "fastest", "linear", "llama3", "longrope", "ntk", "ntk_fixed", "ntk_mixed", "ntk_old",
    "options_of", "parse", "proportional", "resonance", "softmax_factor", "stretch", "tapered", "wavelengths", "yarn",
    "yarn_paper", "yarn_revised",
]
# fmt: on

SCHEDULES: dict[str, Callable[..., Frequencies]] = {
    schedule.__name__: schedule
    for schedule in (
        # all pairs, or more and more from pair to pair
        *(default, linear, ntk, ntk_old, ntk_fixed, ntk_mixed, abf),
        # slow pairs, with a ramp
        *(yarn, yarn_paper, yarn_revised, llama3),
        # by the length of the text
        *(dynamic, longrope),
        # slow pairs stopped, and changes to another schedule
        *(proportional, tapered, resonance),
        # anything
        explicit,
    )
}


@checked
def create(schedule: Mapping[str, Any], head_dim: int, base: float) -> Frequencies:
    """The frequencies of a schedule given as data: {"name": "ntk", "factor": 4}.

    Those that are applied to another take it as "of": {"name": "resonance", "of": {"name": "ntk", "factor": 4}}.

    Raises:
        InputError: an unknown name, options that the schedule does not take, or one that it lacks.
    """
    name, function, options = _looked_up(schedule)
    parameters = options_of(name)
    if isinstance(options.get("of"), Mapping) and "of" in parameters:
        options["of"] = create(options["of"], head_dim, base)
    check_options(f"schedule {name!r}", options, parameters, function)
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in options]
    if missing:
        raise InputError(f"schedule {name!r} needs {' and '.join(missing)}")
    return function(head_dim, base, **options)


@checked
def parse(text: str) -> dict[str, Any]:
    """A schedule written as text, as data: "yarn:factor=4:beta_fast=16", and what is applied to it after a plus sign,
    "yarn:factor=4+resonance". Options it does not name are left out, see `complete`.

    Raises:
        InputError: an unknown name or option, or something after a plus that is not applied to others.
    """
    found: dict[str, Any] | None = None
    for spec in parse_sum(text):
        name = spec.name
        if name not in SCHEDULES:
            raise unknown("schedule", name, SCHEDULES)
        known = options_of(name)
        if found is not None and "of" not in known:
            appliable = ", ".join(sorted(n for n in SCHEDULES if "of" in options_of(n)))
            raise InputError(f"schedule {text!r}: {name} is not applied to another schedule; after + go {appliable}")
        read = spec.values(f"schedule {name!r}", [key for key in known if key != "of"])
        found = {"name": name, **read} | ({} if found is None else {"of": found})
    assert found is not None
    return found


@checked
def as_text(schedule: Mapping[str, Any]) -> str:
    """A schedule given as data, written as `parse` reads it."""
    name, _, options = _looked_up(schedule)
    of = options.pop("of", None)
    text = str(Spec.of(name, options))
    return text if of is None else f"{as_text(of)}+{text}"


@checked
def complete(schedule: Mapping[str, Any], **shape: Any) -> dict[str, Any]:
    """A schedule as data with those of the further options that it cannot do without (no default, or None) and does
    not have: complete({"name": "yarn"}, factor=4.0, original_max_positions=8192, length=32768).

    Raises:
        InputError: an unknown name.
    """
    name, _, options = _looked_up(schedule)
    if isinstance(options.get("of"), Mapping):
        options["of"] = complete(options["of"], **shape)
    parameters = options_of(name)
    needed = {k: v for k, v in shape.items() if k in parameters and parameters[k].default in (Parameter.empty, None)}
    return {"name": name, **needed, **options}


@checked
def diff(
    first: str | Mapping[str, Any],
    second: str | Mapping[str, Any],
    head_dim: int = 64,
    base: float = 10000.0,
    *,
    factor: float = 4.0,
    length: int = 4096,
    at: float | None = None,
) -> Difference:
    """Two schedules side by side, as texts ("yarn:beta_fast=16") or as data.

    factor and length, the trained one, go to the schedules that need them and do not say them. at: the distance in
    tokens at which phases are compared, factor * length if None; schedules that depend on the text's length take it so.

    Raises:
        InputError: what `parse` and `create` refuse, a length below 1, a distance not above 0.
    """
    at = at_least_one(factor) * a_length(length) if at is None else at
    if not 0 < at < math.inf:
        raise InputError(f"at={at}: the distance between two tokens, a number above 0")
    shape = {"factor": factor, "original_max_positions": length, "length": math.ceil(at)}
    given = [complete(parse(s) if isinstance(s, str) else s, **shape) for s in (first, second)]
    names = [s if isinstance(s, str) else as_text(s) for s in (first, second)]
    full = [as_text(schedule) for schedule in given]
    found = [create(schedule, head_dim, base) for schedule in given]
    return compared((names[0], names[1]), (full[0], full[1]), (found[0], found[1]), head_dim, base, length, at)


@checked
def options_of(name: str) -> dict[str, Parameter]:
    """What a schedule takes besides head_dim and base.

    Raises:
        InputError: an unknown name.
    """
    _, function, _ = _looked_up({"name": name})
    return {key: p for key, p in signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}


def _looked_up(schedule: Mapping[str, Any]) -> tuple[str, Callable[..., Frequencies], dict[str, Any]]:
    options = dict(schedule)
    name = options.pop("name", None)
    if not isinstance(name, str) or name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    return name, SCHEDULES[name], options
