# SPDX-License-Identifier: Apache-2.0
"""A benchmark as a page, and its tables on the terminal."""

from collections.abc import Mapping
from typing import Any

from posenc.lab.bench.study import TIME
from posenc.lab.bench.table import Table, machine_line, notes, tables
from posenc.report import figures
from posenc.report.page import rendered
from posenc.report.terminal import print_files, stdout  # before rich: it says what to install if that is missing

# isort: split
from rich.markup import escape
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


def show(results: Results, directory: str) -> None:
    """The tables, what is not in them, and the files, on stdout."""
    out = stdout()
    for table in tables(results):
        out.print(f"\n[bold]{escape(table.title)}[/bold] ({escape(table.unit)})")
        out.print(_grid(table))
    for note in notes(results):
        out.print(f"- {note}", markup=False, soft_wrap=True)
    out.print()
    out.print(machine_line(results), markup=False, soft_wrap=True)
    out.print("Ratios are of the same round: median (least..greatest). Lower is better.", markup=False)
    print_files(out, directory, Report="report.html", Numbers="results.json", Table="table.md")


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
