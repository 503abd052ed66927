# SPDX-License-Identifier: Apache-2.0
"""The figures of the pages, drawn by matplotlib, and the files that a study has beside its page."""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from posenc.lab.table import Table, as_csv, latex
from posenc.lab.table import markdown as in_markdown
from posenc.report.figures import Figure, plain
from posenc.report.html import Choice, Panel, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

INCH = 80
"""Pixels of a page."""
SHARP = 200
"""Dots per inch of a PNG."""
BESIDE = 2.5
"""Points between the intervals of two lines at the same place."""


def beside(
    page: str, tables: Sequence[Table], drawing: "Drawing | None", markdown: str | None = None
) -> dict[str, str | bytes]:
    """The files of a report: its page, the tables as Markdown, CSV and LaTeX, and the figure that opens the page, if there is one.
    markdown: in place of the tables'."""
    return {
        "report.html": page,
        "table.md": in_markdown(tables) if markdown is None else markdown,
        "table.csv": as_csv(tables),
        "table.tex": latex(tables),
        **(saved(drawing) if drawing else {}),
    }


def first_of(panels: Mapping[str, Panel]) -> "Drawing | None":
    """The first figure."""
    plots = plots_of(panels)
    return drawn(figure_of(plots[0], {}), None) if plots else None


def saved(drawing: "Drawing") -> dict[str, bytes]:
    """A figure as files. The same figure gives the same bytes."""
    import matplotlib as mpl

    found = {}
    for kind in ("svg", "png"):
        out, metadata = BytesIO(), {"Date": None} if kind == "svg" else None
        with mpl.rc_context({"svg.hashsalt": "posenc", "svg.fonttype": "none"}):
            drawing.savefig(out, format=kind, dpi=SHARP, bbox_inches="tight", metadata=metadata)
        found[f"figure.{kind}"] = out.getvalue()
    return found


def plots_of(panels: Mapping[str, Panel]) -> list[Plot]:
    return [plot for panel in panels.values() for plot in panel.plots if plot.figures]


def figure_of(plot: Plot, choices: Mapping[str, str]) -> Figure:
    def number(choice: Choice) -> int:
        return choice.texts.index(choices[choice.name]) if choice.name in choices else choice.chosen

    figure: Figure = plain(plot.figures[" ".join(str(number(choice)) for choice in plot.choices)])
    return figure


def drawn(figure: Figure, ax: "Axes | None") -> "Drawing":
    from matplotlib.figure import Figure as Drawing

    if ax is None:
        drawing = Drawing(figsize=(720 / INCH, figure.get("height", 380) / INCH), layout="constrained")
        ax = drawing.subplots()
    KINDS[figure["kind"]](figure, ax)
    for side in ("x", "y"):
        _set_axis(ax, side, figure[side], heat=figure["kind"] == "heat")
    for mark in figure.get("marks", ()):
        _mark(ax, mark)
    found = ax.get_figure()
    assert found is not None
    return found  # type: ignore[return-value]


def _lines(figure: Figure, ax: "Axes") -> None:
    from matplotlib.transforms import ScaledTranslation

    named, count = [], len(figure["series"])
    for number, one in enumerate(figure["series"]):
        aside = BESIDE * (number - (count - 1) / 2) if figure.get("spread") else 0.0
        place = ax.transData + ScaledTranslation(aside / 72, 0, ax.get_figure(root=True).dpi_scale_trans)  # type: ignore[union-attr]
        x, y = one["x"], [float("nan") if value is None else value for value in one["y"]]
        colour, dash = one["colour"], one.get("dash")
        options: dict[str, Any] = {"color": colour, "label": one["name"], "transform": place}
        options["linewidth"] = one.get("width", 1.8)
        if one.get("points"):
            options |= {"linestyle": "none", "marker": "o", "markersize": 1.6 * one.get("radius", 3.2)}
            options |= {"markerfacecolor": "none"} if one.get("hollow") else {}
        else:
            options |= {"linestyle": (0, tuple(length / 2 for length in dash)) if dash else "-"}
            options |= {"marker": "o", "markersize": 4} if one.get("dots") else {}
        if "low" in one and not one.get("quiet"):
            if one.get("band"):
                ax.fill_between(x, one["low"], one["high"], color=colour, alpha=0.14, linewidth=0)
            else:
                ax.vlines(x, one["low"], one["high"], color=colour, alpha=0.55, linewidth=1.2, transform=place)
        if "left" in one:
            ax.hlines(y, one["left"], one["right"], color=colour, alpha=0.55, linewidth=1.2)
        ax.plot(x, y, **options)
        ax.update_datalim(
            [(at, value) for at, value in zip(x, y, strict=True) if value == value]
        )  # beside its points, a line sets no limits
        if one.get("points") and one.get("label"):
            ax.annotate(one["name"], (x[0], y[0]), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
        else:
            named.append(one["name"])
    ax.autoscale_view()
    if len(named) > 1:
        ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.spines[["top", "right"]].set_visible(False)


def _heat(figure: Figure, ax: "Axes") -> None:
    z = [[float("nan") if value is None else value for value in row] for row in figure["z"]]
    shade = "Blues_r" if figure.get("down") else "Blues"
    image = ax.imshow(z, aspect="auto", cmap=shade, vmin=figure.get("low"), vmax=figure.get("high"))
    low, high = image.get_clim()
    for row, texts in enumerate(figure.get("texts", ())):
        for column, text in enumerate(texts):
            share = (z[row][column] - low) / ((high - low) or 1)
            dark = share < 0.5 if figure.get("down") else share > 0.5
            ax.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    ends = figure.get("ends")
    bar = image.axes.figure.colorbar(image, ax=ax)
    if ends and low < high:
        bar.set_ticks([low, high], labels=ends)


KINDS: dict[str, Callable[[Figure, Any], None]] = {"lines": _lines, "heat": _heat}


def _set_axis(ax: "Axes", side: str, axis: Mapping[str, Any], *, heat: bool) -> None:
    def set_(what: str, *values: Any, **options: Any) -> None:
        getattr(ax, f"set_{side}{what}")(*values, **options)

    set_("label", axis["label"])
    names: Sequence[str] = axis.get("names", ())
    if heat:
        if names:
            set_("ticks", range(len(names)), labels=names)
        return
    if axis.get("log"):
        set_("scale", "log")
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
        ax.axvline(mark["x"] - (0.5 if ax.images else 0), **style)
        place, where = (mark["x"], 1.0), ax.get_xaxis_transform()
    ax.annotate(
        mark["label"], place, xycoords=where, xytext=(4, 3 if "y" in mark else -9), textcoords="offset points",
        fontsize=8, color=style["color"],
    )  # fmt: skip
