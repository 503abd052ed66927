# SPDX-License-Identifier: Apache-2.0
"""A benchmark as a page, and on the terminal while it runs."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.bench.measure import Row
from posenc.bench.plan import TIME, Trial
from posenc.bench.run import Progress
from posenc.bench.table import Table, machine_line, notes, tables
from posenc.report import figures
from posenc.report.page import rendered
from posenc.report.terminal import ShowsProgress  # before rich: it says what to install if that is missing

# isort: split
from rich.markup import escape
from rich.progress import TaskID
from rich.table import Table as Grid

Results = Mapping[str, Any]


def page(results: Results) -> str:
    """report.html for what results.json holds."""
    shown = {}
    for case, trials in _timed_by_case(results).items():
        if len({trial["length"] for trial in trials}) > 1:
            shown[case] = figures.ratio_by_length(trials)
    return rendered(
        "speed.html", shown, r=results, tables=tables(results), notes=notes(results), machine=machine_line(results)
    )


def _timed_by_case(results: Results) -> dict[str, list[Any]]:
    """The forward passes in float32 of each case, short ones first."""
    found: dict[str, list[Any]] = {}
    for trial in sorted(results["trials"], key=lambda trial: trial["length"]):
        if (trial["what"], trial["mode"], trial["dtype"]) == (TIME, "forward", "float32"):
            found.setdefault(trial["case"], []).append(trial)
    return found


class Terminal(ShowsProgress):
    """Shows a benchmark's progress, with a line per finished trial where there is no terminal, and its results."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.task: TaskID = self.bar.add_task("", total=None)
        self.trials: int = 0
        self.done: int = 0

    @property
    def progress(self) -> Progress:
        return Progress(self._planned, self._now, self._finished)

    def _planned(self, trials: int, kept: int) -> None:
        self.trials = trials
        self.done = kept
        if kept:
            print(f"{kept} of {trials} trials are here already", file=sys.stderr)
        self.bar.update(self.task, total=trials, completed=kept)

    def _now(self, trial: Trial, candidate: str) -> None:
        self.bar.update(self.task, description=escape(f"{trial}: {candidate or 'rounds'}"))

    def _finished(self, trial: Trial, rows: Sequence[Row]) -> None:
        self.done += 1
        self.bar.update(self.task, completed=self.done)
        self.line(self.done, self.trials, str(trial))

    def show(self, results: Results) -> None:
        """The tables, what is not in them, and the files, on stdout."""
        out = self.stdout()
        for table in tables(results):
            out.print(f"\n[bold]{escape(table.title)}[/bold] ({escape(table.unit)})")
            out.print(_grid(table))
        for note in notes(results):
            out.print(f"- {note}", markup=False, soft_wrap=True)
        out.print()
        out.print(machine_line(results), markup=False, soft_wrap=True)
        out.print("Ratios are of the same round: median (least..greatest). Lower is better.", markup=False)
        self.tell_files(out, Report="report.html", Numbers="results.json", Table="table.md")


def _grid(table: Table) -> Grid:
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    grid.add_column("case")
    grid.add_column("")
    for length in table.lengths:
        grid.add_column(f"n = {length}", justify="right", no_wrap=True)
    previous = ""
    for line in table.lines:
        grid.add_row("" if line.case == previous else line.case, escape(line.name), *map(escape, line.cells))
        previous = line.case
    return grid
