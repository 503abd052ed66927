# SPDX-License-Identifier: Apache-2.0
"""A table of results as Markdown and CSV, and the one function of each format that escapes a text."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from posenc.errors import printable

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
        return [[" ".join(cell) if isinstance(cell, tuple) else cell for cell in row] for row in self.rows]

    @property
    def caption(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def markdown(self) -> str:
        """The title, and rows between pipes, the first name as code."""
        unit = f" ({in_markdown(self.unit)})" if self.unit else ""
        marks = ["---"] * self.names + ["---:"] * (len(self.head) - self.names)
        rows = [[name and in_markdown(name, code=True), *map(in_markdown, cells)] for name, *cells in self.texts]
        lines = ("| " + " | ".join(row) + " |" for row in (map(in_markdown, self.head), marks, *rows))
        return "\n".join([f"**{in_markdown(self.title)}**{unit}", "", *lines])


About = Mapping[str, str]
"""What the numbers of a report are of, as {"steps": "400"}."""
NOTHING: About = {}


def markdown(tables: Sequence[Table], about: About = NOTHING) -> str:
    """Tables, and below them what they are of."""
    facts = "".join(f"{key}: {one_line(value)}\n" for key, value in about.items())
    block = f"{fence(facts, 3)}text\n{facts}{fence(facts, 3)}"
    return "\n\n".join([*(table.markdown() for table in tables), *([block] if about else [])]) + "\n"


def as_csv(tables: Sequence[Table], about: About = NOTHING) -> str:
    """All rows under one head: the table's title where there are several tables, then the columns of all of them, then what the
    numbers are of. An interval has a separate column. A number is written plainly, percent in the column's name, and what was not
    measured is empty."""
    lines: list[dict[str, str]] = []
    for table in tables:
        above: list[str] = []
        columns = [[row[at] for row in table.rows] for at in range(len(table.head))]  # one without a row, too
        apart = [any(isinstance(cell, tuple) for cell in column) for column in columns]
        shares = [any(_value(cell).endswith(" %") for cell in column) for column in columns]
        names = [f"{title or 'name'}{' (%)' * share}" for title, share in zip(table.head, shares, strict=True)]
        for row in table.rows:
            line = {"table": table.caption} if len(tables) > 1 else {}
            for at, (name, cell) in enumerate(zip(names, row, strict=True)):
                if at < table.names:
                    line[name] = _value(cell) or above[at]
                    continue
                line[name] = _plainly(_value(cell))
                if apart[at]:
                    line[f"{name} (interval)"] = _plainly(cell[1]).strip("()± ") if isinstance(cell, tuple) else ""
            above = [line[name] for name in names[: table.names]]
            lines.append(line)
    head = list(dict.fromkeys(name for line in lines for name in line))
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in ([*head, *about], *([*(line.get(name, "") for name in head), *about.values()] for line in lines)):
        writer.writerow(map(in_csv, row))
    return out.getvalue()


def _value(cell: Cell) -> str:
    return cell[0] if isinstance(cell, tuple) else cell


def _plainly(text: str) -> str:
    return "" if text == "–" else text.removesuffix(" %").replace("−", "-")


# -------------------------------------------------------------------- escapes


def one_line(text: str) -> str:
    """A text without line ends and control characters."""
    return printable(text.replace("\n", " "))


def in_csv(text: str) -> str:
    """A text that no spreadsheet takes for a formula: one that begins as one, and is no number, follows an apostrophe."""
    formula = re.match(r"\s*[=+\-@＝＋－＠]", text) and not re.fullmatch(r"[+-]?([\d.]+(e[+-]?\d+)?|inf|nan)", text)
    return "'" * bool(formula) + one_line(text)


def in_markdown(text: str, code: bool = False) -> str:
    """A text that is shown as it is in a cell or a title. code: in a monospaced font, in a cell."""
    text = one_line(text)
    if not code or not text.strip():
        return re.sub(r"[\\`*_\[\]<>|~&$@]|:(?=//)|(?<=www)\.", r"\\\g<0>", text)
    space = " " * (text[0] in "` " or text[-1] in "` ")
    return f"{fence(text)}{space}{text}{space}{fence(text)}".replace("|", r"\|")


def fence(text: str, least: int = 1) -> str:
    """Backticks that do not end within a text."""
    return "`" * max(least, 1 + max(map(len, re.findall("`+", text)), default=0))
