# SPDX-License-Identifier: Apache-2.0
"""Writes benchmarks/encodings.md: what the code declares about each encoding, and which checks it passes (`make encodings`).

python -m website.conformance [NAME ...], in docs/. Takes minutes; with names, only these encodings are checked again, and the
marks of others stay.
"""

import inspect
import sys
from collections.abc import Sequence

from posenc.conformance.checks import CHECKS, must_serve
from posenc.conformance.fixtures import EncodingUnderTest, named
from posenc.conformance.suite import run_check
from posenc.encodings import ENCODINGS
from posenc.encodings.catalogue import rows
from website.page import ROOT

PAGE = ROOT / "benchmarks" / "encodings.md"
MARKS: dict[bool | None, str] = {True: "✓", False: "✗", None: "–"}
TEXT = """# The encodings

Made by `make encodings` from what the code declares and from running every check. Every one is compared with its formula, written as a loop over numbers in float64, and with what the column *equal to* names. Its class's docstring says what each does, and describes its arguments: `help(posenc.Rotary)`.

{declared}

## Properties of each encoding, checked

Each in a small decoder (with grouped-query heads) and encoder, in float64 unless the check is about another dtype. ✓ passed · – does not apply, and is refused: codes that depend on the final length cannot be cached, an encoding of the past alone takes no prefix, what mixes heads is not cut to some, and not every encoding has positions in an image · ✗ failed. `posenc.conformance.check` runs the same on any other encoding.

{marks}

The checks:

{checks}

## What each backend must serve

{serves}
"""


def declared() -> str:
    """What each encoding is, as a table."""
    lines = [
        "| name | class | acts on | options | learned | past the training length, its source says | equal to | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows():
        cells = (
            f"`{row['name']}`", f"`{row['class']}`", ", ".join(row["acts_on"]) or "nothing",
            " ".join(f"`{option}`" for option in row["options"]), "yes" if row["learned"] else "no",
            row["extrapolates"], row["equal_to"], "; ".join(row["papers"]) or "none",
        )  # fmt: skip
        lines.append(_line(cells))
    return "\n".join(lines)


def header() -> str:
    """The head of the table of marks, with the names of the checks."""
    return "\n".join([_line(("", *(check.replace("_", " ") for check in CHECKS))), "|---" * (len(CHECKS) + 1) + "|"])


def marks(names: Sequence[str] = ()) -> str:
    """Every check on every encoding, as a table; of encodings that are not among the names, the lines that the page has."""
    before = PAGE.read_text(encoding="utf-8").splitlines() if names else []
    lines = [header()]
    for name in ENCODINGS:
        old = [line for line in before if line.startswith(f"| `{name}` | ") and line[-3:-2] in MARKS.values()]
        lines.append(old[0] if old and name not in names else marks_of(name))
    return "\n".join(lines)


def marks_of(name: str) -> str:
    """Every check on one encoding, as a line."""
    tested = EncodingUnderTest(named(name))
    return _line((f"`{name}`", *(MARKS[run_check(check, tested).passed] for check in CHECKS)))


def checks() -> str:
    """What each check tests, as a list."""
    return "\n".join(f"- **{name.replace('_', ' ')}**: {_one_line(check)}" for name, check in CHECKS.items())


def serves() -> str:
    """Which calls each backend may not refuse."""
    return inspect.getdoc(must_serve) or ""


def _one_line(function: object) -> str:
    return " ".join((inspect.getdoc(function) or "").split())


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    page = TEXT.format(declared=declared(), marks=marks(sys.argv[1:]), checks=checks(), serves=serves())
    PAGE.write_text(page, encoding="utf-8")
