# SPDX-License-Identifier: Apache-2.0
"""An evaluation as a page, and its tables on the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posenc.report import attention as looks
from posenc.report import eval_figures as figures
from posenc.report.eval_figures import BASES, MEASURES, Measure
from posenc.report.html import Choice, Panel, plot, rendered, signed
from posenc.report.terminal import (  # before rich: it says what to install if that is missing
    Rows,
    print_files,
    print_table,
    spread_out,
    stdout,
)

# isort: split
from rich.markup import escape

__all__ = ["Section", "difference", "difference_within", "methods", "page", "show", "value", "within"]

Results = Mapping[str, Any]
Task = Mapping[str, Any]
Value = Mapping[str, float]

HEADINGS = {"score": "right answers", "exact": "right, by likelihood", "loss": "loss: lower is better"}
"""What ranks the methods on a task, in the head of its column."""
MOST = 5
"""Depths side by side on a terminal."""


def page(results: Results) -> str:
    """report.html for what results.json holds."""
    styles = figures.styles(methods(results))
    sections = [_section(f"task-{number}", task, results, styles) for number, task in enumerate(results["tasks"])]
    attention = looks.panels(results["attention"], styles) if results["attention"] else {}
    panels = [*(panel for section in sections for panel in section.panels), *attention.values()]
    ranked_by = {row["task"]: HEADINGS[row["measure"]] for at in results["ranking"] for row in at["tasks"]}
    return rendered(
        "eval.html",
        {name: figure for panel in panels for name, figure in panel.figures.items()},
        r=results,
        sections=sections,
        judged=[m for m in MEASURES.values() if any(m in section.measures for section in sections)],
        ranked_by=ranked_by,
        attention=attention,
        attention_sentences=looks.sentences(results["attention"]) if attention else {},
        styles=styles,
        bases=BASES,
        costs={row["method"]: row for name in styles for row in results["cost"] if row["method"] == name},
        asked=[task["task"] for task in results["tasks"]],
        value=value,
        within=within,
        difference=difference,
        difference_within=difference_within,
    )


def methods(results: Results) -> list[str]:
    """The methods in the order of every figure and table: first those that do nothing, then as they were asked for."""
    names = dict.fromkeys(method["method"] for task in results["tasks"] for method in task["methods"])
    return [m for m in BASES if m in names] + [m for m in names if m not in BASES]


@dataclass
class Section:
    """What the page says about one task. measures: those it has numbers of, the one that ranks methods first. sides:
    whether there are texts within the trained length, past it, or both. middles: by method and length, how the depths
    in between come off against the outermost two."""

    id: str
    task: Task
    measures: list[Measure]
    sides: set[bool]
    depth: Panel | None = None
    grid: Panel | None = None
    length: Panel | None = None
    position: Panel | None = None
    cells: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    middles: dict[str, dict[int, Any]] = field(default_factory=dict)

    @property
    def lengths(self) -> list[int]:
        return sorted({cell["length"] for _, cell in self.cells})

    @property
    def panels(self) -> list[Panel]:
        return [panel for panel in (self.depth, self.grid, self.length, self.position) if panel]


def _section(id: str, task: Task, results: Results, styles: Mapping[str, Mapping[str, str]]) -> Section:
    trained = results["model"]["trained_length"]
    names = [name for name in styles if any(m["method"] == name for m in task["methods"])]
    by_method = {name: next(m for m in task["methods"] if m["method"] == name) for name in names}
    cells = [(name, cell) for name in names for cell in by_method[name]["cells"]]
    sides = {cell["length"] <= trained for _, cell in cells} if trained else set()
    section = Section(id, task, _measures(results, task), sides, cells=cells)
    if not cells:
        return section
    rates = [m for m in section.measures if m.scale == 100]
    measure = Choice("measure", [("Judged by the", [m.name for m in rates])])
    by_name = {name: by_method[name]["by_length"] for name in names}

    def by_length(number: int) -> Any:
        return figures.by_length(by_name, styles, rates[number], trained, beside=True)

    def loss_by_length() -> Any:
        return figures.by_length(by_name, styles, MEASURES["loss"], trained, beside=bool(rates))

    plots = [plot(f"{id}-length", [measure], by_length)] if rates else []
    plots.append(plot(f"{id}-length-loss", [], loss_by_length))
    if len(section.lengths) > 1:
        section.length = Panel(f"{id}-by-length", f"{task['task']} by length", [measure], plots)
    if task["takes_depth"]:
        section.depth = _depth_panel(section, trained, names, styles, rates, measure)
        section.grid = _by_length_and_depth(section, trained, names, rates)
        middles = {name: {at["length"]: at["middle"] for at in by_name[name] if at.get("middle")} for name in names}
        section.middles = {name: at for name, at in middles.items() if at}
    if any(method["by_position"] for method in by_method.values()):
        section.position = _by_position(section, by_method, trained, styles)
    return section


def _measures(results: Results, task: Task) -> list[Measure]:
    """The measure that ranks the methods on this task, and the others that it has numbers of; for running text the loss alone."""
    ranking = [row["measure"] for at in results["ranking"] for row in at["tasks"] if row["task"] == task["task"]]
    cells = [cell for method in task["methods"] for cell in method["cells"]]
    first = ranking[0] if ranking else "score" if any(cell["score"] for cell in cells) else "loss"
    if first == "loss" and not task["takes_depth"] and not task["generates"]:
        return [MEASURES["loss"]]
    have = [m for key, m in MEASURES.items() if key == "exact" or any(cell[key] for cell in cells)]
    return sorted(have, key=lambda m: m.key != first)


def _depth_panel(
    section: Section,
    trained: int | None,
    names: Sequence[str],
    styles: Mapping[str, Mapping[str, str]],
    rates: Sequence[Measure],
    measure: Choice,
) -> Panel:
    lengths = section.lengths
    of_length = {_tokens(n): style for n, style in figures.length_styles(lengths, trained).items()}
    at = [f"{n}" for n in lengths] if len(names) > 1 or len(lengths) == 1 else []
    along = list(names) if len(lengths) > 1 else []
    lines = Choice("lines", [("Methods at", [f"{n} tokens" for n in at]), ("Lengths with", along)], max(len(at) - 1, 0))

    def draw(number: int, shown: Measure) -> Any:
        if number < len(at):
            chosen = {n: [c for m, c in section.cells if m == n and c["length"] == lengths[number]] for n in names}
            return figures.by_depth(chosen, styles, shown, methods=True)
        name = along[number - len(at)]
        by_length = {_tokens(n): [c for m, c in section.cells if m == name and c["length"] == n] for n in lengths}
        return figures.by_depth(by_length, of_length, shown, methods=False)

    plots = [
        plot(f"{section.id}-depth", [lines, measure], lambda number, of: draw(number, rates[of])),
        plot(f"{section.id}-depth-loss", [lines], lambda number: draw(number, MEASURES["loss"])),
    ]
    return Panel(f"{section.id}-by-depth", f"{section.task['task']} by depth", [lines, measure], plots)


def _by_length_and_depth(
    section: Section, trained: int | None, names: Sequence[str], rates: Sequence[Measure]
) -> Panel:
    grid = figures.Grid(section.lengths, sorted({cell["depth"] for _, cell in section.cells}), trained)
    offered = [*rates, MEASURES["loss"]]
    method = Choice("method", [("Method", names)])
    measure = Choice("shown", [("Judged by the", [m.name for m in offered])])
    compared = "none" in names and len(names) > 1
    against = Choice("against", [("Shown", ["as it is", "as difference to none"][: 1 + compared])])
    by_method = {name: [c for m, c in section.cells if m == name] for name in names}

    def draw(number: int, of: int, differs: int) -> Any:
        cells, shown = by_method[names[number]], offered[of]
        if differs:
            return figures.heat_difference(cells, by_method["none"], grid, shown, _furthest(by_method, shown))
        return figures.heat(cells, grid, shown, _ends(section, shown))

    choices = [method, measure, against]
    return Panel(
        f"{section.id}-heat",
        f"{section.task['task']} by length and depth",
        choices,
        [plot(f"{section.id}-grid", choices, draw)],
        key=False,
    )


def _ends(section: Section, measure: Measure) -> tuple[float, float]:
    """The ends of a scale that serves every method."""
    if measure.scale == 100:
        return 0.0, 100.0
    means = [cell[measure.key]["mean"] for _, cell in section.cells]
    return min(means), max(means)


def _furthest(by_method: Mapping[str, Sequence[Mapping[str, Any]]], measure: Measure) -> float:
    """The greatest difference to the model as it is that any method has; a scale for all of them."""
    if measure.scale == 100:
        return 100.0
    base = {(c["length"], c["depth"]): c[measure.key]["mean"] for c in by_method["none"]}
    differences = [
        abs(c[measure.key]["mean"] - base[c["length"], c["depth"]])
        for cells in by_method.values()
        for c in cells
        if (c["length"], c["depth"]) in base
    ]
    return max(differences, default=0.0) or 1.0


def _by_position(
    section: Section, by_method: Mapping[str, Any], trained: int | None, styles: Mapping[str, Mapping[str, str]]
) -> Panel:
    lengths = sorted({curve["length"] for method in by_method.values() for curve in method["by_position"]})
    at = Choice("length", [("Texts of", [_tokens(n) for n in lengths])], len(lengths) - 1)
    compared = "none" in by_method and len(by_method) > 1
    against = Choice("against", [("Shown", ["as it is", "as difference to none"][: 1 + compared])])

    def draw(number: int, differs: int) -> Any:
        length = lengths[number]
        curves = {
            name: curve["points"]
            for name, method in by_method.items()
            for curve in method["by_position"]
            if curve["length"] == length
        }
        if differs:
            return figures.loss_above(curves, curves.get("none", ()), styles, trained, length)
        return figures.loss_by_position(curves, styles, trained, length)

    name, choices = f"{section.id}-position", [at, against]
    return Panel(f"{name}s", f"{section.task['task']} by position", choices, [plot(name, choices, draw)])


def _tokens(length: int) -> str:
    return f"{length} tokens"


def value(measure: str, estimate: Value) -> str:
    """A number as a reader wants it: "62 %", "2.31"."""
    return MEASURES[measure].text(estimate["mean"])


def within(measure: str, estimate: Value) -> str:
    """Its interval: "45 to 77 %"."""
    low, high = (MEASURES[measure].text(estimate[end]) for end in ("low", "high"))
    return f"{low.removesuffix(' %')} to {high}"


def difference(measure: str, estimate: Value) -> str:
    """A difference to the model as it is: "+12 points", "−0.310"."""
    return _signed(estimate["mean"], measure) + (" points" if MEASURES[measure].scale == 100 else "")


def difference_within(measure: str, estimate: Value) -> str:
    """Its interval: "+3 to +21"."""
    return " to ".join(_signed(estimate[end], measure) for end in ("low", "high"))


def _signed(value: float, measure: str) -> str:
    return signed(100 * value, 0) if MEASURES[measure].scale == 100 else signed(value)


def show(results: Results, directory: str) -> None:
    """The answer, a table per task, and the files, on stdout."""
    out = stdout()
    for sentence in results["answer"]:
        out.print(f"- {sentence}", markup=False)
    for task in results["tasks"]:
        measure = _measures(results, task)[0]
        out.print(f"\n[bold]{escape(task['task'])}[/bold]: {measure.axis}")
        print_table(out, *(_by_depth if task["takes_depth"] else _by_length)(results, task, measure))
    out.print()
    out.print("In brackets: 95 % intervals; a dash was not measured.", markup=False)
    out.print(f"Computed in {results['model']['precision']}.", markup=False)
    print_files(out, directory, Report="report.html", Numbers="results.json")


def _by_length(results: Results, task: Task, measure: Measure) -> tuple[list[str], list[str], Rows]:
    """Methods by lengths: the heads of the names and of the numbers, and the rows."""
    by_method = {method["method"]: method["by_length"] for method in task["methods"]}
    lengths = sorted({at["length"] for rows in by_method.values() for at in rows})
    rows: Rows = []
    for name in (name for name in methods(results) if name in by_method):
        at = {row["length"]: row[measure.key] for row in by_method[name]}
        rows.append(([name], [_briefly(measure, at.get(n)) for n in lengths]))
    return ["method"], [_tokens(n) for n in lengths], rows


def _by_depth(results: Results, task: Task, measure: Measure) -> tuple[list[str], list[str], Rows]:
    """Methods by depths, at the longest length that is no longer than the trained one and at the longest."""
    by_method = {method["method"]: method["cells"] for method in task["methods"]}
    cells = [cell for rows in by_method.values() for cell in rows]
    lengths, depths = (sorted({cell[key] for cell in cells}) for key in ("length", "depth"))
    within = [n for n in lengths if n <= (results["model"]["trained_length"] or 0)]
    depths = spread_out(depths, MOST)
    rows: Rows = []
    for length in sorted({*within[-1:], *lengths[-1:]}):
        for name in (name for name in methods(results) if name in by_method):
            at = {c["depth"]: c[measure.key] for c in by_method[name] if c["length"] == length}
            if at:
                rows.append(([str(length), name], [_briefly(measure, at.get(depth)) for depth in depths]))
    return ["tokens", "method"], [f"depth {100 * depth:.3g} %" for depth in depths], rows


def _briefly(measure: Measure, estimate: Value | None) -> str:
    if estimate is None:
        return "–"
    return f"{value(measure.key, estimate)} ({within(measure.key, estimate).removesuffix(' %')})"
