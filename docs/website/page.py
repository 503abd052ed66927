# SPDX-License-Identifier: Apache-2.0
"""What every generated page is made of: its place and its text, and Markdown that says what was meant."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from html import escape
from operator import or_
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlencode

from ziamath.zmath import Latex

from posenc.report.explorer import methods, settings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SIZE = 20.0
"""Of a formula's letters, in pixels."""
NARROW = 495
"""Pixels of a formula that a phone shows at two thirds of its size."""


@dataclass(frozen=True)
class Page:
    """A generated page. path: in the site's Markdown. title: in the navigation. group: of its section's entries, "" for
    none. description: for search engines and links elsewhere; "": its first paragraph."""

    path: str
    title: str
    text: str
    group: str = ""
    description: str = ""


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
    width = f"--width: {drawing.getsize()[0]:.0f}px"  # which style.css does not let it shrink far below
    return f'{head} class="formula" style="{width}" role="img" aria-label="{escape(latex)}">{rest}'


def formulas(latex: Iterable[str]) -> str:
    """Formulas in a box that scrolls by itself, and their LaTeX as text."""
    drawn = "".join(formula(line) for each in latex for line in lines(each))
    source = "\n".join(latex)
    return (
        f'<div class="formulas" tabindex="0" role="group" aria-label="Formula">{drawn}</div>\n\n'
        f'<details class="latex" markdown="1"><summary>LaTeX</summary>\n\n```text\n{source}\n```\n\n</details>'
    )


def lines(latex: str) -> list[str]:
    """The equations of a formula, one by one where a phone is too narrow for them side by side."""
    pieces = re.split(r"(?<=,)\s*\\quad\s*", latex)
    if len(pieces) == 1 or Latex(latex, size=SIZE).getsize()[0] <= NARROW:
        return [latex]
    found, line = [], ""
    for piece in pieces:
        line = rf"{line} \quad {piece}" if line else piece
        if line.count("{") == line.count("}") and line.count(r"\begin") == line.count(r"\end"):
            found.append(line.rstrip(","))
            line = ""
    return [*found, line] if line else found


def described(text: str, pages: Mapping[str, str]) -> str:
    """Text whose names in code lead to their pages."""
    return re.sub(r"`(\w+)`", lambda m: f"[{m[0]}]({pages[m[1]]})" if m[1] in pages else m[0], plain(text))


def linked_sources(text: str) -> str:
    """Text whose arXiv numbers and addresses are links."""
    text = re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)
    where = r"(?<![\w/])((?:kexue\.fm|github\.com|aclanthology\.org)/[\w./\\-]*\w)"
    return re.sub(where, lambda m: f"[{m[1]}](https://{m[1].replace(chr(92), '')})", text)


def papers_of(cited: Iterable[str]) -> list[str]:
    """Links to papers that are cited as by `posenc list`: "Su 2021, arXiv 2104.09864"; of two in one year, with where they are."""
    papers = [paper.split(", ", 1) for paper in cited]
    names, found = [name for name, _ in papers], []
    for name, where in papers:
        address = where.replace("arXiv ", "arxiv.org/abs/")
        shown = name if names.count(name) == 1 else f"{name}, {where}"
        found.append(f"[{plain(shown)}](https://{address})")
    return found


def explorer(state: Mapping[str, str], where: str = "../explorer.html") -> str:
    """A link to the explorer in a state; "" where it does not draw that. where: the explorer, from the page."""
    if (
        state["encoding"].partition(":")[0] not in settings()["names"]
        or state.get("method", "none").partition(":")[0] not in methods()
    ):
        return ""
    return f'<a href="{where}#{escape(urlencode(state, safe=":="))}">Explorer</a>'


def signature(name: str, of: inspect.Signature) -> str:
    """A call with all arguments, as code; "" where there are none."""
    lines = [str(parameter.replace(annotation=_of_type(parameter.annotation))) for parameter in of.parameters.values()]
    first = next((n for n, p in enumerate(of.parameters.values()) if p.kind is p.KEYWORD_ONLY), None)
    if first:
        lines.insert(first, "*")
    text = re.sub(r"\b(?:collections\.abc|typing|torch)\.", "", ",\n    ".join(lines)).replace("'", '"')
    return f"```python\n{name}(\n    {text},\n)\n```" if lines else ""


def _of_type(annotation: Any) -> Any:
    """An argument's type without the checks that are declared with it."""
    found = get_type_hints(type("", (), {"__annotations__": {"declared": annotation}}))["declared"]
    return reduce(or_, get_args(found)) if get_origin(found) is Union else found


def heading(path: Path) -> str:
    """The title that a page of Markdown gives itself."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
