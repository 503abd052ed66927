# SPDX-License-Identifier: Apache-2.0
"""A comparison on the terminal: a progress bar while it runs, the ranked table and where the report is at the end."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Self

from posenc.errors import InputError
from posenc.lab.compare import Progress
from posenc.lab.config import Run
from posenc.lab.store import Cell
from posenc.report.compared import look
from posenc.texts import printable

try:
    from rich.console import Console
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar
    from rich.table import Table
    from rich.text import Text
except ImportError:
    raise InputError("the lab needs rich and plotly, which are not installed: pip install 'posenc[lab]'") from None


def duration(seconds: float) -> str:
    """About so long, as one says it: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


class Left(ProgressColumn):
    """The time that is left at the speed so far, from the first piece of work that is done."""

    def render(self, task: Task) -> Text:
        if not task.completed or task.total is None or task.elapsed is None:
            return Text("")
        left = task.elapsed * (task.total - task.completed) / task.completed
        return Text(f", about {duration(left)} left", style="progress.remaining")


Rows = list[tuple[list[str], list[str]]]
"""Of a table: the names at the head of each row, and its numbers with their intervals, "62 % (45 to 77)"."""


def print_table(out: Console, names: list[str], titles: list[str], rows: Rows) -> None:
    """A table as wide as the terminal has room for: intervals beside their means, under them, or left out, and at last only
    some of the columns. What tells rows apart is always there, whole."""
    chosen = [([*range(len(titles))], form) for form in FORMS]
    chosen += [(spread_out(range(len(titles)), most), FORMS[-1]) for most in (3, 2, 1)]
    for columns, form in chosen:
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
    if width > out.width:  # the terminal may break the lines, and nothing of a name is lost
        wide = Console(file=StringIO(), width=width)
        wide.print(table)
        out.print(wide.file.getvalue().rstrip("\n"), markup=False, soft_wrap=True)  # type: ignore[attr-defined]
    else:
        out.print(table)
    left_out = [*(["intervals"] if form is FORMS[-1] else []), *(["columns"] if len(columns) < len(titles) else [])]
    if left_out:
        out.print(f"({' and '.join(left_out)} left out here: report.html, or a wider terminal, has them)", markup=False)


FORMS: tuple[Callable[[str], str], ...] = (
    lambda cell: cell,
    lambda cell: cell.replace(" (", "\n("),
    lambda cell: cell.partition(" (")[0],
)
"""How narrow a number with its interval may be written."""


def spread_out(every: Sequence[Any], most: int) -> list[Any]:
    """So many of them at most, evenly spread, the outermost with them."""
    if len(every) <= most:
        return list(every)
    return [every[i * (len(every) - 1) // max(most - 1, 1)] for i in range(most)]


class ShowsProgress:
    """A bar with the time left on stderr, while it is entered; nothing where that is no terminal."""

    def __init__(self, directory: str) -> None:
        share, elapsed = TextColumn("{task.percentage:>3.0f} %"), TextColumn("elapsed")
        what = TextColumn("{task.description}", markup=False)
        columns = (what, BarColumn(), share, TimeElapsedColumn(), elapsed, Left())
        self.directory: Path = Path(printable(str(directory)))
        self.err: Console = Console(stderr=True, highlight=False)
        self.bar: Bar = Bar(*columns, console=self.err, disable=not self.err.is_terminal, transient=True)
        self.started: float = time.perf_counter()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def counter(self, what: str) -> Callable[..., None]:
        """A bar for one piece of work, told how much is done and how much there is (None: nobody knows), and what to call
        it from now on."""
        task = self.bar.add_task(what, total=None)

        def told(done: int, count: int | None, called: str = what) -> None:
            self.bar.update(task, completed=done, total=count, description=called)

        return told

    @staticmethod
    def stdout() -> Console:
        """Where results go; wide enough for their tables where that is no terminal."""
        return Console(highlight=False, width=None if sys.stdout.isatty() else 140)

    def tell_files(self, out: Console, **files: str) -> None:
        """Say where the files of the results are, by what they are called."""
        for what, name in files.items():
            out.print(f"{what + ':':8} {(self.directory / name).resolve()}", markup=False, soft_wrap=True)

    def line(self, done: int, count: int, what: str, left: float | None = None) -> None:
        """Say what has been finished, where there is no bar. left: seconds that the rest will take, if that is known."""
        if not self.err.is_terminal:
            more = f", about {duration(left)} left" if left else ""
            elapsed = f"{time.perf_counter() - self.started:5.0f} s"
            print(f"[{done}/{count}] {elapsed}{more}  {printable(what)}", file=sys.stderr)


class Terminal(ShowsProgress):
    """Shows a comparison's progress, with a line per finished run where there is no terminal, and its results."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.task: TaskID | None = None
        self.runs: int = 0
        self.done: int = 0

    @property
    def progress(self) -> Progress:
        return Progress(self._planned, self._advanced, self._finished)

    def _planned(self, runs: int, kept: int, work: int) -> None:
        self.runs = runs
        self.done = kept
        if kept:
            print(f"{kept} of {runs} runs are here already", file=sys.stderr)
        self.task = self.bar.add_task(f"{kept}/{runs} runs", total=work)

    def _advanced(self, run: Run, work: int) -> None:
        if self.task is not None:
            self.bar.advance(self.task, work)

    def _finished(self, run: Run, cell: Cell) -> None:
        self.done += 1
        if self.task is not None:
            self.bar.update(self.task, description=f"{self.done}/{self.runs} runs")
        self.line(self.done, self.runs, f"{run.encoding}, seed {run.seed}")

    def show(self, results: Mapping[str, Any]) -> None:
        """The answer, the ranked table, and the files, on stdout."""
        out = self.stdout()
        for sentence in results["answer"]:
            out.print(f"- {sentence}", markup=False)
        ranking = look(results).ranking(results)
        table = Table(box=None, pad_edge=False, header_style="bold")
        last = len(ranking.titles)
        for column, title in enumerate(("", *ranking.titles)):
            table.add_column(title, justify="left" if column in (1, last) else "right", no_wrap=True)
        for rank, row in enumerate(ranking.rows, 1):
            table.add_row(str(rank), *map(escape, row))
        out.print()
        out.print(table)
        out.print()
        out.print(ranking.note, markup=False)
        self.tell_files(out, Report="report.html", Numbers="results.json")
