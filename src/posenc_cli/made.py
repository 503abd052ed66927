# SPDX-License-Identifier: Apache-2.0
"""What the program posenc answers without torch, as one table that is made of the code: by the build, into the wheel, or at
first use, into the user's cache."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

from posenc.cli.commands import COMMANDS
from posenc.encodings import ENCODINGS
from posenc.encodings.catalogue import FAMILIES, cite, pattern_rows, rows
from posenc.encodings.patterns import PATTERNS
from posenc.errors import summary
from posenc.frequencies import SCHEDULES, options_of, schedules
from posenc.position_maps import MAPS
from posenc.pretrained.methods import METHODS
from posenc.tasks import TASKS
from posenc_cli.arguments import Known
from posenc_cli.called import ALIASES, CHINESE

TUNING = {
    "works without": "published for use without fine-tuning", "needs it": "needs fine-tuning", "comes with it": "comes with the model",
}  # fmt: skip


def table() -> dict[str, Any]:
    """The commands, the names by what they are names of, the papers of encodings, and the rows of `posenc list`."""
    listed = listing()
    return {
        "commands": {name: command.described().to_json() for name, command in COMMANDS.items()},
        "known": {what: list(names) for what, names in known(listed).items()},
        "cite": {name: re.findall(r"^@\w+\{([^,]+),", cite(name), re.MULTILINE) for name in (*ENCODINGS, *PATTERNS)},
        "list": listed,
    }


def known(listed: dict[str, list[dict[str, Any]]]) -> Known:
    """Names by what they are names of."""
    from posenc.cli.extend_command import CHOSEN
    from posenc.conformance.kinds import KINDS
    from posenc.lab.compare import EXPERIMENTS

    return {
        "encoding": [*ENCODINGS, *PATTERNS],
        "method": [*METHODS, CHOSEN],
        "schedule": list(SCHEDULES),
        "task": list(TASKS),
        "training task": list(EXPERIMENTS),
        "kind": list(KINDS),
        "name": list(dict.fromkeys(row["name"] for of_kind in listed.values() for row in of_kind)),
    }


def listing() -> dict[str, list[dict[str, Any]]]:
    """All encodings, patterns of layers, frequency schedules of RoPE, position maps, methods that extend pretrained models,
    tasks and findings, from what the code declares. also: what people call them."""
    from posenc.conformance.kinds import KINDS
    from posenc.lab.learning_rates import table_rates
    from posenc.pretrained.findings import FINDINGS

    def row(name: str, split: str, documented: object, options: Iterable[str], formula: Sequence[str] = ()) -> dict[str, Any]:  # fmt: skip
        words = summary(documented)
        found = {"name": name, "title": re.split(split, words)[0], "options": list(options), "summary": words}
        return found | ({"formula": list(formula)} if formula else {})

    def titled(row: dict[str, Any]) -> dict[str, Any]:
        name = row.pop("name")
        title, of_encoding = row.pop("title"), {"family": FAMILIES[row.pop("family")][0]} if "family" in row else {}
        if "measured" in row:
            row["extrapolates"] = f"by the paper: {row['extrapolates'] or 'no claim'}; measured: {row.pop('measured')}"
        if row.get("learned") is True:
            factor = table_rates().get(name)
            how = (
                "not measured" if factor is None else "the model's" if factor == 1 else f"{factor:g} times the model's"
            )
            row["learning_rate"] = how
        also = ", ".join(filter(None, (ALIASES.get(name), CHINESE.get(name))))
        return {"name": name, "title": title, **of_encoding, "also": also} | row

    formulas = json.loads((Path(schedules.__file__).parent / "formulas.json").read_text(encoding="utf-8"))
    name, sentence = r"[:,] | \(", r"(?<=[.?])\s"
    return {
        "encodings": list(map(titled, sorted(rows(), key=lambda row: list(FAMILIES).index(row["family"])))),
        "patterns": list(map(titled, pattern_rows())),
        "schedules": [row(n, name, made, options_of(n), formulas["schedules"][n]) for n, made in SCHEDULES.items()],
        "position_maps": [row(n, name, made, signature(made).parameters, formulas["position_maps"][n]) for n, made in MAPS.items()],
        "methods": [
            {"name": n, "title": f"{method.kind}, {TUNING.get(method.tuning, method.tuning)}", "kind": method.kind, "tuning": method.tuning, "summary": method.summary}
            for n, method in METHODS.items()
        ],
        "tasks": [row(n, sentence, task, (field.name for field in fields(task))) for n, task in TASKS.items()],
        "findings": [
            {"name": n, "title": known.severity, "summary": known.meaning, "remedy": known.remedy}
            for n, known in FINDINGS.items()
        ],
        "kinds": [
            {"name": n, "title": kind.what, "call": kind.call, "returns": kind.returns, "summary": kind.what}
            for n, kind in KINDS.items()
        ],
    }  # fmt: skip
