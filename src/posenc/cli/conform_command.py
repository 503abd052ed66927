# SPDX-License-Identifier: Apache-2.0
"""posenc conform."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from posenc.cli.common import WithOutput
from posenc.errors import InputError
from posenc.lab.files import write_atomically
from posenc_cli.answers import DONE, FAILED, NOT_RUN
from posenc_cli.arguments import How

COLOURS = {True: "#2e7d32", False: "#b3261e", None: "#6b6b6b"}


def badge(kind: str, passed: bool | None) -> str:
    """A verdict as an SVG: the kind, and beside it in colour whether a function conforms."""
    from posenc.conformance.diagnosis import VERDICTS

    words = (kind, VERDICTS[passed])
    left, right = (7 * len(text) + 14 for text in words)
    texts = "".join(
        f'<text x="{x}" y="14" textLength="{7 * len(text)}">{text}</text>'
        for x, text in zip((7, left + 7), words, strict=True)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{kind}: {words[1]}">'
        f'<title>posenc conform, {kind}: {words[1]}</title><rect width="{left}" height="20" fill="#3b3b3b"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{COLOURS[passed]}"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g></svg>\n'
    )


@dataclass(kw_only=True)
class Conform(WithOutput):
    """Check your implementation against the authors' formulas, and say what is wrong with it."""

    examples: ClassVar = (
        "posenc conform mypackage.rope:apply --as rotary",
        "posenc conform frequencies.py:yarn --as yarn --badge yarn.svg",
    )

    function: Annotated[
        str,
        "the function to test; MODULE may be a path to a .py file",
        How("MODULE:FUNCTION", positional=True, code=True),
    ]
    kind: Annotated[str, "what it implements, see below", How("KIND", flag="as", names="kind")]
    badge: Annotated[str | None, "also write the verdict as a picture", How("FILE.svg")] = None

    @classmethod
    def epilog(cls) -> str:
        from posenc.conformance.kinds import conventions

        return (
            f"{conventions()}\n\nArguments are passed by name where the function has these names, the rest in order to the "
            "remaining parameters. Arrays are passed as torch tensors; tensors, numpy arrays and lists may be returned.\n"
            "Exit code 0: it conforms, 1: it does not, 3: it could not be run."
        )

    def run(self) -> int:
        from posenc.conformance.diagnosis import conform
        from posenc.conformance.kinds import get_kind
        from posenc.lab.user_code import load_function, printing_to_stderr

        get_kind(self.kind)
        if self.badge is not None:
            if not self.badge.endswith(".svg"):
                raise InputError(f"--badge {self.badge}: the picture is an SVG; name a file that ends in .svg")
            self.badge = os.path.abspath(self.badge)
            if not os.path.isdir(folder := os.path.dirname(self.badge)):
                raise InputError(f"--badge {self.badge}: there is no folder {folder}; make it first")
        if self.out:
            self.out = os.path.abspath(self.out)  # the tested code may change the folder
        with printing_to_stderr():  # what the tested code prints goes to stderr
            verdict = conform(load_function(self.function, may_import=True), self.kind)
        if self.badge is not None:
            write_atomically(Path(self.badge), badge(self.kind, verdict.passed))
        self.emit({"function": self.function, **verdict.to_dict()}, f"{self.function} as {verdict}")
        return NOT_RUN if verdict.passed is None else DONE if verdict.passed else FAILED
