# SPDX-License-Identifier: Apache-2.0
"""Every encoding, schedule, position map, method and task as a row of a table, from what the code declares."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any

from posenc.bibliography import entries
from posenc.encodings import ENCODINGS, create
from posenc.frequencies import SCHEDULES, options_of
from posenc.position_maps import MAPS
from posenc.pretrained.methods import METHODS
from posenc.tasks import TASKS
from posenc.texts import summary

SHAPE: dict[str, Any] = {"dim": 64, "num_heads": 4, "num_layers": 2, "max_positions": 512, "causal": True}
"""A model in which each encoding is made once, to see whether it learns anything."""
OF_THE_MODEL = (
    "dim",
    "num_heads",
    "head_dim",
    "num_kv_heads",
    "num_layers",
    "max_positions",
    "rows",
    "train_length",
    "bidirectional",
)
"""Arguments that `create` takes from the model's shape; the rest are options."""


def catalogue() -> dict[str, list[dict[str, Any]]]:
    """All there is: encodings, the frequency schedules that RoPE takes, the maps of its positions, the methods that extend
    pretrained models, and the tasks that these are evaluated on."""
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
        {
            "name": name,
            "options": [field.name for field in fields(task)],
            "summary": summary(task),
        }
        for name, task in TASKS.items()
    ]
    return {
        "encodings": rows(), "schedules": schedules, "position_maps": maps, "methods": methods, "tasks": tasks,
    }  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """name, class, where it acts, whether it learns, what its source claims past the training length, what it was held
    against, options, papers, summary."""
    papers = entries()
    found = []
    for name, cls in ENCODINGS.items():
        made = create(name, **SHAPE)
        found.append(
            {
                "name": name,
                "class": cls.__name__,
                "acts_on": list(cls.sites()),
                "learned": any(True for _ in made.parameters()),
                "shift_invariant": bool(made.shift_invariant),
                "extrapolates": cls.extrapolates,
                "equal_to": cls.equal_to,
                "options": [n for n in cls.arguments() if n not in OF_THE_MODEL],
                "arguments": {n: None if p.default is p.empty else p.default for n, p in cls.arguments().items()},
                "papers": [_short(papers[key]) for key in cls.papers],
                "summary": summary(cls),
            }
        )
    return found


def table() -> str:
    """The catalogue as text, one line each."""
    found = catalogue()
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
        for row in found["encodings"]
    ]
    schedules = [(row["name"], _with_options(row)) for row in found["schedules"]]
    maps = [(f"@{row['name']}", _with_options(row)) for row in found["position_maps"]]
    methods = [(row["name"], row["kind"], row["tuning"]) for row in found["methods"]]
    tasks = [(row["name"], _with_options(row)) for row in found["tasks"]]
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


def _short(entry: str) -> str:
    """First author, year and arXiv number of a BibTeX entry; a source that is not on arXiv goes by its address."""
    fields = {
        key.strip(): value.strip().strip("{},") for key, _, value in (x.partition("=") for x in entry.splitlines())
    }
    where = f"arXiv {fields['eprint']}" if "eprint" in fields else fields["url"].removeprefix("https://")
    return f"{fields['author'].split(',')[0].strip('{')} {fields['year']}, {where}"
