# SPDX-License-Identifier: Apache-2.0
"""A benchmark as a page, and its tables on the terminal."""

from collections.abc import Mapping
from typing import Any

from posenc.lab.bench.measure import TIME
from posenc.lab.bench.table import machine_line, notes, tables
from posenc.report.figures import DASHES, PALETTE, Figure, Rows, error_bars, line
from posenc.report.html import rendered
from posenc.report.terminal import print_files, stdout  # before rich: it reports what to install if that is missing

# isort: split
from rich.markup import escape
from rich.table import Table as Grid

Results = Mapping[str, Any]

RATIOS = (0.5, 0.7, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)
"""Marks of an axis of ratios."""


def page(results: Results) -> str:
    """report.html for the results."""
    by_case: dict[str, list[Any]] = {}
    for trial in sorted(results["trials"], key=lambda trial: trial["length"]):
        if (trial["what"], trial["mode"], trial["dtype"]) == (TIME, "forward", "float32"):
            by_case.setdefault(trial["case"], []).append(trial)
    curves = {case: ratio_by_length(trials) for case, trials in by_case.items() if len(trials) > 1}
    facts = {"tables": tables(results), "notes": notes(results), "machine": machine_line(results)}
    return rendered("speed.html", curves, r=results, **facts)


def ratio_by_length(trials: Rows) -> Figure:
    """Time over the limit's by length of the sequence, a line per candidate of one case; both axes logarithmic."""
    figure = Figure()
    timed = [(trial["length"], row) for trial in trials for row in trial["rows"] if row["ratio"] is not None]
    for index, name in enumerate(dict.fromkeys(row["name"] for _, row in timed)):
        points = [(length, row["ratio"]) for length, row in timed if row["name"] == name]
        style = {"color": PALETTE[index % len(PALETTE)], "dash": DASHES[index // len(PALETTE)]}
        figure.add_scatter(
            x=[length for length, _ in points],
            y=[ratio["median"] for _, ratio in points],
            error_y=error_bars([ratio for _, ratio in points], middle="median"),
            **line(name, style, "%{y:.2f} times at %{x} tokens"),
        )
    lengths = sorted({trial["length"] for trial in trials})
    figure.update_xaxes(title="tokens", type="log", tickvals=lengths, ticktext=lengths)
    figure.update_yaxes(title=f"time over {trials[0]['limit']}", type="log", tickvals=RATIOS, ticktext=RATIOS)
    return figure


def show(results: Results, directory: str) -> None:
    """The tables, what is not in them, and the files, on stdout."""
    out = stdout()
    for table in tables(results):
        out.print(f"\n[bold]{escape(table.title)}[/bold] ({escape(table.unit)})")
        grid = Grid(box=None, pad_edge=False, header_style="bold")
        for index, title in enumerate(table.head):
            grid.add_column(title, justify="right" if index > 1 else "left", no_wrap=index > 1)
        for row in table.rows:
            grid.add_row(*map(escape, row))
        out.print(grid)
    for note in notes(results):
        out.print(f"- {note}", markup=False, soft_wrap=True)
    out.print()
    out.print(machine_line(results), markup=False, soft_wrap=True)
    out.print("Ratios are of the same round: median (least..greatest). Lower is better.", markup=False)
    print_files(out, directory, Report="report.html", Numbers="results.json", Table="table.md")
