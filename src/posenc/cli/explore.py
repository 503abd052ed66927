# SPDX-License-Identifier: Apache-2.0
"""posenc explore."""

import argparse
import json
import webbrowser
from pathlib import Path
from typing import Any

from posenc.cli.common import DONE
from posenc.errors import InputError, printable

NAME = "posenc-explorer.html"


def add_explore(parser: argparse.ArgumentParser) -> None:
    from posenc.report.explorer import fields

    parser.epilog = (
        "The file works offline and everything can be changed in it; the options say what it starts with. Encodings and "
        "methods take options after colons, as in --method yarn:beta_fast=16."
    )
    parser.add_argument("--out", metavar="FILE.html", default=NAME, help="the file to write")
    parser.add_argument("--open", action="store_true", help="show it in the browser")
    parser.add_argument("--json", action="store_true", help="print what it starts with and where it is, as JSON")
    kinds = {"integer": int, "number": float}
    for name, field in fields().items():
        parser.add_argument(
            f"--{name}",
            metavar={"integer": "N", "number": "X"}.get(field["kind"], "TEXT"),
            type=kinds.get(field["kind"], str),
            help=f"{field['meaning']} (default: {field['default'] or 'in order'})",
        )
    parser.set_defaults(run=run_explore)


def run_explore(options: argparse.Namespace, command: str) -> int:
    from posenc.files import Folder
    from posenc.report.explorer import page

    starting = state(options)
    text = page(starting)
    if not options.out:
        raise InputError("--out '': name a file")
    wanted = Path(options.out)
    folder, name = (wanted, NAME) if wanted.is_dir() else (wanted.parent, wanted.name)
    path = Folder(folder).write(name, text).resolve()
    found = {"file": str(path), "url": path.as_uri(), "state": starting}
    print(json.dumps(found, indent=1) if options.json else printable(f"{path}: open it in a browser, {path.as_uri()}"))
    if options.open:
        webbrowser.open(path.as_uri())
    return DONE


def state(options: argparse.Namespace) -> dict[str, Any]:
    """What the page starts with: the options that were given."""
    from posenc.report.explorer import fields

    return {name: value for name in fields() if (value := getattr(options, name)) is not None}
