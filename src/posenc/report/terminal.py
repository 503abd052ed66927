# SPDX-License-Identifier: Apache-2.0
"""A study on the terminal: a bar with the time left while it runs, and tables as wide as the terminal has room for."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Self

from posenc.errors import InputError, printable
from posenc.lab.study import Pace, Progress, Study
from posenc.lab.table import Table as Made
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


ANNOUNCED, LONG, ASKED = 20, 8 * 60, 60 * 60
"""Seconds: a run that will take longer than the first announces its time, one longer than the second also a hint, and one longer
than the third asks, on a terminal."""


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
    """The progress of a run on stderr: a bar with the time left on a terminal, else a line per finished job. hint: added
    to the estimate of a long run. yes: nothing is asked before a long run."""

    def __init__(self, *, hint: str = "", yes: bool = False) -> None:
        share = TextColumn("{task.percentage:>3.0f} %")
        spent = Times(table_column=Column(no_wrap=True))  # in a narrow terminal the bar becomes shorter
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), share, spent)
        self.hint, self.yes = hint, yes
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
        done = f"{self.done} of {self.cells} {self.unit} done"
        return f"{done}, now {what}" if what else done

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
            self.ask(seconds)

    def ask(self, seconds: float) -> None:
        """On a terminal, before a run of more than an hour goes on, once.

        Raises:
            KeyboardInterrupt: the answer is no.
        """
        if self.yes or seconds < ASKED or not (self.err.is_terminal and sys.stdin is not None and sys.stdin.isatty()):
            return
        self.yes = True
        self.bar.stop()
        self.err.print("Go on? [y/N] (--yes does not ask) ", end="", markup=False)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise KeyboardInterrupt
        self.bar.start()

    def say(self, sentence: str) -> None:
        self.err.print(printable(sentence), markup=False, soft_wrap=True)

    def line(self, done: int, count: int, what: str, left: float | None = None) -> None:
        """A finished piece of work, if there is no bar. left: seconds until all is done."""
        if not self.err.is_terminal:
            spent = times(time.perf_counter() - self.begun, left)
            print(f"[{done}/{count}] {spent}: {printable(what)}", file=sys.stderr)

    def counter(self, what: str) -> Callable[..., None]:
        """A bar for another piece of work: a function of the amount done, the total (None: unknown) and a new description. The
        pace is that since its first call, before which the work may have been prepared or resumed."""
        task = self.bar.add_task(what, total=None)
        first: tuple[float, int] | None = None
        announced = False

        def advance(done: int, count: int | None, called: str = what) -> None:
            nonlocal first, announced
            self.bar.update(task, completed=done, total=count, description=called)
            begun, before = first = first or (time.perf_counter(), done)
            seconds = time.perf_counter() - begun
            if announced or count is None or seconds < Pace.LEAST_SECONDS or done <= before:
                return
            announced = True
            left = seconds * (count - done) / (done - before)
            if left >= ANNOUNCED:
                self.say(f"{called}: takes about {about(seconds + left)} on this machine")
                self.ask(left)

        return advance


def stdout() -> Console:
    """For results; wide enough for their tables if that is not a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 140)


FILES = {
    "Report": ("report.html",), "Numbers": ("results.json", "analysis.json"), "Tables": ("table.md", "table.csv", "table.tex"),
    "Figure": ("figure.svg",),
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
