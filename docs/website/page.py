# SPDX-License-Identifier: Apache-2.0
"""What every generated page is made of: its place and its text, and Markdown that says what was meant."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ziamath.zmath import Latex

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SIZE = 20.0
"""Of a formula's letters, in pixels."""


@dataclass(frozen=True)
class Page:
    """A generated page. path: in the site's Markdown. title: in the navigation. group: of its section's entries, "" for
    none."""

    path: str
    title: str
    text: str
    group: str = ""


def plain(text: str) -> str:
    """Text that Markdown shows as it is; what stands between backticks stays code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else _literal(part) for part in parts)


def _literal(text: str) -> str:
    return re.sub(r"([\\*_\[\]{}#|])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells of Markdown as a table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows))


def formula(latex: str) -> str:
    """LaTeX as a drawing in the text's colour, which says the LaTeX to who cannot see it.

    Raises:
        ValueError: a command that it does not know, which would be drawn as it is written.
    """
    drawing = Latex(latex, size=SIZE, color="currentColor")
    if "\\" in drawing.mathmlstr():
        raise ValueError(f"{latex}: has an unknown command")
    head, rest = drawing.svg().split(">", 1)
    return f'{head} class="formula" role="img" aria-label="{escape(latex)}">{rest}'


def heading(path: Path) -> str:
    """The title that a page of Markdown gives itself."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
