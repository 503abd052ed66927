# SPDX-License-Identifier: Apache-2.0
"""Schedules as data and as text: made, read and written."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from posenc.errors import InputError, check_value, check_word
from posenc.frequencies.schedules import SCHEDULES, Frequencies
from posenc.spec import Spec, check_complete, check_options, parse_sum

__all__ = ["as_text", "complete", "create", "options_of", "parse"]


def create(schedule: Mapping[str, Any], head_dim: int, *, base: float) -> Frequencies:
    """The frequencies of a schedule given as data: {"name": "ntk", "factor": 4}.

    Those that are applied to another take it as "of": {"name": "resonance", "of": {"name": "ntk", "factor": 4}}."""
    name, function, options = _look_up(schedule)
    parameters = options_of(name)
    if isinstance(options.get("of"), Mapping) and "of" in parameters:
        options["of"] = create(options["of"], head_dim, base=base)
    check_options(f"schedule {name!r}", options, parameters, function)
    check_complete(f"schedule {name!r}", options, parameters)
    return function(head_dim, base=base, **options)


def parse(text: str) -> dict[str, Any]:
    """A schedule written as text, as data: "yarn:factor=4:beta_fast=16", and what is applied to it after a plus sign,
    "yarn:factor=4+resonance". Options that it does not name are omitted, see `complete`."""
    check_value("text", text, str)
    schedule: dict[str, Any] = {}
    for spec in parse_sum(text):
        name = spec.name
        known = options_of(name)
        if schedule and "of" not in known:
            appliable = ", ".join(sorted(n for n in SCHEDULES if "of" in options_of(n)))
            raise InputError(f"schedule {text!r}: {name} is not applied to another schedule; after + go {appliable}")
        read = spec.values(f"schedule {name!r}", [key for key in known if key != "of"])
        schedule = {"name": name, **read} | ({"of": schedule} if schedule else {})
    return schedule


def as_text(schedule: Mapping[str, Any]) -> str:
    """A schedule given as data, written as `parse` reads it."""
    name, _, options = _look_up(schedule)
    of = options.pop("of", None)
    text = str(Spec.of(name, options))
    return text if of is None else f"{as_text(of)}+{text}"


def complete(schedule: Mapping[str, Any], **shape: Any) -> dict[str, Any]:
    """A schedule as data with those of the further options that it cannot do without (no default, or None) and does
    not have: complete({"name": "yarn"}, factor=4.0, original_max_positions=8192, length=32768)."""
    name, _, options = _look_up(schedule)
    if isinstance(options.get("of"), Mapping):
        options["of"] = complete(options["of"], **shape)
    parameters = options_of(name)
    needed = {k: v for k, v in shape.items() if k in parameters and parameters[k].default in (Parameter.empty, None)}
    return {"name": name, **needed, **options}


def options_of(name: str) -> dict[str, Parameter]:
    """Options of a schedule, besides head_dim and base."""
    _, function, _ = _look_up({"name": name})
    return {key: p for key, p in signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY and key != "base"}


def _look_up(schedule: Mapping[str, Any]) -> tuple[str, Callable[..., Frequencies], dict[str, Any]]:
    if not isinstance(schedule, Mapping):
        raise InputError("pass a dict, such as {'name': 'ntk', 'factor': 4}, or parse a text", schedule=schedule)
    if not isinstance(schedule.get("name"), str):
        how = "name the schedule, as in {'name': 'ntk', 'factor': 4} or with_schedule('ntk', factor=4)"
        theirs = "transformers' rope_type is name, original_max_position_embeddings original_max_positions"
        raise InputError(how, theirs, schedule=schedule)
    options = dict(schedule)
    name = options.pop("name")
    check_word("schedule", name, SCHEDULES)
    return name, SCHEDULES[name], options
