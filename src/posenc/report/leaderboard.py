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


def files(results: Results) -> dict[str, str | bytes]:
    """The files of the report: those of the table, and the pages of the tasks."""
    made = pages(results)
    first = first_of(figures_of(results))
    return beside(made["report.html"], tables(results), first, results) | made


def pages(results: Results) -> dict[str, str]:
    """The page of the table, and for each task one as of a comparison of it alone."""
    of_all = {name: results[name] for name in OF_ALL}
    tasks = {file_of(name): page({**of, **of_all}) for name, of in results["tasks"].items()}
    return {"report.html": table_page(results)} | tasks


def file_of(task: str) -> str:
    """The name of a task's page."""
    return f"{''.join(c if c.isalnum() else '_' for c in task)}.html"


def table_page(results: Results) -> str:
    """report.html: every encoding's dot and score in every task."""
    tasks = _measured(results)
    settings = {name: settings_of(of) for name, of in tasks.items()}
    drawn = figures_of(results)
    sizes = {name: (s.size_at(s.trained_at), s.size_at(s.conditions[-1])) for name, s in settings.items()}
    scores = {name: {v["name"]: _ends(v, settings[name]) for v in of["variants"]} for name, of in tasks.items()}
    figures = {plot.name: plot.figures for panel in drawn.values() for plot in panel.plots}
    return rendered(
        "leaderboard.html",
        figures,
        r=results,
        file_of=file_of,
        panel=drawn["dots"],
        gains={v["name"]: v["gain_within"] for of in tasks.values() for v in of["variants"] if "gain_within" in v},
        measured=tasks,
        sizes=sizes,
        scores=scores,
        mean_score=mean_score,
        costs={name: _costs(tasks, settings, name) for name in (row["encoding"] for row in results["table"])},
        margins={name: s.criterion.margin for name, s in settings.items()},
    )


def _measured(results: Results) -> dict[str, Results]:
    return {name: {**of, "task": of.get("task", name)} for name, of in results["tasks"].items()}


def figures_of(results: Results) -> dict[str, Panel]:
    """Every encoding's dot, by task."""
    tasks = _measured(results)
    settings = [settings_of(of) for of in tasks.values()]
    variants = [of["variants"] for of in tasks.values()]
    style = styles([variant for of in variants for variant in of])
    dots = plot("dots", [Choice("task", "Task:", [*tasks])], lambda at: trade_off(variants[at], settings[at], style))
    return {"dots": Panel("of-tasks", "Every encoding at the training length and at the longest", [dots], key=False)}


def tables(results: Results) -> list[Table]:
    """Of each task, its losses by budget and by context; then of all, how probably an encoding is within the tolerance of the
    best, and the mean of its scores."""
    ends = {"trained": "training length", "longest": "longest length"}
    tasks = results["settings"]["tasks"]
    head = ["encoding", *(f"{task}, {end}" for task in tasks for end in ends.values())]
    rows: list[list[Cell]] = []
    for row in results["table"]:
        near: list[Cell] = [_percent(row["near_best"][task].get(at)) for task in tasks for at in ends]
        scores = [mean_score(row[at]).partition(" ") for at in ENDS]
        rows.append([row["encoding"], *near, *((mean, half) if half else mean for mean, _, half in scores)])
    unit = "probability in percent to be within the tolerance of the best; mean of the scores in points of a hundred"
    of_all = Table("Positional encodings by task", unit, [*head, "mean score", "mean score, longest length"], rows)
    return [*(each for task, of in _measured(results).items() for each in _losses(task, of)), of_all]


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


def _costs(tasks: Mapping[str, Results], settings: Mapping[str, Experiment], name: str) -> dict[str, float]:
    """Parameters, seconds a step and bytes of a training step, of the first task."""
    task, of = next(iter(tasks.items()))
    variant = next(variant for variant in of["variants"] if variant["name"] == name)
    seconds = variant["training_seconds"] / settings[task].steps
    return {"parameters": variant["parameters"], "seconds": seconds, "bytes": variant["memory_bytes"]}


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
        out.print(f"\n{each.caption}", markup=False)
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
            where = "training length" if at == "trained" else "longest length"
            out.print(f"Left out of the mean: {task} at the {where}, which nobody learned.", markup=False)
    print_files(out, directory)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}"
