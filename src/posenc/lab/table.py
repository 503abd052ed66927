# SPDX-License-Identifier: Apache-2.0
"""A table of results as Markdown, CSV and LaTeX."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

Cell = str | tuple[str, str]
"""A text; or a number and its interval, both as text: ("0.254", "± 0.012")."""


@dataclass(frozen=True)
class Table:
    """Results in rows. unit: of the cells, "" where they differ. rows: of as many cells as head; names: of those, so many name
    the row; an empty name is that of the row above."""

    title: str
    unit: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: int = 1

    @property
    def texts(self) -> list[list[str]]:
        """The rows with each interval beside its number."""
        return [[visible(" ".join(cell) if isinstance(cell, tuple) else cell) for cell in row] for row in self.rows]

    @property
    def caption(self) -> str:
        return visible(f"{self.title} ({self.unit})" if self.unit else self.title)

    def markdown(self) -> str:
        """The title, and rows between pipes, the first name as code."""
        title = f"**{visible(self.title)}** ({self.unit})" if self.unit else f"**{visible(self.title)}**"
        marks = ["---"] * self.names + ["---:"] * (len(self.head) - self.names)
        rows = [[name and _as_code(name), *cells] for name, *cells in self.texts]
        lines = (
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (self.head, marks, *rows)
        )
        return "\n".join([title, "", *lines])

    def latex(self) -> str:
        """A tabular with the rules of the package booktabs."""
        columns = "l" * self.names + "r" * (len(self.head) - self.names)
        head, *rows = (" & ".join(map(_in_latex, row)) + r" \\" for row in (self.head, *self.texts))
        lines = [f"% {self.caption}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"]
        return "\n".join([*lines, *rows, r"\bottomrule", r"\end{tabular}"])


def visible(text: str) -> str:
    """A text on one line, with what is no printable character as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _as_code(text: str) -> str:
    """In Markdown, between more backticks than it has in a row."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}" if fence == "`" else f"{fence} {text} {fence}"


def markdown(tables: Sequence[Table]) -> str:
    return "\n\n".join(table.markdown() for table in tables) + "\n"


def latex(tables: Sequence[Table]) -> str:
    return "\n\n".join(["% \\usepackage{booktabs}", *(table.latex() for table in tables)]) + "\n"


def as_csv(tables: Sequence[Table]) -> str:
    """All rows under one head: the table's title where there are several tables, then the columns of all of them. An interval has a
    separate column. A number is written plainly, percent in the column's name, and what was not measured is empty."""
    lines: list[dict[str, str]] = []
    for table in tables:
        above: list[str] = []
        columns = [*zip(*table.rows, strict=True)]
        apart = [any(isinstance(cell, tuple) for cell in column) for column in columns]
        shares = [any(_value(cell).endswith(" %") for cell in column) for column in columns]
        names = [f"{title or 'name'}{' (%)' * share}" for title, share in zip(table.head, shares, strict=True)]
        for row in table.rows:
            line = {"table": table.caption} if len(tables) > 1 else {}
            for at, (name, cell) in enumerate(zip(names, row, strict=True)):
                if at < table.names:
                    line[name] = _in_csv(_value(cell)) or above[at]
                    continue
                line[name] = _in_csv(_value(cell))
                if apart[at]:
                    line[f"{name} (interval)"] = _in_csv(cell[1].strip("()± ")) if isinstance(cell, tuple) else ""
            above = [line[name] for name in names[: table.names]]
            lines.append(line)
    out = StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _value(cell: Cell) -> str:
    return cell[0] if isinstance(cell, tuple) else cell


def _in_csv(text: str) -> str:
    """A number as programs read it; a text that a spreadsheet would take for a formula, behind an apostrophe."""
    plain = "" if text == "–" else visible(text.removesuffix(" %").replace("−", "-"))
    try:
        float(plain)
    except ValueError:
        return f"'{plain}" if plain.startswith(("=", "+", "-", "@")) else plain
    return plain


IN_LATEX = {
    "\\": r"\textbackslash{}", "±": r"$\pm$", "−": "$-$", "–": "--", "×": r"$\times$", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", **{c: f"\\{c}" for c in "&%$#_{}"},
}  # fmt: skip
"""Characters -> what LaTeX prints as such."""


def _in_latex(text: str) -> str:
    return "".join(IN_LATEX.get(c, c) for c in text)
