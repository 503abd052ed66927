# SPDX-License-Identifier: Apache-2.0
"""A comparison on the terminal: a bar with the time left while it runs, the ranked table and where the report is at the end."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Self

from posenc.engines import Pace
from posenc.errors import InputError, printable
from posenc.lab.compare import Progress
from posenc.lab.config import Run
from posenc.lab.store import Cell
from posenc.report.compared import about, busy, look

try:
    from rich.console import Console
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Table
    from rich.text import Text
except ImportError:
    raise InputError("the lab needs rich and plotly, which are not installed: pip install 'posenc[lab]'") from None


LONG = 8 * 60
"""Seconds from which on a smaller preset is offered."""


def times(elapsed: float, left: float | None) -> str:
    """As in "elapsed 0:22, about 3:10 left"."""
    told = "" if not left else f", about {_clock(left)} left" if left >= 5 else ", a few seconds left"
    return f"elapsed {_clock(elapsed)}{told}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Times(ProgressColumn):
    """The time since a task began, and what is left by its field `left`, a function; else by its pace so far."""

    def render(self, task: Task) -> Text:
        elapsed, left = task.elapsed or 0.0, None
        if "left" in task.fields:
            left = task.fields["left"]()
        elif task.completed and task.total is not None:
            left = elapsed * (task.total - task.completed) / task.completed
        return Text(times(elapsed, left))


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
        share = TextColumn("{task.percentage:>3.0f} %")
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), share, Times())
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
        """Say what has been finished, where there is no bar. left: seconds until all is."""
        if not self.err.is_terminal:
            elapsed = time.perf_counter() - self.started
            print(f"[{done}/{count}] {times(elapsed, left)}: {printable(what)}", file=sys.stderr)

    def say(self, sentence: str) -> None:
        """A line on stderr, above the bar where there is one."""
        self.err.print(printable(sentence), markup=False, soft_wrap=True)


class Terminal(ShowsProgress):
    """Shows a comparison's progress, with a line per finished run where there is no terminal, and its results.

    quick: what the preset of that name takes over what this comparison does, asked when it is needed; None where it is no
    smaller.
    """

    def __init__(self, directory: str, quick: Callable[[], float | None] = lambda: None) -> None:
        super().__init__(directory)
        self.quick = quick
        self.task: TaskID | None = None
        self.pace: Pace = Pace(0)
        self.runs: int = 0
        self.kept: int = 0
        self.done: int = 0

    @property
    def progress(self) -> Progress:
        return Progress(self._planned, self._advanced, self._finished, self._estimated, self._reported)

    def _planned(self, runs: int, kept: int, work: int) -> None:
        self.runs = runs
        self.kept = self.done = kept
        self.pace = Pace(work)
        if kept:
            self.say(f"{kept} of {runs} runs are here already")
        self.task = self.bar.add_task(f"{kept}/{runs} runs", total=work, left=self.pace.left)

    def _estimated(self, seconds: float) -> None:
        offer = ""
        if seconds > LONG and not self.kept and (quick := self.quick()) is not None:
            offer = f"; --preset quick would take about {about(seconds * quick)} (Ctrl-C stops, and keeps what is done)"
        todo = self.runs - self.kept
        what = f"{todo} runs take" if todo > 1 else "1 run takes"
        self.say(f"{what} about {about(seconds)} on this machine{offer}")

    def _reported(self, seeds: int, planned: int) -> None:
        if seeds == 1:
            place = (self.directory / "report.html").resolve()
            self.say(
                f"First results, 1 of {planned} seeds of each encoding: {place} (with every further seed it is written anew)"
            )

    def _advanced(self, run: Run, work: int) -> None:
        self.pace.tick(run, work)
        if self.task is not None:
            self.bar.advance(self.task, work)

    def _finished(self, run: Run, cell: Cell) -> None:
        self.done += 1
        if self.task is not None:
            self.bar.update(self.task, description=f"{self.done}/{self.runs} runs")
        self.line(
            self.done,
            self.runs,
            f"{run.encoding}, seed {run.seed}",
            self.pace.left() if self.done < self.runs else None,
        )

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
        if line := busy(results):
            out.print(f"{line[0].upper()}{line[1:]}.", markup=False)
        self.tell_files(out, Report="report.html", Numbers="results.json")
