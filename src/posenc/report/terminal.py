# SPDX-License-Identifier: Apache-2.0
"""A study on the terminal: a bar while it runs, and tables as wide as the terminal has room for."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Self

from posenc.errors import InputError, printable
from posenc.lab.study import Progress, Study
from posenc.lab.table import Table as Made

try:
    from rich.console import Console
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Column, Table
except ImportError:
    raise InputError("the lab needs rich, which is not installed: pip install 'posenc[lab]'") from None


FORMS: tuple[Callable[[str], str], ...] = (
    lambda cell: cell,
    lambda cell: cell.replace(" (", "\n("),
    lambda cell: cell.partition(" (")[0].partition(" ± ")[0],
)
"""A number with its interval, in narrower and narrower forms."""


def print_cells(out: Console, made: Made, keep: Sequence[int] = ()) -> bool:
    """A table that fits the terminal: intervals beside their means, under them, or left out, and then fewer columns. Names
    and numbers are never shortened. keep: columns after the names, the most important first; otherwise those that stay are
    spread out. Returns whether it has intervals."""
    names, titles = made.head[: made.names], made.head[made.names :]
    rows = [(row[: made.names], row[made.names :]) for row in made.texts]
    layouts = [([*range(len(titles))], form) for form in FORMS]
    fewer = [sorted(keep[:most]) for most in range(len(keep) - 1, 0, -1)]
    fewer = fewer or [spread_out(range(len(titles)), most) for most in (3, 2, 1)]
    layouts += [(columns, FORMS[-1]) for columns in fewer]
    for columns, form in layouts:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in names:
            table.add_column(name, no_wrap=True)
        for column in columns:
            breaks = {FORMS[0]: 0, FORMS[1]: 1}.get(form, -1)
            title = titles[column].replace(" ", "\n", breaks)
            table.add_column(title, justify="right", no_wrap=True)
        for head, cells in rows:
            table.add_row(*map(escape, head), *(form(cells[column]) for column in columns))
        width = Measurement.get(out, out.options.update(width=10_000), table).maximum
        if width <= out.width:
            break
    wide = Console(file=StringIO(), width=max(width, out.width))  # a terminal that is still too narrow breaks lines
    wide.print(table)
    out.print(wide.file.getvalue().rstrip("\n"), markup=False, soft_wrap=True)  # type: ignore[attr-defined]
    left_out = [*(["intervals"] if form is FORMS[-1] else []), *(["columns"] if len(columns) < len(titles) else [])]
    if left_out:
        out.print(f"({' and '.join(left_out)} left out: see report.html, or use a wider terminal)", markup=False)
    return form is not FORMS[-1]


def spread_out(every: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, evenly spaced, with the first and the last."""
    if len(every) <= most:
        return list(every)
    return [every[i * (len(every) - 1) // max(most - 1, 1)] for i in range(most)]


class Display(Progress):
    """The progress of a run on stderr: a bar with the time since it began on a terminal, else a line per finished job."""

    def __init__(self) -> None:
        share = TextColumn("{task.percentage:>3.0f} %")
        spent = TimeElapsedColumn(table_column=Column(no_wrap=True))  # in a narrow terminal the bar becomes shorter
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), share, spent)
        self.err: Console = Console(stderr=True, highlight=False)
        self.bar: Bar = Bar(*columns, console=self.err, disable=not self.err.is_terminal, transient=True)
        self.task: TaskID | None = None
        self.unit: str = "cells"
        self.cells: int = 0
        self.done: int = 0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def started(self, study: Study[Any, Any], cells: int, before: int, work: float) -> None:
        self.unit, self.cells, self.done = study.unit, cells, before
        if before:
            self.say(f"{before} of {cells} {self.unit} are here already")
        self.task = self.bar.add_task(self._title(), total=work or None)

    def _title(self, what: str = "") -> str:
        done = f"{self.done} of {self.cells} {self.unit} done"
        return f"{done}, now {what}" if what else done

    def advanced(self, size: float, what: str) -> None:
        if self.task is not None:
            self.bar.update(self.task, advance=size, description=self._title(printable(what)))

    def finished(self, what: str, measured: Mapping[Any, Any], done: int) -> None:
        self.done = done
        if self.task is not None:
            self.bar.update(self.task, description=self._title())
        self.line(done, self.cells, what)

    def say(self, sentence: str) -> None:
        self.err.print(printable(sentence), markup=False, soft_wrap=True)

    def line(self, done: int, count: int, what: str) -> None:
        """A finished piece of work, if there is no bar."""
        if not self.err.is_terminal:
            print(f"[{done}/{count}] {printable(what)}", file=sys.stderr)

    def counter(self, what: str) -> Callable[..., None]:
        """A bar for another piece of work: a function of the amount done, the total (None: unknown) and a new description."""
        task = self.bar.add_task(what, total=None)

        def advance(done: int, count: int | None, called: str = what) -> None:
            self.bar.update(task, completed=done, total=count, description=called)

        return advance


def stdout() -> Console:
    """For results; wide enough for their tables if that is not a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 140)


FILES = {
    "Report": ("report.html",), "Numbers": ("results.json", "analysis.json"), "Tables": ("table.md", "table.csv"), "Figure": ("figure.svg",)
}  # fmt: skip
"""What a command writes beside a page."""


def print_files(out: Console, directory: str | Path) -> None:
    """The paths of a report's files that are there."""
    for line in files_in(directory):
        out.print(line, markup=False, soft_wrap=True)


def files_in(directory: str | Path) -> Iterator[str]:
    """The same, as lines."""
    for what, names in FILES.items():
        there = [name for name in names if (Path(directory) / name).exists()]
        if there:
            path = (Path(printable(str(directory))) / there[0]).resolve()
            yield f"{what + ':':8} {path}" + "".join(f", {Path(name).suffix}" for name in there[1:])
