# SPDX-License-Identifier: Apache-2.0
"""The files that a study has beside its page: its tables, and its first figure, drawn by matplotlib."""

import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from posenc.errors import counted, printable
from posenc.lab.table import Table, as_csv, markdown
from posenc.report.figures import Figure, plain
from posenc.report.html import Panel, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

INCH = 80
"""Pixels of a page."""
BESIDE = 2.5
"""Points between the intervals of two lines at the same place."""


def beside(
    page: str, tables: Sequence[Table], drawing: "Drawing | None", results: Mapping[str, Any]
) -> dict[str, str | bytes]:
    """The files of a report: its page, the tables as Markdown and CSV, and the figure that opens the page, if there is one."""
    of = about(results)
    return {
        "report.html": page,
        "table.md": markdown(tables, of),
        "table.csv": as_csv(tables, of),
        **({"figure.svg": saved(drawing)} if drawing else {}),
    }


def about(results: Mapping[str, Any]) -> dict[str, str]:
    """What the numbers of a report are of, for those who see its tables alone."""
    several = isinstance(results.get("tasks"), Mapping)
    of = {task: _facts(one) for task, one in results["tasks"].items()} if several else {"": _facts(results)}
    found: dict[str, Any] = {}
    for name, first in next(iter(of.values())).items():
        each = [f"{task}: {facts[name]}" if facts[name] != task else task for task, facts in of.items()]
        found[name] = first if all(facts[name] == first for facts in of.values()) else "; ".join(each)
    if not results.get("complete", True):
        counts = {unit: results.get(unit, {}) for unit in ("runs", "cells", "trials")}
        found |= {unit: f"{n['finished']} of {n['planned']}" for unit, n in counts.items() if "planned" in n}
    found |= {
        "versions": ", ".join(f"{name} {at}" for name, at in results["machine"].items() if name in ("posenc", "torch")),
        "made": results.get("created"),
        "command": results["command"],
    }
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def _facts(one: Mapping[str, Any]) -> dict[str, Any]:
    """What tasks of one report may differ in."""
    s, data, model = one["settings"], one.get("data", {}), one.get("model", {})
    width = f"width {s.get('dim')}, {counted(s.get('num_heads', 0), 'head')}"
    seeds = one.get("seeds", s.get("seeds"))
    return {
        "data": data.get("name") or s.get("text"),
        "model": f"{counted(s['num_layers'], 'layer')}, {width}" if "num_layers" in s else model.get("name"),
        "steps": s.get("steps"),
        "seeds": ", ".join(map(str, seeds)) if isinstance(seeds, list) else seeds,
    }


def first_of(panels: Mapping[str, Panel]) -> "Drawing | None":
    """The first figure."""
    for plot in plots_of(panels):
        return drawn(plain(plot.figures[" ".join(str(choice.chosen) for choice in plot.choices)]))
    return None


def saved(drawing: "Drawing") -> bytes:
    """A figure as SVG. The same figure gives the same bytes."""
    import matplotlib as mpl

    out = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "posenc", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # missing here, but the text stays a text
        drawing.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    return out.getvalue()


def plots_of(panels: Mapping[str, Panel]) -> list[Plot]:
    return [plot for panel in panels.values() for plot in panel.plots if plot.figures]


def drawn(figure: Figure) -> "Drawing":
    """A figure of lines or points."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Drawing

    with rc_context({"text.parse_math": False}):  # a name is shown as it is, dollars too
        drawing = Drawing(figsize=(720 / INCH, figure.get("height", 380) / INCH), layout="constrained")
        ax = drawing.subplots()
        _lines(figure, ax)
        for side in ("x", "y"):
            _set_axis(ax, side, figure[side])
        for mark in figure.get("marks", ()):
            _mark(ax, mark)
    return drawing


def _lines(figure: Figure, ax: "Axes") -> None:
    from matplotlib.transforms import ScaledTranslation

    named, count = dict[str, Any](), len(figure["series"])
    for number, one in enumerate(figure["series"]):
        aside = BESIDE * (number - (count - 1) / 2) if figure.get("spread") else 0.0
        place = ax.transData + ScaledTranslation(aside / 72, 0, ax.get_figure(root=True).dpi_scale_trans)  # type: ignore[union-attr]
        x, y = one["x"], [float("nan") if value is None else value for value in one["y"]]
        colour, dash = one["colour"], one.get("dash")
        options: dict[str, Any] = {"color": colour, "transform": place}
        options["linewidth"] = one.get("width", 1.8)
        if one.get("points"):
            options |= {"linestyle": "none", "marker": "o", "markersize": 1.6 * one.get("radius", 3.2)}
        else:
            options |= {"linestyle": (0, tuple(length / 2 for length in dash)) if dash else "-"}
            options |= {"marker": "o", "markersize": 4} if one.get("dots") else {}
        if "low" in one and not one.get("quiet"):
            ax.vlines(x, one["low"], one["high"], color=colour, alpha=0.55, linewidth=1.2, transform=place)
        (drawn,) = ax.plot(x, y, **options)
        points = [(at, value) for at, value in zip(x, y, strict=True) if value == value]
        ax.update_datalim(points)  # beside its points, a line sets no limits
        if one.get("points") and one.get("label"):
            text = printable(one["name"] if one["label"] is True else one["label"])
            ax.annotate(text, (x[0], y[0]), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
        else:
            named[printable(one["name"])] = drawn
    ax.autoscale_view()
    if len(named) > 1:
        places: list[str] = [*map(str, range(len(named)))]  # a legend leaves out names that begin with "_"
        key = ax.legend(named.values(), places, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        for shown, name in zip(key.get_texts(), named, strict=True):
            shown.set_text(name)
    ax.spines[["top", "right"]].set_visible(False)


def _set_axis(ax: "Axes", side: str, axis: Mapping[str, Any]) -> None:
    def set_(what: str, *values: Any, **options: Any) -> None:
        getattr(ax, f"set_{side}{what}")(*values, **options)

    set_("label", axis["label"])
    if axis.get("log"):
        from matplotlib.ticker import LogFormatter  # those of pyplot's scale write powers as mathematics

        set_("scale", "log")
        of: Any = getattr(ax, f"{side}axis")
        of.set_major_formatter(LogFormatter())
        of.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    if "ticks" in axis:
        places, texts = zip(*axis["ticks"], strict=True)
        set_("ticks", places, labels=texts)
        set_("ticks", [], minor=True)
    if "low" in axis or "high" in axis:
        set_("lim", axis.get("low"), axis.get("high"))


def _mark(ax: "Axes", mark: Mapping[str, Any]) -> None:
    style: dict[str, Any] = {"color": "#c8553d", "linestyle": "--", "linewidth": 1.1}
    if "y" in mark:
        ax.axhline(mark["y"], **style)
        place, where = (0.0, mark["y"]), ax.get_yaxis_transform()
    else:
        ax.axvline(mark["x"], **style)
        place, where = (mark["x"], 1.0), ax.get_xaxis_transform()
    ax.annotate(
        mark["label"], place, xycoords=where, xytext=(4, 3 if "y" in mark else -9), textcoords="offset points",
        fontsize=8, color=style["color"],
    )  # fmt: skip
