# SPDX-License-Identifier: Apache-2.0
"""posenc list, posenc cite."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from typing import Annotated, Any

from posenc.cli.command import How
from posenc.cli.common import WithOutput, aligned
from posenc.errors import unknown


@dataclass(kw_only=True)
class List(WithOutput):
    """List every encoding, pattern of layers, schedule, method and task: what it is, its paper, its options."""

    names: Annotated[
        tuple[str, ...], "of these all that is declared (default: a line for each)", How("NAME", flag="name", positional=True)
    ] = ()  # fmt: skip

    def run(self) -> int:
        return self.emit(named(self.names), details(self.names)) if self.names else self.emit(catalogue(), table())


@dataclass(kw_only=True)
class Cite(WithOutput):
    """Print the BibTeX entries of an encoding's papers."""

    encoding: Annotated[
        str, "an encoding, or several joined by +", How("NAME", flag="name", positional=True, code=True)
    ]

    def run(self) -> int:
        from posenc.encodings.catalogue import cite

        bibtex = cite(self.encoding)
        return self.emit({"name": self.encoding, "bibtex": bibtex}, bibtex or f"{self.encoding} has no paper")


def catalogue() -> dict[str, list[dict[str, Any]]]:
    """All encodings, patterns of layers, frequency schedules of RoPE, position maps, methods that extend pretrained models, and tasks, from
    what the code declares."""
    from posenc.encodings.catalogue import pattern_rows, rows
    from posenc.errors import summary
    from posenc.frequencies import SCHEDULES, options_of, schedules
    from posenc.position_maps import FORMULAS, MAPS
    from posenc.pretrained.methods import METHODS
    from posenc.tasks import TASKS

    def row(name: str, documented: object, options: Iterable[str], formula: Sequence[str] = ()) -> dict[str, Any]:
        found = {"name": name, "options": list(options), "summary": summary(documented)}
        return found | ({"formula": list(formula)} if formula else {})

    return {
        "encodings": rows(),
        "patterns": pattern_rows(),
        "schedules": [row(n, schedule, options_of(n), schedules.FORMULAS[n]) for n, schedule in SCHEDULES.items()],
        "position_maps": [row(n, made, signature(made).parameters, FORMULAS[n]) for n, made in MAPS.items()],
        "methods": [{"name": name, "kind": method.kind, "tuning": method.tuning} for name, method in METHODS.items()],
        "tasks": [row(name, task, (field.name for field in fields(task))) for name, task in TASKS.items()],
    }


def named(names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of `catalogue` with these names, and no empty lists; a map's name may begin with "@".

    Raises:
        InputError: an unknown name.
    """
    listing, names = catalogue(), [name.removeprefix("@") for name in names]
    known = {row["name"] for rows in listing.values() for row in rows}
    for name in names:
        if name not in known:
            raise unknown("name", name, known)
    found = {kind: [row for row in rows if row["name"] in names] for kind, rows in listing.items()}
    return {kind: rows for kind, rows in found.items() if rows}


def details(names: Iterable[str]) -> str:
    """The rows of `named` as text, a line for each of their entries."""
    return "\n\n".join(_entry(kind, row) for kind, rows in named(names).items() for row in rows)


def _entry(kind: str, row: Mapping[str, Any]) -> str:
    lines = []
    for key, value in row.items():
        if key in ("name", "summary") or (key == "options" and "arguments" in row):
            continue
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, Mapping):
            value = " ".join(name if default is None else f"{name}={default}" for name, default in value.items())
        elif isinstance(value, (list, tuple)):
            value = {"options": " ", "acts_on": ", "}.get(key, "; ").join(value)
        if value:
            lines.append((key.replace("_", " "), value))
    head = f"{row['name']} ({kind.removesuffix('s').replace('_', ' ')})"
    return "\n".join(
        [": ".join(filter(None, (head, row.get("summary")))), *("  " + x for x in aligned(lines, str.ljust))]
    )


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
