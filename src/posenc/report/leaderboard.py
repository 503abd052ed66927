# SPDX-License-Identifier: Apache-2.0
"""Several tasks of the same comparison: the page of each, and one table of all, on the terminal and as a page."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from posenc.lab.experiment import Criterion, Experiment
from posenc.lab.leaderboard import ENDS
from posenc.lab.study import Results
from posenc.lab.table import Cell, Table
from posenc.report.compare import by_budget, by_context, gains, page, settings_of, styles, tabulated, trade_off
from posenc.report.drawn import beside, first_of
from posenc.report.html import Choice, Panel, plot, rendered
from posenc.report.terminal import print_cells, print_files, stdout

OF_ALL = ("complete", "created", "seconds", "command", "runs", "machine")
"""What the page of a task takes from the results of all."""
WHERE = dict(zip(ENDS, ("training length", "longest length"), strict=True))


def files(results: Results) -> dict[str, str | bytes]:
    """The files of the report: those of all tasks, and for each task a page as of a comparison of it alone."""
    of_all = {name: results[name] for name in OF_ALL}
    pages = {file_of(name): page({**of, **of_all}) for name, of in results["tasks"].items()}
    return beside(table_page(results), tables(results), first_of(figures_of(results)), results) | pages


def file_of(task: str) -> str:
    """The name of a task's page."""
    return f"{''.join(c if c.isalnum() else '_' for c in task)}.html"


def table_page(results: Results) -> str:
    """report.html: every encoding's dot and score in every task."""
    tasks = results["tasks"]
    settings = {name: settings_of(of) for name, of in tasks.items()}
    drawn = figures_of(results)
    scores = {name: {v["name"]: _ends(v, settings[name]) for v in of["variants"]} for name, of in tasks.items()}
    figures = {plot.name: plot.figures for panel in drawn.values() for plot in panel.plots}
    return rendered(
        "leaderboard.html",
        figures,
        r=results,
        file_of=file_of,
        panel=drawn["dots"],
        gains={v["name"]: v["gain_within"] for of in tasks.values() for v in of["variants"] if "gain_within" in v},
        settings=settings,
        scores=scores,
        mean_score=mean_score,
    )


def figures_of(results: Results) -> dict[str, Panel]:
    """Every encoding's dot, by task."""
    tasks = results["tasks"]
    settings = [settings_of(of) for of in tasks.values()]
    variants = [of["variants"] for of in tasks.values()]
    style = styles([variant for of in variants for variant in of])
    dots = plot("dots", [Choice("task", "Task:", [*tasks])], lambda at: trade_off(variants[at], settings[at], style))
    return {"dots": Panel("of-tasks", "Every encoding at the training length and at the longest", [dots], key=False)}


def tables(results: Results) -> list[Table]:
    """Of each task, its losses by budget and by context; then of all, how probably an encoding is within the tolerance of the
    best, and the mean of its scores."""
    tasks = results["settings"]["tasks"]
    head = ["encoding", *(f"{task}, {WHERE[at]}" for task in tasks for at in ENDS)]
    rows: list[list[Cell]] = []
    for row in results["table"]:
        shares = [row["near_best"][task].get(at) for task in tasks for at in ENDS]
        near: list[Cell] = ["–" if share is None else f"{100 * share:.0f}" for share in shares]
        scores = [mean_score(row[at]).partition(" ") for at in ENDS]
        rows.append([row["encoding"], *near, *((mean, half) if half else mean for mean, _, half in scores)])
    unit = "probability in percent to be within the tolerance of the best; mean of the scores in points of a hundred"
    of_all = Table("Positional encodings by task", unit, [*head, "mean score", "mean score, longest length"], rows)
    return [*(each for task, of in results["tasks"].items() for each in _losses(task, of)), of_all]


def _losses(task: str, of: Results) -> list[Table]:
    """The losses of a task by budget and by context, and what context is worth, where these were measured."""
    s, variants = settings_of(of), of["variants"]
    found = [by_budget(of, s)] if of.get("curve") else []
    if seen := [*by_context(variants, s), *gains(variants, s, "gain_within", "gain")]:
        found.append(tabulated("Loss by context", f"nats per {s.unit}", variants, seen))
    return [replace(each, title=f"{task}: {each.title}") for each in found]


def _ends(variant: Mapping[str, Any], s: Experiment) -> dict[str, Any]:
    """What a variant scores at the training length and at the longest: as text, as an estimate, and in tenths of the way from
    guessing to the best possible, by which the table is coloured."""
    m = s.criterion
    points = {"trained": variant[m.points][s.conditions.index(s.trained_at)], "longest": variant[m.points][-1]}
    return {at: (m.value(point[m.key]["mean"]), point[m.key], _tenths(point, m)) for at, point in points.items()}


def _tenths(point: Mapping[str, Any], m: Criterion) -> int:
    """0 too where guessing is not known."""
    chance = point.get("chance")
    share = 0.0 if chance is None else (point[m.key]["mean"] - chance) / (m.best - chance)
    return round(10 * min(max(share, 0.0), 1.0))


def mean_score(e: Mapping[str, float] | None) -> str:
    """ "77 (75 to 79)": a mean of scores in points of a hundred, and its interval."""
    text = "–" if e is None else f"{100 * e['mean']:.0f} ({100 * e['low']:.0f} to {100 * e['high']:.0f})"
    return text.replace("-", "−")


def show_tasks(results: Results, directory: str) -> None:
    """The table of all tasks, and where the files are, on stdout."""
    out, (*of_tasks, table) = stdout(), tables(results)
    for line in results["answer"]:
        out.print(f"- {line}", markup=False)
    for each in of_tasks:
        out.print(f"\n{each.caption}", style="bold", markup=False)
        print_cells(out, each)
    out.print()
    last = len(table.head) - 1
    print_cells(out, table, [last - 2, last - 1, *range(last - 2)])
    out.print()
    out.print(
        "By task: how probably (%) an encoding is within the tolerance of the best, at the training length and at the longest. "
        "Mean: of the scores with guessing at 0 and the best possible at 100, with a 95 % interval, also at the longest.",
        markup=False,
    )
    for task, ends in results["not_learned"].items():
        for at in ends:
            out.print(f"Left out of the mean: {task} at the {WHERE[at]}, which nobody learned.", markup=False)
    print_files(out, directory)
