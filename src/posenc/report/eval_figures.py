# SPDX-License-Identifier: Apache-2.0
"""The figures of an evaluation, one function each: parts of results.json in, a plotly figure out.

A trace's `meta` is its method, by which the page shows and hides it. Where a figure has a `coloraxis`, the page gives its
colours: one hue for amounts, two around the middle (`cmid`) for differences.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from posenc.report.figures import DASHES, PALETTE, Figure, Rows, error_bars, line, mark
from posenc.report.html import percent, signed

NEUTRAL = "#7f8894"
BASES = {"none": "solid", "cut_off": "dash"}
"""The baselines and their lines: grey, so that a colour always means a method."""
STEPS = ("#8cc0e3", "#4f9ad6", "#2b78bd", "#e0a100", "#e4572e", "#c9305f")
"""Lengths, short to long: blue within the trained length, from yellow to red past it."""
NEAR = 1.5
"""A trained length this many times the longest text is still marked."""

Style = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """One of the numbers of a cell. key: as in the results. name: on a button. meaning: in a sentence. axis: with its unit.
    scale: what one of the results' units is in the axis's. good: what is better, "high" or "low"."""

    key: str
    name: str
    meaning: str
    axis: str
    scale: float
    good: str

    def text(self, value: float) -> str:
        """A value, in the results' unit, as a reader wants it."""
        return percent(value) if self.scale == 100 else f"{value:.2f}"


MEASURES = {
    "score": Measure(
        "score",
        "generated answer",
        "The model writes an answer, always taking the likeliest token, and the task says how right it is.",
        "right answers, %",
        100,
        "high",
    ),
    "exact": Measure(
        "exact",
        "likeliest tokens",
        "An answer is right if each of its tokens is the one that the model finds likeliest after the right ones before it: "
        "the model would write it word for word.",
        "right answers by likelihood, %",
        100,
        "high",
    ),
    "loss": Measure(
        "loss",
        "loss",
        "How surprised the model is by the right answer, in nats a token: 0 is certain, 0.69 is a coin flip. Lower is better.",
        "loss, nats a token",
        1,
        "low",
    ),
}


def styles(methods: Iterable[str]) -> dict[str, dict[str, str]]:
    """A line style per method, the same in every figure."""
    by_name = {}
    looks = ((color, dash) for dash in itertools.cycle(DASHES) for color in PALETTE[:-1])  # without the palette's grey
    for method in methods:
        color, dash = (NEUTRAL, BASES[method]) if method in BASES else next(looks)
        by_name[method] = {"color": color, "dash": dash}
    return by_name


def length_styles(lengths: Sequence[int], trained: int | None) -> dict[int, dict[str, str]]:
    """A line style per length, the same in every figure."""
    within = [n for n in lengths if not trained or n <= trained]
    past = [n for n in lengths if n not in within]
    half = len(STEPS) // 2
    return {
        n: {"color": _step(steps, i, len(group)), "dash": "solid" if group is within else "dash"}
        for group, steps in ((within, STEPS[:half]), (past, STEPS[half:]))
        for i, n in enumerate(group)
    }


def _step(steps: Sequence[str], index: int, count: int) -> str:
    return steps[round(index * (len(steps) - 1) / (count - 1))] if count > 1 else steps[-1]


def by_depth(lines: Mapping[str, Rows], style: Mapping[str, Style], measure: Measure, *, methods: bool) -> Figure:
    """A measure against where the answer stands, a line per method or per length, with 95 % intervals. lines: cells by name.
    methods: whether the names are methods."""
    figure = Figure()
    depths = sorted({c["depth"] for cells in lines.values() for c in cells})
    apart = min((b - a for a, b in pairwise(depths)), default=0.2)
    for index, (name, cells) in enumerate(lines.items()):
        shift = (index - (len(lines) - 1) / 2) * min(1.2, 40 * apart / len(lines))
        points = sorted((c for c in cells if c[measure.key] is not None), key=lambda c: c["depth"])
        figure.add_scatter(
            x=[100 * c["depth"] + shift for c in points],
            **_values(points, measure, style[name]),
            text=[f"depth {100 * c['depth']:g} %{_position(c)}, {c['n']} samples" for c in points],
            **_line(name, style[name], methods),
        )
    marks = [100 * depth for depth in depths] if len(depths) <= 7 else [0, 25, 50, 75, 100]
    ends = {0: "<br>start", 100: "<br>end"}
    figure.update_xaxes(title="where the answer stands in the text", range=[-7, 107], zeroline=False)
    figure.update_xaxes(tickvals=marks, ticktext=[f"{mark:.3g} %{ends.get(mark, '')}" for mark in marks])
    figure.update_yaxes(**_axis(measure, beside=True))
    return figure.update_layout(showlegend=not methods)


def by_length(
    lines: Mapping[str, Rows], style: Mapping[str, Style], measure: Measure, trained: int | None, *, beside: bool
) -> Figure:
    """A measure against the length of the text, a line per method, depths pooled. lines: the "by_length" of each method.
    beside: whether the figure stands beside one of a hit rate, so that a loss is drawn upside down."""
    figure = Figure()
    for index, (name, rows) in enumerate(lines.items()):
        shift = 1.008 ** (index - (len(lines) - 1) / 2)
        points = sorted((row for row in rows if row[measure.key] is not None), key=lambda row: row["length"])
        figure.add_scatter(
            x=[row["length"] * shift for row in points],
            **_values(points, measure, style[name]),
            text=[f"{row['length']} tokens, {row['n']} samples" for row in points],
            **_line(name, style[name], methods=True),
        )
    lengths = sorted({row["length"] for rows in lines.values() for row in rows})
    figure.update_xaxes(title="length of the text, tokens", type="log", tickvals=lengths, ticktext=lengths)
    marked = trained if trained and lengths and trained <= NEAR * lengths[-1] else None
    if lengths:
        ends = [math.log10(lengths[0] / 1.15), math.log10(max(lengths[-1], marked or 0) * 1.15)]
        figure.update_xaxes(range=ends)
    figure.update_yaxes(**_axis(measure, beside))
    _mark_trained(figure, marked, lengths, log=True)
    return figure.update_layout(showlegend=False)


def loss_by_position(
    curves: Mapping[str, Rows], style: Mapping[str, Style], trained: int | None, length: int
) -> Figure:
    """The loss at each position of running text, a line per method with its 95 % band. curves: points by method."""
    figure = Figure()
    for name, points in curves.items():
        x, low, high = ([p[key] for p in points] for key in ("position", "low", "high"))
        figure.add_scatter(
            x=x + x[::-1],
            y=high + low[::-1],
            fill="toself",
            fillcolor=_faint(style[name]["color"], 0.12),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            meta=name,
        )
    for name, points in curves.items():
        interval = [[p["low"], p["high"]] for p in points]
        hover = "%{y:.2f} (%{customdata[0]:.2f} to %{customdata[1]:.2f}) around token %{x:.0f}"
        figure.add_scatter(
            **_curve(name, points, style[name], hover), y=[p["loss"] for p in points], customdata=interval
        )
    figure.update_yaxes(**_axis(MEASURES["loss"], beside=False))
    return _by_position(figure, trained, length)


def loss_above(
    curves: Mapping[str, Rows], base: Rows, style: Mapping[str, Style], trained: int | None, length: int
) -> Figure:
    """By how much each method's loss exceeds that of the model as it is, on the same passages. base: the latter's points."""
    figure = Figure()
    theirs = {p["position"]: p["loss"] for p in base}
    for name, points in curves.items():
        common = [p for p in points if p["position"] in theirs]
        above = [p["loss"] - theirs[p["position"]] for p in common]
        figure.add_scatter(**_curve(name, common, style[name], "%{y:+.3f} around token %{x:.0f}"), y=above)
    figure.update_yaxes(title="loss above none, nats a token", zeroline=True)
    return _by_position(figure, trained, length)


def _curve(name: str, points: Rows, style: Style, hover: str) -> dict[str, Any]:
    return {
        "x": [p["position"] for p in points],
        "meta": name,
        **line(name, style, hover, width=2, mode="lines"),
    }


def _by_position(figure: Figure, trained: int | None, length: int) -> Figure:
    figure.update_xaxes(title="position in the text, tokens", range=[0, length])
    _mark_trained(figure, trained if trained and trained < length else None, (1, length), log=False)
    return figure.update_layout(showlegend=False)


@dataclass(frozen=True)
class Grid:
    """The columns and rows of a heat map, and where the trained length ends."""

    lengths: Sequence[int]
    depths: Sequence[float]
    trained: int | None


def heat(cells: Rows, grid: Grid, measure: Measure, ends: tuple[float, float]) -> Figure:
    """A measure by length and depth, with its numbers. ends: of the scale, in the axis's unit; the same for every method."""
    shown = {}
    for c in (c for c in cells if c[measure.key] is not None):
        mean, low, high = (measure.text(c[measure.key][key]) for key in ("mean", "low", "high"))
        level = c[measure.key]["mean"] * measure.scale
        shown[c["length"], c["depth"]] = level, mean.removesuffix(" %"), f"{mean} ({low} to {high})"
    figure = _cells(shown, grid)
    axis = {"cmin": ends[0], "cmax": ends[1], "reversescale": measure.good == "low"}
    return figure.update_layout(coloraxis=axis | _bar(measure, ""))


def heat_difference(cells: Rows, base: Rows, grid: Grid, measure: Measure, end: float) -> Figure:
    """How much a method's cells differ from those of the model as it is; bold where the interval leaves out 0.

    Of two shares or means the interval is Newcombe's (1998, method 10), from theirs; it takes them as independent, so that it
    is rather too wide for samples that both have read. end: of the scale, to both sides of 0.
    """
    theirs = {(c["length"], c["depth"]): c[measure.key] for c in base}
    sign = 1 if measure.good == "high" else -1
    shown = {}
    for c in cells:
        one, other = c[measure.key], theirs.get((c["length"], c["depth"]))
        if one is None or other is None:
            continue
        mean, low, high = newcombe(one, other)
        digits, unit = (0, "points") if measure.scale == 100 else (2, "nats")
        text, *ends = (signed(measure.scale * x, digits) for x in (mean, low, high))
        interval = f"{ends[0]} to {ends[1]} {unit}"
        sure = f"<b>{text}</b>" if low > 0 or high < 0 else text
        hover = f"{text} ({interval}): {measure.text(one['mean'])} against {measure.text(other['mean'])}"
        shown[c["length"], c["depth"]] = (mean * measure.scale, sure, hover)
    figure = _cells(shown, grid)
    axis = {"cmin": -end, "cmax": end, "cmid": 0, "reversescale": sign < 0}
    return figure.update_layout(coloraxis=axis | _bar(measure, "difference, "))


def newcombe(one: Mapping[str, float], other: Mapping[str, float]) -> tuple[float, float, float]:
    """The difference of two estimates with its 95 % interval, from the intervals of both."""
    mean = one["mean"] - other["mean"]
    low = mean - math.hypot(one["mean"] - one["low"], other["high"] - other["mean"])
    high = mean + math.hypot(one["high"] - one["mean"], other["mean"] - other["low"])
    return mean, low, high


def _cells(shown: Mapping[tuple[int, float], tuple[float, str, str]], grid: Grid) -> Figure:
    """Coloured cells, (colour, text, hover) by (length, depth); what was not measured is a dash on the ground."""
    missing = (None, "", "")
    rows = [[shown.get((length, depth), missing) for length in grid.lengths] for depth in grid.depths]
    x, y = [str(length) for length in grid.lengths], [f"{100 * depth:.3g} %" for depth in grid.depths]
    figure = Figure()
    figure.add_heatmap(
        x=x,
        y=y,
        z=[[cell[0] for cell in row] for row in rows],
        text=[[cell[1] for cell in row] for row in rows],
        customdata=[[cell[2] for cell in row] for row in rows],
        texttemplate="%{text}",
        hovertemplate="%{customdata}<br>%{x} tokens, depth %{y}<extra></extra>",
        hoverongaps=False,
        coloraxis="coloraxis",
        xgap=2,
        ygap=2,
    )
    for row, depth in zip(rows, y, strict=True):
        for cell, length in zip(row, x, strict=True):
            if cell is missing:
                figure.add_annotation(x=length, y=depth, text="–", showarrow=False)
    within = sum(length <= grid.trained for length in grid.lengths) if grid.trained else 0
    if 0 < within < len(x):
        figure.add_vline(x=within - 0.5, line={"dash": "dot", "width": 2, "color": "#888"})
    figure.update_xaxes(title="length of the text, tokens", type="category", showgrid=False)
    figure.update_xaxes(categoryorder="array", categoryarray=x)
    figure.update_yaxes(title="depth of the answer", type="category", showgrid=False, autorange="reversed")
    figure.update_yaxes(categoryorder="array", categoryarray=y)
    return figure


def _bar(measure: Measure, before: str) -> dict[str, Any]:
    unit = "%" if measure.scale == 100 else "nats"
    title = before + ("points" if before and unit == "%" else unit)
    return {"colorbar": {"title": {"text": title, "side": "right"}, "thickness": 12, "outlinewidth": 0}}


def _values(points: Rows, measure: Measure, style: Style) -> dict[str, Any]:
    """A trace's heights and intervals."""
    values = [point[measure.key] for point in points]
    return {
        "y": [measure.scale * v["mean"] for v in values],
        "error_y": error_bars(values, measure.scale)
        | {"thickness": 1.5, "width": 0, "color": _faint(style["color"], 0.5)},
        "customdata": [[measure.text(v[key]) for key in ("mean", "low", "high")] for v in values],
    }


def _line(name: str, style: Style, methods: bool) -> dict[str, Any]:
    return {
        "meta": name if methods else None,
        "marker": {"size": 7},
        **line(name, style, "%{customdata[0]} (%{customdata[1]} to %{customdata[2]})<br>%{text}"),
    }


def _axis(measure: Measure, beside: bool) -> dict[str, Any]:
    if measure.scale == 100:
        return {"title": measure.axis, "range": [-4, 104], "tickvals": [0, 25, 50, 75, 100], "zeroline": False}
    floor = {"autorangeoptions": {"clipmin": 0}, "zeroline": False}  # no interval of a loss is shown below 0
    if beside:
        return floor | {"title": f"{measure.axis} (up is better)", "autorange": "reversed"}
    return floor | {"title": f"{measure.axis}: lower is better"}


def _mark_trained(figure: Figure, trained: int | None, seen: Sequence[int], log: bool) -> None:
    """A line at the trained length, and its name on the side where there is more room. seen: what the axis shows."""
    if not trained or not seen:
        return
    middle = math.sqrt(seen[0] * seen[-1]) if log else (seen[0] + seen[-1]) / 2
    side = {"xanchor": "left", "xshift": 6} if trained < middle else {"xanchor": "right", "xshift": -6}
    mark(figure, trained, "trained length", log=math.log10(trained) if log else None, yanchor="top", **side)


def _position(cell: Mapping[str, Any]) -> str:
    return "" if cell["position"] is None else f" (token {cell['position']:.0f})"


def _faint(color: str, opacity: float) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
