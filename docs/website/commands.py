# SPDX-License-Identifier: Apache-2.0
"""What the program posenc answers without torch: `python -m website.commands`, in docs/, writes src/posenc_cli/table.json, and,
by shtab, the scripts with which shells complete commands."""

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any

from posenc.cli import COMMANDS
from posenc.encodings import ENCODINGS
from posenc.encodings.catalogue import FAMILIES, cite, pattern_rows, rows
from posenc.encodings.patterns import PATTERNS
from posenc.errors import summary
from posenc.frequencies import SCHEDULES, options_of, schedules
from posenc.position_maps import FORMULAS, MAPS
from posenc.pretrained.methods import METHODS
from posenc.tasks import TASKS
from posenc_cli.answers import SHELLS
from posenc_cli.arguments import Described, Known, build
from website.extensions import MAP_PAGES, SCHEDULE_PAGES
from website.keywords import ALIASES, CHINESE
from website.page import ROOT

FOLDER = ROOT / "src/posenc_cli"
FILES = ("FILE", "DIR", "FILE.html", "FILE.svg")
"""Values that shells complete by the names of files."""


def table() -> dict[str, Any]:
    """What table.json has."""
    return {
        "commands": {name: command.described().to_json() for name, command in COMMANDS.items()},
        "known": {what: list(names) for what, names in known().items()},
        "cite": {name: re.findall(r"^@\w+\{([^,]+),", cite(name), re.MULTILINE) for name in (*ENCODINGS, *PATTERNS)},
        "list": listing(),
    }


def known() -> Known:
    """Names by what they are names of."""
    from posenc.conformance.kinds import KINDS
    from posenc.lab.compare import EXPERIMENTS

    return {
        "encoding": [*ENCODINGS, *PATTERNS],
        "method": [*METHODS, "auto"],
        "schedule": list(SCHEDULES),
        "task": list(TASKS),
        "training task": list(EXPERIMENTS),
        "kind": list(KINDS),
        "name": list(dict.fromkeys(row["name"] for of_kind in listing().values() for row in of_kind)),
    }


def listing() -> dict[str, list[dict[str, Any]]]:
    """All encodings, patterns of layers, frequency schedules of RoPE, position maps, methods that extend pretrained models, and
    tasks, from what the code declares. also: what people call them."""

    def row(name: str, title: str, documented: object, options: Iterable[str], formula: Sequence[str] = ()) -> dict[str, Any]:  # fmt: skip
        found = {"name": name, "title": title, "options": list(options), "summary": summary(documented)}
        return found | ({"formula": list(formula)} if formula else {})

    def titled(row: dict[str, Any]) -> dict[str, Any]:
        name = row.pop("name")
        title, of_encoding = row.pop("title"), {"family": FAMILIES[row.pop("family")][0]} if "family" in row else {}
        also = ", ".join(filter(None, (ALIASES.get(name), CHINESE.get(name))))
        return {"name": name, "title": title, **of_encoding, "also": also} | row

    return {
        "encodings": list(map(titled, sorted(rows(), key=lambda row: list(FAMILIES).index(row["family"])))),
        "patterns": list(map(titled, pattern_rows())),
        "schedules": [row(n, SCHEDULE_PAGES[n][0], schedule, options_of(n), schedules.FORMULAS[n]) for n, schedule in SCHEDULES.items()],
        "position_maps": [row(n, MAP_PAGES[n][0], made, signature(made).parameters, FORMULAS[n]) for n, made in MAPS.items()],
        "methods": [
            {"name": n, "title": f"{method.kind}, {TUNING.get(method.tuning, method.tuning)}", "kind": method.kind, "tuning": method.tuning, "summary": method.summary}
            for n, method in METHODS.items()
        ],
        "tasks": [row(n, first_sentence(summary(task)), task, (field.name for field in fields(task))) for n, task in TASKS.items()],
    }  # fmt: skip


TUNING = {
    "works without": "works without fine-tuning", "needs it": "needs fine-tuning", "comes with it": "comes with the model",
}  # fmt: skip


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?])\s", text)[0]


def completion(shell: str, commands: dict[str, Any], names: Known) -> str:
    """The script with which a shell completes the commands of a table."""
    import shtab  # type: ignore[import-not-found, unused-ignore]

    parser = argparse.ArgumentParser(prog="posenc", description="positional encodings")
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    of_commands = parser.add_subparsers()
    for name, data in commands.items():
        described = Described.from_json(name, data)
        made = build(described)
        about = data["about"].splitlines()[0]
        one = of_commands.add_parser(name, help=about, description=about, add_help=False, parents=[made])
        for action in one._actions:
            setting = described.settings.get(action.dest)
            if setting is not None and setting.how.names:
                action.choices = names[setting.how.names]
            elif setting is not None and setting.choices:
                action.choices = setting.choices
            elif action.metavar in FILES or action.dest == "model":
                action.complete = shtab.DIR if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
            action.help = first_sentence(action.help or "")
    of_commands.add_parser("completion", help="print the script with which a shell completes commands").add_argument(
        "shell", choices=SHELLS
    )
    text: str = shtab.complete(parser, shell)
    return text


def write() -> None:
    """Write all files."""
    made = table()
    (FOLDER / "table.json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for shell in SHELLS:
        (FOLDER / f"completion.{shell}").write_text(
            completion(shell, made["commands"], made["known"]), encoding="utf-8"
        )


if __name__ == "__main__":
    write()
