# SPDX-License-Identifier: Apache-2.0
"""An evaluation as a page with figures, and its tables on the terminal.

The name of a line is its method, by which the page shows and hides it.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posenc.analysis.finding import PALETTE
from posenc.lab.evals.results import difference, spelled
from posenc.lab.study import Results
from posenc.lab.table import Cell, Table
from posenc.report.drawn import beside, first_of
from posenc.report.figures import DASHES, Figure, Rows, Style, axis, intervals, line, lines, trained
from posenc.report.html import Choice, Panel, percent, plot, rendered
from posenc.report.terminal import print_cells, print_files, spread_out, stdout

__all__ = ["files", "page", "show", "tables"]

Task = Mapping[str, Any]

BASES = {"none": DASHES[0], "truncation": DASHES[1]}
"""The baselines and their lines: grey, so that a colour always means a method."""
NEUTRAL = "#7f8894"
NEAR = 1.5
"""A context length up to this many times the longest text is marked."""
MOST = 5
"""Depths side by side on a terminal."""


@dataclass(frozen=True)
class Measure:
    """One of the numbers of a cell. key: in the results. heading: of a column. name: on a button. meaning: in a sentence.
    axis: with its unit. scale: from the results' unit to the axis's."""

    key: str
    heading: str
    name: str
    meaning: str
    axis: str
    scale: float = 100

    def text(self, value: float) -> str:
        return percent(value) if self.scale == 100 else f"{value:.2f}"

    def words(self, estimate: Mapping[str, float]) -> tuple[str, str]:
        """A value and its interval: "62 %", "45 to 77 %"."""
        mean, low, high = (self.text(estimate[key]) for key in ("mean", "low", "high"))
        return mean, f"{low.removesuffix(' %')} to {high}"


MEASURES = {
    "score": Measure(
        "score",
        "right answers",
        "generated answer",
        "The model generates an answer by greedy decoding, and the task scores it.",
        "right answers, %",
    ),
    "exact": Measure(
        "exact",
        "right, by likelihood",
        "most likely tokens",
        "An answer is right if each of its tokens is the most likely one given the right tokens before it: greedy decoding "
        "would give it word for word.",
        "right answers by likelihood, %",
    ),
    "loss": Measure(
        "loss",
        "loss: lower is better",
        "loss",
        "The mean negative log-likelihood of the right answer, in nats a token. Lower is better.",
        "loss, nats a token",
        1,
    ),
}


def page(results: Results) -> str:
    """report.html for what results.json holds."""
    style = styles(methods(results))
    sections = _sections(results, style)
    panels = [panel for section in sections for panel in section.panels.values()]
    with_figures = [section for section in sections if section.panels]
    first = _first(with_figures)
    return rendered(
        "eval.html",
        {plot.name: plot.figures for panel in panels for plot in panel.plots},
        r=results,
        sections=sections,
        first=first,
        judged=[m for m in MEASURES.values() if any(m in section.measures for section in sections)],
        headings={r["task"]: MEASURES[r["measure"]].heading for row in results["ranking"] for r in row["tasks"]},
        styles=style,
        bases=BASES,
        costs={row["method"]: row for name in style for row in results["cost"] if row["method"] == name},
        tasks=[task["task"] for task in results["tasks"]],
        words=lambda measure, estimate: MEASURES[measure].words(estimate),
        difference=difference,
        spelled=spelled,
    )


def _sections(results: Results, style: Mapping[str, Style]) -> list["Section"]:
    return [_section(f"task-{number}", task, results, style) for number, task in enumerate(results["tasks"])]


def _first(sections: Sequence["Section"]) -> "Section | None":
    """Whose figure is at the top: a task with several depths."""
    several = (section for section in sections if len({cell["depth"] for _, cell in section.cells}) > 1)
    return next(several, next(iter(sections), None))


def tables(results: Results) -> list[Table]:
    """One per task: every method at the lengths and depths that the terminal shows."""
    return [_table(results, task) for task in results["tasks"]]


def files(results: Results) -> dict[str, str | bytes]:
    """The files of an evaluation beside results.json."""
    first = _first([section for section in _sections(results, styles(methods(results))) if section.panels])
    return beside(page(results), tables(results), first_of(first.panels if first else {}), results)


def methods(results: Results) -> list[str]:
    """The methods in the order of every figure and table: the baselines, then the others in their given order."""
    names = dict.fromkeys(method["method"] for task in results["tasks"] for method in task["methods"])
    return [m for m in BASES if m in names] + [m for m in names if m not in BASES]


def styles(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A line style per method, the same in every figure."""
    found = ((colour, dash) for dash in itertools.cycle(DASHES) for colour in PALETTE[:-1])  # without its grey
    of = {method: (NEUTRAL, BASES[method]) if method in BASES else next(found) for method in methods}
    return {method: {"colour": colour, "dash": dash} for method, (colour, dash) in of.items()}


# -------------------------------------------------------------------- one task


@dataclass
class Section:
    """One task on the page. measures: those with numbers, the one that ranks methods first."""

    id: str
    task: Task
    measures: list[Measure]
    cells: list[tuple[str, Mapping[str, Any]]]
    panels: dict[str, Panel] = field(default_factory=dict)


def _section(id: str, task: Task, results: Results, styles: Mapping[str, Style]) -> Section:
    limit = results["model"]["trained_length"]
    by_method = {name: m for name in styles for m in task["methods"] if m["method"] == name}
    cells = [(name, cell) for name, method in by_method.items() for cell in method["cells"]]
    lengths = sorted({cell["length"] for _, cell in cells})
    section = Section(id, task, _measures(results, task), cells)
    if not cells:
        return section
    shown, tokens = section.measures, [f"{n} tokens" for n in lengths]
    measure = Choice("measure", "Measure:", [m.name for m in shown])
    at = Choice("length", "Length:", tokens, len(tokens) - 1)
    by_name = {name: method["by_length"] for name, method in by_method.items()}

    def cells_at(number: int) -> dict[str, Rows]:
        return {name: [c for m, c in cells if m == name and c["length"] == lengths[number]] for name in by_method}

    if task["takes_depth"]:
        draw = plot(f"{id}-depth", [at, measure], lambda n, m: by_depth(cells_at(n), styles, shown[m]))
        section.panels["depth"] = Panel(f"{id}-by-depth", f"{task['task']} by depth", [draw])
    if len(lengths) > 1:
        draw = plot(f"{id}-length", [measure], lambda m: by_length(by_name, styles, shown[m], limit))
        section.panels["length"] = Panel(f"{id}-by-length", f"{task['task']} by length", [draw])
    for panel in list(section.panels.values())[1:]:
        panel.key = False  # the first of a task has it
    return section


def _measures(results: Results, task: Task) -> list[Measure]:
    """The measures with numbers for this task, the one that ranks methods first; for running text the loss alone."""
    ranking = [row["measure"] for at in results["ranking"] for row in at["tasks"] if row["task"] == task["task"]]
    cells = [cell for method in task["methods"] for cell in method["cells"]]
    first = ranking[0] if ranking else "score" if any(cell["score"] for cell in cells) else "loss"
    if first == "loss" and not task["takes_depth"] and not task["generates"]:
        return [MEASURES["loss"]]
    have = [m for key, m in MEASURES.items() if key == "exact" or any(cell[key] for cell in cells)]
    return sorted(have, key=lambda m: m.key != first)


# -------------------------------------------------------------------- figures


def by_depth(of: Mapping[str, Rows], styles: Mapping[str, Style], measure: Measure) -> Figure:
    """A measure by the depth of the answer, a line per method, with 95 % intervals. of: cells by method."""
    series = []
    depths = sorted({c["depth"] for cells in of.values() for c in cells})
    for name, cells in of.items():
        points = sorted((c for c in cells if c[measure.key] is not None), key=lambda c: c["depth"])
        token = ["" if c["position"] is None else f" (token {c['position']:.0f})" for c in points]
        where = [f"depth {100 * c['depth']:g} %{at}, {c['n']} samples" for c, at in zip(points, token, strict=True)]
        series.append(_line(name, [100 * c["depth"] for c in points], points, where, measure, styles[name]))
    ends = {0: " (start)", 100: " (end)"}
    marks = [100 * depth for depth in depths] if len(depths) <= 7 else [0, 25, 50, 75, 100]
    ticks = [[mark, f"{mark:.3g} %{ends.get(mark, '')}"] for mark in marks]
    x = axis("position of the answer in the text", low=-7, high=107, ticks=ticks)
    return lines(series, x, _axis(measure), spread=True)


def by_length(of: Mapping[str, Rows], styles: Mapping[str, Style], measure: Measure, limit: int | None) -> Figure:
    """A measure by the length of the text, a line per method, over all depths. of: the "by_length" of each method. limit: the
    context length."""
    series = []
    for name, rows in of.items():
        points = sorted((row for row in rows if row[measure.key] is not None), key=lambda row: row["length"])
        where = [f"{row['length']} tokens, {row['n']} samples" for row in points]
        series.append(_line(name, [row["length"] for row in points], points, where, measure, styles[name]))
    lengths = sorted({row["length"] for rows in of.values() for row in rows})
    marks = trained(limit) if limit and limit <= NEAR * lengths[-1] else []
    x = axis("length of the text, tokens", log=True, ticks=[[length, str(length)] for length in lengths])
    return lines(series, x, _axis(measure), marks=marks, spread=True)


def _line(
    name: str, x: list[float], points: Rows, where: Sequence[str], measure: Measure, style: Style
) -> dict[str, Any]:
    """The line of a method with its intervals."""
    values = [point[measure.key] for point in points]
    words = [measure.words(value) for value in values]
    texts = [f"{mean} ({interval}), {at}" for (mean, interval), at in zip(words, where, strict=True)]
    y = [measure.scale * value["mean"] for value in values]
    return line(name, x, y, style, texts=texts, dots=True, label=True, **intervals(values, measure.scale))


def _axis(measure: Measure) -> dict[str, Any]:
    if measure.scale == 100:
        return axis(measure.axis, low=-4, high=104, ticks=[[mark, str(mark)] for mark in (0, 25, 50, 75, 100)])
    return axis(f"{measure.axis}: lower is better")


# -------------------------------------------------------------------- terminal


def show(results: Results, directory: str) -> None:
    """The answer, a table per task, and the files, on stdout."""
    out = stdout()
    for sentence in results["answer"]:
        out.print(f"- {sentence}", markup=False)
    bracketed = False
    for task, table in zip(results["tasks"], tables(results), strict=True):
        out.print(f"\n{task['task']}: {table.unit}", style="bold", markup=False)
        bracketed |= print_cells(out, table)
    out.print()
    out.print(f"{'In brackets: 95 % intervals; a' if bracketed else 'A'} dash was not measured.", markup=False)
    out.print(f"Computed in {results['model']['precision']}.", markup=False)
    print_files(out, directory)


def _table(results: Results, task: Task) -> Table:
    """Methods by length and depth, if the task takes one."""
    measure = _measures(results, task)[0]
    by_method = {name: m["cells"] for name in methods(results) for m in task["methods"] if m["method"] == name}
    every = [cell for cells in by_method.values() for cell in cells]
    depths = spread_out(sorted({cell["depth"] for cell in every}, key=lambda depth: depth or 0), MOST)
    rows: list[list[Cell]] = []
    for length in sorted({cell["length"] for cell in every}):
        for name, cells in by_method.items():
            at = {cell["depth"]: cell[measure.key] for cell in cells if cell["length"] == length}
            if at:
                rows.append([str(length), name, *(_cell(measure, at.get(depth)) for depth in depths)])
    heads = ("value" if depth is None else f"depth {100 * depth:.3g} %" for depth in depths)
    return Table(spelled(task["task"]), measure.axis, ["tokens", "method", *heads], rows, names=2)


def _cell(measure: Measure, estimate: Mapping[str, float] | None) -> Cell:
    if estimate is None:
        return "–"
    mean, interval = measure.words(estimate)
    return mean, f"({interval.removesuffix(' %')})"
