# SPDX-License-Identifier: Apache-2.0
"""A study on the terminal: a bar with the time left while it runs, and tables as wide as the terminal has room for."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Self

from posenc.errors import InputError, printable
from posenc.lab.study import Pace, Progress, Study
from posenc.report.html import about, clock

try:
    from rich.console import Console
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column, Table
    from rich.text import Text
except ImportError:
    raise InputError("the lab needs rich, which is not installed: pip install 'posenc[lab]'") from None


ANNOUNCED, LONG = 20, 8 * 60
"""Seconds: a run that will take longer than the first announces its time, and one longer than the second also a hint."""


def times(elapsed: float, left: float | None) -> str:
    """As in "elapsed 0:22, about 3:10 left"."""
    rest = "" if not left else f", about {clock(left)} left" if left >= 5 else ", a few seconds left"
    return f"elapsed {clock(elapsed)}{rest}"


class Times(ProgressColumn):
    """The time since a task began, and the time left: from the task's field `left`, a function, or from its pace."""

    def render(self, task: Task) -> Text:
        elapsed, left = task.elapsed or 0.0, None
        if "left" in task.fields:
            left = task.fields["left"]()
        elif task.completed and task.total is not None:
            left = elapsed * (task.total - task.completed) / task.completed
        return Text(times(elapsed, left))


TableRows = list[tuple[list[str], list[str]]]
"""The names at the head of each row, and its numbers with their intervals, "62 % (45 to 77)"."""

FORMS: tuple[Callable[[str], str], ...] = (
    lambda cell: cell,
    lambda cell: cell.replace(" (", "\n("),
    lambda cell: cell.partition(" (")[0],
)
"""A number with its interval, in narrower and narrower forms."""


def print_table(out: Console, names: list[str], titles: list[str], rows: TableRows) -> bool:
    """A table that fits the terminal: intervals beside their means, under them, or left out, and then fewer columns. Names
    are never shortened. Returns whether it has intervals."""
    layouts = [([*range(len(titles))], form) for form in FORMS]
    layouts += [(spread_out(range(len(titles)), most), FORMS[-1]) for most in (3, 2, 1)]
    for columns, form in layouts:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in names:
            table.add_column(name, no_wrap=True)
        for column in columns:
            title = titles[column] if form is FORMS[0] else titles[column].replace(" ", "\n", 1)
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
    """The progress of a run on stderr: a bar with the time left on a terminal, else a line per finished job. hint: added
    to the estimate of a long run."""

    def __init__(self, _: object = None, *, hint: str = "") -> None:
        share = TextColumn("{task.percentage:>3.0f} %")
        spent = Times(table_column=Column(no_wrap=True))  # in a narrow terminal the bar becomes shorter
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), share, spent)
        self.hint = hint
        self.err: Console = Console(stderr=True, highlight=False)
        self.bar: Bar = Bar(*columns, console=self.err, disable=not self.err.is_terminal, transient=True)
        self.begun: float = time.perf_counter()
        self.task: TaskID | None = None
        self.pace: Pace = Pace(0)
        self.unit: str = "cells"
        self.cells: int = 0
        self.done: int = 0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def started(self, study: Study[Any, Any], cells: int, before: int, pace: Pace) -> None:
        self.unit, self.cells, self.done, self.pace, self.begun = study.unit, cells, before, pace, time.perf_counter()
        if before:
            self.say(f"{before} of {cells} {self.unit} are here already")
        self.task = self.bar.add_task(self._title(), total=pace.total or None, left=pace.left)

    def _title(self, what: str = "") -> str:
        return f"{self.done}/{self.cells} {what or self.unit}"

    def advanced(self, size: float, what: str) -> None:
        if self.task is not None:
            self.bar.update(self.task, advance=size, description=self._title(printable(what)))

    def finished(self, what: str, measured: Mapping[Any, Any], done: int) -> None:
        self.done = done
        if self.task is not None:
            self.bar.update(self.task, description=self._title())
        self.line(done, self.cells, what, self.pace.left() if done < self.cells else None)

    def estimated(self, seconds: float, cells: int) -> None:
        if seconds >= ANNOUNCED:
            what = f"{cells} {self.unit} take" if cells > 1 else f"1 of the {self.unit} takes"
            hint = self.hint if seconds > LONG and cells == self.cells else ""
            self.say(f"{what} about {about(seconds)} on this machine{hint}")

    def say(self, sentence: str) -> None:
        self.err.print(printable(sentence), markup=False, soft_wrap=True)

    def line(self, done: int, count: int, what: str, left: float | None = None) -> None:
        """A finished piece of work, if there is no bar. left: seconds until all is done."""
        if not self.err.is_terminal:
            spent = times(time.perf_counter() - self.begun, left)
            print(f"[{done}/{count}] {spent}: {printable(what)}", file=sys.stderr)

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
    "Report": ("report.html",), "Numbers": ("results.json",), "Tables": ("table.md", "table.csv", "table.tex"),
    "Figure": ("figure.svg", "figure.png"),
}  # fmt: skip
"""What a study writes."""


def print_files(out: Console, directory: str | Path) -> None:
    """The paths of a study's files that are there."""
    for what, names in FILES.items():
        there = [name for name in names if (Path(directory) / name).exists()]
        if there:
            path = (Path(printable(str(directory))) / there[0]).resolve()
            rest = "".join(f", {Path(name).suffix}" for name in there[1:])
            out.print(f"{what + ':':8} {path}{rest}", markup=False, soft_wrap=True)
