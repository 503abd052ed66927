# SPDX-License-Identifier: Apache-2.0
"""posenc check."""

import inspect
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from posenc.cli.command import check_ours
from posenc.cli.common import WithOutput
from posenc.errors import InputError, check_word
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
        f'<title>posenc check, {kind}: {words[1]}</title><rect width="{left}" height="20" fill="#3b3b3b"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{COLOURS[passed]}"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g></svg>\n'
    )


@dataclass(kw_only=True)
class Check(WithOutput):
    """Check an encoding in small models, or a function of any package against the authors' formulas.

    An encoding is run under padding, packing, windows, KV caches and more, on the CPU. What a function (--as) returns is compared
    with golden vectors, and the report says what is wrong with it."""

    examples: ClassVar = (
        "posenc check rope --fast",
        "posenc check fade.py:Fade",
        "posenc check mypackage.rope:apply --as rotary",
        "posenc check frequencies.py:yarn --as yarn --badge yarn.svg",
    )

    subject: Annotated[
        str,
        "an encoding, or several joined by +, or a function; MODULE may be a path to a .py file",
        How("NAME, MODULE:CLASS or MODULE:FUNCTION", positional=True, code=True, names="encoding"),
    ]
    kind: Annotated[
        str | None, "what the function implements, see posenc list --kind kinds", How("KIND", flag="as", names="kind")
    ] = None
    fast: Annotated[bool, "of an encoding: only the checks that find most mistakes"] = False
    badge: Annotated[str | None, "of a function: also write the verdict as a picture", How("FILE.svg")] = None

    @classmethod
    def epilog(cls) -> str:
        return (
            "Checks that fail for the same reason share a line. Arguments are passed to a function by name where it has the kind's "
            "names, the rest in order to the remaining parameters. Arrays are passed as torch tensors; tensors, numpy arrays and "
            "lists may be returned.\n"
            "Exit code 0: all passes or does not apply, 1: something fails, 3: the function could not be run."
        )

    def run(self) -> int:
        if self.out:
            self.out = os.path.abspath(self.out)  # the tested code may change the folder
        return self._encoding() if self.kind is None else self._function(self.kind)

    def _encoding(self) -> int:
        from posenc.conformance import check
        from posenc.conformance.fixtures import named
        from posenc.lab.user_code import load_object, names_code, printing_to_stderr

        if self.badge is not None:
            raise InputError("is for a function, give --as KIND with it", badge=self.badge)

        with printing_to_stderr():  # what the tested code prints goes to stderr
            if names_code(self.subject) and "+" not in self.subject:
                self._check_encoding(load_object(self.subject, may_import=True))
            report = check(named(self.subject, may_import=True), fast=self.fast)
        found = {"encoding": self.subject, "passed": report.passed, "checks": list(map(asdict, report.outcomes))}
        self.emit(found, str(report))
        return DONE if report.passed else FAILED

    def _check_encoding(self, found: Any) -> None:
        if inspect.isroutine(found):
            remedy = "say what it implements by --as KIND, one of posenc list --kind kinds"
            raise InputError("is a function", remedy, argument="subject", value=self.subject)

    def _function(self, kind: str) -> int:
        from posenc.conformance.diagnosis import conform
        from posenc.conformance.kinds import KINDS
        from posenc.lab.files import write_atomically
        from posenc.lab.user_code import load_object, printing_to_stderr

        try:
            check_word("kind", kind, KINDS)
        except InputError as error:
            raise error.about(kind=kind) from None
        if self.fast:
            raise InputError("is for an encoding, leave it out beside --as", argument="fast")
        if self.badge is not None:
            if not self.badge.endswith(".svg"):
                raise InputError(f"--badge {self.badge}: the picture is an SVG; name a file that ends in .svg")
            self.badge = os.path.abspath(self.badge)
            if not os.path.isdir(folder := os.path.dirname(self.badge)):
                raise InputError(f"--badge {self.badge}: there is no folder {folder}; make it first")
            check_ours(Path(self.badge), "<title>posenc check")
        with printing_to_stderr():
            function = load_object(self.subject, may_import=True)
            if not callable(function):
                raise InputError(f"{self.subject!r}: is a {type(function).__name__}, not a function")
            verdict = conform(function, kind)
        if self.badge is not None:
            write_atomically(Path(self.badge), badge(kind, verdict.passed))
        self.emit({"function": self.subject, **asdict(verdict)}, f"{self.subject} as {verdict}")
        return NOT_RUN if verdict.passed is None else DONE if verdict.passed else FAILED
