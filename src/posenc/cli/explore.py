# SPDX-License-Identifier: Apache-2.0
"""posenc explore."""

import json
import webbrowser
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated

from posenc.cli.command import Command, How
from posenc.cli.common import DONE
from posenc.errors import InputError, printable

FILE = "posenc-explorer.html"
USUAL = {"": "in order", "False": "off"}
"""How the help writes a default."""


@dataclass(kw_only=True)
class Explore(Command):
    """Write the interactive page: every encoding and extension, computed in the browser."""

    out: Annotated[str, "the file to write", How("FILE.html")] = FILE
    open: Annotated[bool, "show it in the browser"] = False

    @classmethod
    def groups(cls) -> dict[str, type]:
        from posenc.report.explorer import fields

        kinds = {"integer": int, "number": float, "boolean": bool}
        hints = (
            (
                name,
                Annotated[
                    kinds.get(field["kind"], str),
                    f"{field['meaning']} (default: {USUAL.get(str(field['default']), field['default'])})",
                ],
            )
            for name, field in fields().items()
        )
        return {"what the page shows first": make_dataclass("State", hints)}

    @classmethod
    def epilog(cls) -> str:
        return (
            "The file works offline, and everything can be changed in it. Encodings and methods take options after colons,\n"
            "as in --method yarn:beta_fast=16."
        )

    def run(self) -> int:
        from posenc.lab.files import Folder
        from posenc.report.explorer import page

        state = dict(self.given)
        text = page(state)
        if not self.out:
            raise InputError("--out '': name a file")
        wanted = Path(self.out)
        folder, name = (wanted, FILE) if wanted.is_dir() else (wanted.parent, wanted.name)
        path = Folder(folder).write(name, text).resolve()
        result = {"file": str(path), "url": path.as_uri(), "state": state}
        shown = f"{path}: open it in a browser, {path.as_uri()}"
        print(json.dumps(result, indent=1) if self.json else printable(shown))
        if self.open:
            webbrowser.open(path.as_uri())
        return DONE
