# SPDX-License-Identifier: Apache-2.0
"""A comparison as a page and on the terminal. Its variants are trained models, and ways to use one without training it again."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import quantiles
from typing import Any, NamedTuple

from posenc.analysis.finding import PALETTE
from posenc.errors import counted
from posenc.lab.budgets import verdicts
from posenc.lab.compare import experiment
from posenc.lab.experiment import Criterion, Experiment
from posenc.lab.statistics import Estimate
from posenc.lab.study import Results
from posenc.lab.synthetic.experiment import Synthetic
from posenc.lab.table import Cell, Table
from posenc.lab.text import Settings
from posenc.report.drawn import about, beside, first_of
from posenc.report.figures import DASHES, Figure, Rows, Style, axis, intervals, line, lines, point, trained
from posenc.report.html import Choice, Panel, Plot, percent, plot, rendered
from posenc.report.terminal import print_cells, print_files, stdout

__all__ = ["files", "page", "show", "tables"]

TEMPLATES = {Settings: "compare_text.html", Synthetic: "compare_synthetic.html"}
"""The templates of the pages of some experiments; others have compare.html."""

MANY = 12
"""More variants than this are shown as dots before they are shown as curves."""


def page(results: Results) -> str:
    """report.html for what results.json holds.

    Raises:
        InputError: an unknown task.
    """
    s, variants = settings_of(results), results["variants"]
    style = styles(variants)
    shown = panels(results, s, style)
    figures: dict[str, Any] = {plot.name: plot.figures for panel in shown.values() for plot in panel.plots}
    return rendered(
        next((template for kind, template in TEMPLATES.items() if isinstance(s, kind)), "compare.html"),
        figures | {"training": training(variants, style)},
        r=results,
        s=s,
        panels=shown,
        styles=style,
        ranked=columns(results, s),
        contexts=by_context(variants, s),
        budgets=by_budget(results, s) if results.get("curve") else None,
    )


def files(results: Results) -> dict[str, str | bytes]:
    """The files of a comparison beside results.json."""
    shown = panels(results, settings_of(results), styles(results["variants"]))
    return beside(page(results), tables(results), first_of(shown), results)


def tables(results: Results) -> list[Table]:
    """The ranked table with what each variant costs; where it was measured, after the table of losses by budget."""
    s, variants = settings_of(results), results["variants"]
    costs: dict[str, Callable[[Mapping[str, Any]], str]] = {
        f"training, {s.unit}s/s": lambda v: f"{v['train_tokens_per_second']:.0f}",
        "training, s": lambda v: f"{v['training_seconds']:.1f}",
        "activations, MiB": lambda v: f"{v['memory_bytes'] / 2**20:.0f}",
        "parameters": lambda v: str(v["parameters"]),
    }
    of_cost = [Column(title, [of(v) if v["trained"] else "–" for v in variants]) for title, of in costs.items()]
    verdict = Column("verdict", [variant["verdict"] for variant in variants])
    shown = [*columns(results, s), verdict, *by_context(variants, s), *of_cost]
    unit = "points of a hundred" if s.criterion.higher_is_better else f"nats per {s.unit}"
    ranked = tabulated("Which positional encoding?", unit, variants, shown)
    return [by_budget(results, s), ranked] if results.get("curve") else [ranked]


def by_budget(results: Results, s: Experiment) -> Table:
    """The loss of each encoding at each budget, and where it is predicted to be at four times the last one."""
    curve, m = results["curve"], s.criterion
    rows, of = curve["rows"], {variant["name"]: variant for variant in results["variants"]}
    at = {budget: [m.value(row["losses"][i]["mean"]) for row in rows] for i, budget in enumerate(curve["budgets"])}
    shown = [Column(f"loss at {budget} steps", losses) for budget, losses in at.items()]
    behind = [_parted(m, row["behind"]) if row["behind"] else "–" for row in rows]
    shown += [Column(f"predicted at {curve['at']}", verdicts(curve)), Column("behind the first", behind, True)]
    shown += gains([of[row["name"]] for row in rows], s, "gain_within")
    return tabulated("Loss by budget", f"nats per {s.unit} at the training {m.size}", rows, shown)


def _parted(m: Criterion, e: Mapping[str, Any]) -> tuple[str, str]:
    mean, half = m.difference(Estimate(*(e[key] for key in ("mean", "error", "low", "high")))).split(" ", 1)
    return mean, half


def panels(results: Results, s: Experiment, style: Mapping[str, Style]) -> dict[str, Panel]:
    """The figures with their buttons, by name."""
    variants, m = results["variants"], s.criterion
    shown = {}
    if len(s.conditions) > 1:
        if len(variants) > MANY:
            dots = Plot("dots", [], {"": trade_off(variants, s, style)})
            shown["dots"] = Panel("dots", f"{m.key} at the training {m.size} and at the longest", [dots], key=False)
        kinds = [m.key, "change"]
        choice = Choice("measure", "Shown:", kinds)
        draw = plot("change", [choice], lambda kind: by_condition(variants, s, style, kinds[kind]))
        shown["change"] = Panel("by-size", f"{m.key.capitalize()} by {m.size}", [draw])
    if curve := results.get("curve"):
        draw = plot("budget", [], lambda: _curves(curve, s, style))
        shown["budget"] = Panel("by-budget", "Loss by budget", [draw])
    return shown


def _curves(curve: Mapping[str, Any], s: Experiment, style: Mapping[str, Style]) -> Figure:
    """The measured losses over the steps; what is beyond them is predicted as an order, and not as losses."""
    series = []
    for row in curve["rows"]:
        losses = [point["mean"] for point in row["losses"]]
        series.append(line(row["name"], curve["budgets"], losses, style[row["name"]], dots=True, label=True))
    steps = axis("training steps", log=True, ticks=[[budget, str(budget)] for budget in curve["budgets"]])
    return lines(series, steps, axis(f"loss at {s.spelled(s.trained_at)}, nats per {s.unit}"))


def show(results: Results, directory: str) -> None:
    """The answer, the ranked table, and where the files are, on stdout."""
    out, s = stdout(), settings_of(results)
    for sentence in results["answer"]:
        out.print(f"- {sentence}", markup=False)
    *first, table = tables(results)
    for each in first:
        out.print()
        print_cells(out, each)
    verdict = table.head.index("verdict")
    rows = [row[: verdict + 1] for row in table.rows]  # what it costs is on the page
    out.print()
    print_cells(out, replace(table, head=table.head[: verdict + 1], rows=rows), [0, 1, *range(verdict - 1, 1, -1)])
    out.print()
    better = "points of a hundred, higher" if s.criterion.higher_is_better else f"nats per {s.unit}, lower"
    out.print(f"Changes in {better} is better; ± is half a 95 % interval.", markup=False)
    out.print("; ".join(f"{name}: {value}" for name, value in about(results).items()), markup=False, soft_wrap=True)
    print_files(out, directory)


def settings_of(results: Results) -> Experiment:
    """The settings of a comparison. Results of earlier versions, which had one task, are of text."""
    default = experiment(results.get("task", "text"))()
    known = default.to_dict().keys() & results["settings"]
    return default.changed(**{name: results["settings"][name] for name in known})


class Column(NamedTuple):
    """A column of numbers by variant, some with small print. interval: the small print is the value's interval, which is not left
    out beside a page."""

    title: str
    cells: Sequence[Cell]
    interval: bool = False

    @property
    def shown(self) -> list[Cell]:
        """The cells beside a page."""
        return [cell if self.interval or isinstance(cell, str) else cell[0] for cell in self.cells]


def tabulated(title: str, unit: str, rows: Rows, columns: Sequence[Column]) -> Table:
    """A table of encodings. rows: with their names."""
    cells = zip(*(column.shown for column in columns), strict=True)
    named = [[row["name"], *of] for row, of in zip(rows, cells, strict=True)]
    return Table(title, unit, ["encoding", *(column.title for column in columns)], named)


def columns(results: Results, s: Experiment) -> list[Column]:
    """The numbers of the ranked table, those at the training condition and at the last first."""
    m, variants = s.criterion, results["variants"]
    trained = s.conditions.index(s.trained_at)
    rows = [variant[m.points] for variant in variants]
    learned = [variant["verdict"] != "at chance" for variant in variants]
    ends = {s.trained_at: trained, s.conditions[-1]: -1}
    table = [
        Column(f"{m.key} at {s.size_at(at)}", [_level(row[end], m, of) for row, of in zip(rows, learned, strict=True)])
        for at, end in ends.items()
    ]
    for index, condition in enumerate(s.conditions):
        if index != trained:
            changes = [_parted(m, row[index]["change"]) for row in rows]
            table.append(Column(f"change at {s.size_at(condition)}", changes, True))
    if all("exact" in row[0] for row in rows):
        for index, condition in enumerate(s.conditions[:2]):
            exact = [m.value(row[index]["exact"]["mean"]) for row in rows]
            table.append(Column(f"all right at {s.size_at(condition)}", exact))
    near = [row[-1].get("near_best") for row in rows]
    if any(share is not None for share in near):
        shares = ["–" if share is None else percent(share) for share in near]
        table.append(Column(f"within {m.margin} of the best", shares))
    if any("learned" in variant for variant in variants):
        of = [variant.get("learned") for variant in variants]
        table.append(Column("learned", [f"{each['hits']} of {each['n']}" if each else "–" for each in of]))
    table += gains(variants, s, *(("gain",) if results.get("curve") else ("gain_within", "gain")))
    if s.unit == "token" and all("bits_per_byte" in row[-1] for row in rows):
        table.append(Column("bits per byte", [f"{row[-1]['bits_per_byte']:.3f}" for row in rows]))
    return table


def by_context(variants: Rows, s: Experiment) -> list[Column]:
    """A column of the loss at each context, where that was measured."""
    found = zip(*(variant.get("by_context", []) for variant in variants), strict=True)
    losses = {of[0]["context"]: [s.criterion.value(e["mean"]) for e in of] for of in found}
    return [Column(f"loss with {counted(context, s.unit)} of context", of) for context, of in losses.items()]


def gains(variants: Rows, s: Experiment, *keys: str) -> list[Column]:
    """A column of what context is worth for each of the keys that was measured."""
    found = [[variant[key] for variant in variants] for key in keys if key in variants[0]]
    title = f"gain from {{from}} to {{to}} {s.unit}s"
    return [Column(title.format_map(of[0]), [_parted(s.criterion, gain) for gain in of], True) for of in found]


def _level(point: Mapping[str, Any], m: Criterion, learned: bool) -> tuple[str, str]:
    """learned: it is better than guessing; what is not cannot be the best."""
    behind = Estimate(**point["behind_best"])
    best = "best" if learned else "at chance"
    small = best if behind.mean <= 0 else f"{m.difference(behind).lstrip('+')} behind"
    return m.value(point[m.key]["mean"]), small


# -------------------------------------------------------------------- figures


def styles(variants: Rows) -> dict[str, dict[str, Any]]:
    """A line style per variant: one colour per trained model, dashes for the ways to use it without training."""
    encodings = list(dict.fromkeys(sorted(variant["encoding"] for variant in variants)))
    by_name: dict[str, dict[str, Any]] = {}
    for variant in sorted(variants, key=lambda variant: (not variant["trained"], variant["name"])):
        index = encodings.index(variant["encoding"])
        siblings = sum(o["encoding"] == variant["encoding"] for o in variants if o["name"] in by_name)
        dash = siblings + index // len(PALETTE)
        by_name[variant["name"]] = {"colour": PALETTE[index % len(PALETTE)], "dash": DASHES[dash % len(DASHES)]}
    return {variant["name"]: by_name[variant["name"]] for variant in variants}


def _unit(s: Experiment) -> tuple[float, str]:
    """From the results' unit to that of an axis, and its name."""
    return (100, "%") if s.criterion.higher_is_better else (1, f"nats per {s.unit}")


def _sizes(s: Experiment) -> dict[str, Any]:
    """The axis of the sizes tested."""
    sizes = [s.size_at(condition) for condition in s.conditions]
    return axis(f"{s.criterion.size} in the test, {s.unit}s", log=True, ticks=[[size, str(size)] for size in sizes])


def by_condition(variants: Rows, s: Experiment, style: Mapping[str, Style], kind: str) -> Figure:
    """The measure under every condition, or its change from that of training; of shares also what guessing scores, and the best
    possible."""
    (scale, unit), m = _unit(s), s.criterion
    sizes = [s.size_at(condition) for condition in s.conditions]
    series: list[dict[str, Any]] = []
    paired = kind == "change"  # intervals of levels by themselves are wide, and would hide the lines
    for variant in variants:
        name, estimates = variant["name"], [point[kind] for point in variant[m.points]]
        y, shown = [scale * e["mean"] for e in estimates], intervals(estimates, scale)
        series.append(line(name, sizes, y, style[name], dots=True, label=True, quiet=not paired, **shown))
    marks = trained(s.size_at(s.trained_at), f"training {m.size}") if s.conditions[0] != s.trained_at else []
    if paired:
        marks = [*marks, {"y": 0, "label": ""}]
    elif m.higher_is_better:
        chance = variants[0][m.points][s.conditions.index(s.trained_at)].get("chance")
        ends = {"most common answer": chance, "all right": m.best}
        marks = [*marks, *({"y": scale * y, "label": label} for label, y in ends.items() if y is not None)]
    title = f"change of the {m.key}" if paired else m.key
    return lines(series, _sizes(s), axis(f"{title}, {unit}"), marks=marks, spread=paired)


def trade_off(variants: Rows, s: Experiment, style: Mapping[str, Style]) -> Figure:
    """A dot per variant: the measure at the training condition, and at the last. What is far from all others is at the
    edge with its number, so that it does not press these together."""
    (scale, unit), m = _unit(s), s.criterion
    conditions = (s.trained_at, s.conditions[-1])
    rows = [[variant[m.points][s.conditions.index(at)][m.key] for variant in variants] for at in conditions]
    edges = [_edges([scale * e["mean"] for e in row]) for row in rows]
    dots = []
    for variant, *of in zip(variants, *rows, strict=True):
        values = [m.value(e["mean"]) for e in of]
        ranges = [f"{v} ({m.value(e['low'])} to {m.value(e['high'])})" for v, e in zip(values, of, strict=True)]
        text = ", ".join(f"{words} at {s.spelled(at)}" for words, at in zip(ranges, conditions, strict=True))
        at, name = [scale * e["mean"] for e in of], variant["name"]
        inside = [min(max(value, low), high) for value, (low, high) in zip(at, edges, strict=True)]
        far = [text for text, value, end in zip(values, at, inside, strict=True) if value != end]
        label = f"{name} {', '.join(far)}" if far else True
        x, y = inside
        dots.append(point(name, x, y, style[name], texts=[text], label=label))
    x_axis, y_axis = (axis(f"{m.key} at {s.spelled(condition)}, {unit}") for condition in conditions)
    return lines(dots, x_axis, y_axis, height=460)


def _edges(values: Sequence[float]) -> tuple[float, float]:
    """The least and the largest value that is not three times the interquartile range away from the quartiles."""
    if len(values) < MANY:
        return -math.inf, math.inf
    low, _, high = quantiles(values, n=4)
    inner = [value for value in values if low - 3 * (high - low) <= value <= high + 3 * (high - low)]
    return min(inner), max(inner)


def training(variants: Rows, style: Mapping[str, Style]) -> Figure:
    """The loss of the training batches, mean over seeds."""
    of = {variant["name"]: variant["training"] for variant in variants if variant["trained"]}
    curves = [
        line(name, [p["step"] for p in points], [p["loss"] for p in points], style[name], label=True)
        for name, points in of.items()
    ]
    return lines(curves, axis("training step", low=0), axis("loss of the batch, nats"))
