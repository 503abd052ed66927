# SPDX-License-Identifier: Apache-2.0
"""posenc explore."""

from dataclasses import dataclass, make_dataclass
from typing import Annotated, ClassVar

from posenc.cli.command import Command
from posenc.cli.common import target, write_page
from posenc_cli.arguments import How

FILE = "posenc-explorer.html"
USUAL = {"": "in order", "False": "off"}
"""How the help writes a default."""


@dataclass(kw_only=True)
class Explore(Command):
    """Write the interactive page: encodings and extensions, computed in the browser."""

    examples: ClassVar = ("posenc explore --open", "posenc explore --encoding rope --method yarn --factor 4")

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
            "The file works offline, and everything can be changed in it. Encodings and methods take options after colons, "
            "as in --method yarn:beta_fast=16."
        )

    def run(self) -> int:
        from posenc.report.explorer import page

        state = dict(self.given)
        text = page(state)
        return write_page(self, target(self.out, FILE), text, state=state)
