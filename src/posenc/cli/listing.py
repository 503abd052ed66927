# SPDX-License-Identifier: Apache-2.0
"""Every encoding, schedule, position map, method and task as a row of a table, from what the code declares."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any

from posenc.encodings.catalogue import rows
from posenc.errors import summary
from posenc.frequencies import SCHEDULES, options_of
from posenc.position_maps import MAPS
from posenc.pretrained.methods import METHODS
from posenc.tasks import TASKS


def catalogue() -> dict[str, list[dict[str, Any]]]:
    """All there is: encodings, RoPE's frequency schedules, position maps, the methods that extend pretrained models, and
    the tasks that these are evaluated on."""
    schedules = [
        {"name": name, "options": list(options_of(name)), "summary": summary(schedule)}
        for name, schedule in SCHEDULES.items()
    ]
    maps = [
        {"name": name, "options": list(signature(made).parameters), "summary": summary(made)}
        for name, made in MAPS.items()
    ]
    methods = [{"name": name, "kind": method.kind, "tuning": method.tuning} for name, method in METHODS.items()]
    tasks = [
        {"name": name, "options": [field.name for field in fields(task)], "summary": summary(task)}
        for name, task in TASKS.items()
    ]
    return {
        "encodings": rows(), "schedules": schedules, "position_maps": maps, "methods": methods, "tasks": tasks,
    }  # fmt: skip


def table() -> str:
    """The catalogue as text, one line each."""
    listing = catalogue()
    head = ("name", "acts on", "learned", "past the training length, its source says", "paper", "options")
    body = [
        (
            row["name"],
            ", ".join(row["acts_on"]) or "nothing",
            "yes" if row["learned"] else "no",
            row["extrapolates"],
            "; ".join(row["papers"]) or "none",
            " ".join(row["options"]),
        )
        for row in listing["encodings"]
    ]
    schedules = [(row["name"], _with_options(row)) for row in listing["schedules"]]
    maps = [(f"@{row['name']}", _with_options(row)) for row in listing["position_maps"]]
    methods = [(row["name"], row["kind"], row["tuning"]) for row in listing["methods"]]
    tasks = [(row["name"], _with_options(row)) for row in listing["tasks"]]
    blocks = (
        (head, *body),
        (("rope's schedules", ""), *schedules),
        (("maps of its positions", ""), *maps),
        (("to extend a model", "kind", "fine-tuning"), *methods),
        (("tasks of posenc eval", ""), *tasks),
    )
    return "\n\n".join("\n".join(_aligned(block)) for block in blocks)


def _with_options(row: Mapping[str, Any]) -> str:
    return row["summary"] + (f" Options: {' '.join(row['options'])}" if row["options"] else "")


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
