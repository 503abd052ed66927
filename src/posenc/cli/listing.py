# SPDX-License-Identifier: Apache-2.0
"""posenc list, posenc cite."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from typing import Annotated, Any

from posenc.cli.command import How
from posenc.cli.common import WithOutput, aligned


@dataclass(kw_only=True)
class List(WithOutput):
    """List every encoding, pattern of layers, schedule, method and task: what it is, its paper, its options."""

    def run(self) -> int:
        return self.emit(catalogue(), table())


@dataclass(kw_only=True)
class Cite(WithOutput):
    """Print the BibTeX entries of an encoding's papers."""

    encoding: Annotated[str, "an encoding, or several joined by +", How("NAME", flag="name", positional=True)]

    def run(self) -> int:
        from posenc.encodings.catalogue import cite

        bibtex = cite(self.encoding)
        return self.emit({"name": self.encoding, "bibtex": bibtex}, bibtex or f"{self.encoding} has no paper")


def catalogue() -> dict[str, list[dict[str, Any]]]:
    """All encodings, patterns of layers, frequency schedules of RoPE, position maps, methods that extend pretrained models, and tasks, from
    what the code declares."""
    from posenc.encodings.catalogue import pattern_rows, rows
    from posenc.errors import summary
    from posenc.frequencies import SCHEDULES, options_of
    from posenc.position_maps import MAPS
    from posenc.pretrained.methods import METHODS
    from posenc.tasks import TASKS

    def row(name: str, documented: object, options: Iterable[str]) -> dict[str, Any]:
        return {"name": name, "options": list(options), "summary": summary(documented)}

    return {
        "encodings": rows(),
        "patterns": pattern_rows(),
        "schedules": [row(name, schedule, options_of(name)) for name, schedule in SCHEDULES.items()],
        "position_maps": [row(name, made, signature(made).parameters) for name, made in MAPS.items()],
        "methods": [{"name": name, "kind": method.kind, "tuning": method.tuning} for name, method in METHODS.items()],
        "tasks": [row(name, task, (field.name for field in fields(task))) for name, task in TASKS.items()],
    }


def table() -> str:
    """The catalogue as text, one line each."""
    listing = catalogue()
    head = ("name", "acts on", "learned", "past the training length, its source says", "paper", "options")
    encodings = [
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
    methods = [(row["name"], row["kind"], row["tuning"]) for row in listing["methods"]]
    blocks = (
        (head, *encodings),
        (("patterns of layers", ""), *map(_with_models, listing["patterns"])),
        (("rope's schedules", ""), *map(_with_options, listing["schedules"])),
        (
            ("maps of its positions", ""),
            *(("@" + name, text) for name, text in map(_with_options, listing["position_maps"])),
        ),
        (("to extend a model", "kind", "fine-tuning"), *methods),
        (("tasks of posenc eval", ""), *map(_with_options, listing["tasks"])),
    )
    return "\n\n".join("\n".join(aligned(block, str.ljust)) for block in blocks)


def _with_models(row: Mapping[str, Any]) -> tuple[str, str]:
    name, text = _with_options(row)
    return name, f"{text}. Models: {row['models']}. Paper: {'; '.join(row['papers'])}"


def _with_options(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["name"], row["summary"] + (f" Options: {' '.join(row['options'])}" if row["options"] else "")
