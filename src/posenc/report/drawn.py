# SPDX-License-Identifier: Apache-2.0
"""The files that a study has beside its page: its tables, and its first figure, drawn by matplotlib."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from posenc.lab.table import Table, as_csv, latex, visible
from posenc.lab.table import markdown as in_markdown
from posenc.report.figures import Figure, plain
from posenc.report.html import Panel, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

INCH = 80
"""Pixels of a page."""
BESIDE = 2.5
"""Points between the intervals of two lines at the same place."""


def beside(page: str, tables: Sequence[Table], drawing: "Drawing | None") -> dict[str, str | bytes]:
    """The files of a report: its page, the tables as Markdown, CSV and LaTeX, and the figure that opens the page, if there is one."""
    return {
        "report.html": page,
        "table.md": in_markdown(tables),
        "table.csv": as_csv(tables),
        "table.tex": latex(tables),
        **({"figure.svg": saved(drawing)} if drawing else {}),
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
    with mpl.rc_context({"svg.hashsalt": "posenc", "svg.fonttype": "none"}):
        drawing.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    return out.getvalue()


def plots_of(panels: Mapping[str, Panel]) -> list[Plot]:
    return [plot for panel in panels.values() for plot in panel.plots if plot.figures]


def drawn(figure: Figure) -> "Drawing":
    """A figure of lines or points."""
    from matplotlib.figure import Figure as Drawing

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

    named: list[tuple[Any, str]] = []
    count = len(figure["series"])
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
            if one.get("band"):
                ax.fill_between(x, one["low"], one["high"], color=colour, alpha=0.14, linewidth=0)
            else:
                ax.vlines(x, one["low"], one["high"], color=colour, alpha=0.55, linewidth=1.2, transform=place)
        if "left" in one:
            ax.hlines(y, one["left"], one["right"], color=colour, alpha=0.55, linewidth=1.2)
        (drawn_line,) = ax.plot(x, y, **options)
        ax.update_datalim(
            [(at, value) for at, value in zip(x, y, strict=True) if value == value]
        )  # beside its points, a line sets no limits
        if one.get("points") and one.get("label"):
            ax.annotate(
                visible(one["name"]), (x[0], y[0]), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8,
                parse_math=False,
            )  # fmt: skip
        else:
            named.append((drawn_line, visible(one["name"])))
    ax.autoscale_view()
    if len(named) > 1:
        legend = ax.legend(
            [each for each, _ in named], [""] * len(named), fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0)
        )  # fmt: skip
        for text, (_, name) in zip(
            legend.get_texts(), named, strict=True
        ):  # a name is no mathematics, and none is left out
            text.set(text=name, parse_math=False)
    ax.spines[["top", "right"]].set_visible(False)


def _set_axis(ax: "Axes", side: str, axis: Mapping[str, Any]) -> None:
    def set_(what: str, *values: Any, **options: Any) -> None:
        getattr(ax, f"set_{side}{what}")(*values, **options)

    set_("label", axis["label"])
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
        ax.axvline(mark["x"], **style)
        place, where = (mark["x"], 1.0), ax.get_xaxis_transform()
    ax.annotate(
        mark["label"], place, xycoords=where, xytext=(4, 3 if "y" in mark else -9), textcoords="offset points",
        fontsize=8, color=style["color"],
    )  # fmt: skip
