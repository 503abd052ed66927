# SPDX-License-Identifier: Apache-2.0
"""What every analysis is made of: a question asked of a target gives a finding; a finding has numbers, sentences and plots.

A new question is a `Finding`, the function that computes it, its plots, and an `AnalysisQuestion` that joins them; and one
line in `analyze.QUESTIONS`. Plots draw into given axes or a new figure, in one style, with one sentence on what to see.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from torch import Tensor

from posenc.errors import InputError
from posenc.lab.messages import as_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure

    from posenc.analysis.target import Target
else:
    Axes = Any


@dataclass(frozen=True, eq=False)
class Finding:
    """Base of what the functions of `posenc.analysis` return."""

    def sentences(self) -> list[str]:
        """The result in words, most important first."""
        raise NotImplementedError  # abstract

    def summary(self) -> str:
        """The most important sentence, for the summary on top."""
        return self.sentences()[0]

    def to_dict(self) -> dict[str, Any]:
        """Every number as JSON can represent it, with the sentences; infinite and undefined numbers are null."""
        numbers: dict[str, Any] = as_json(self)
        return numbers | {"sentences": self.sentences()}


PALETTE = ("#3b7dd8", "#e4572e", "#2a9d6f", "#9b5de5", "#d99a00", "#00a6a6", "#c2416c", "#7a8b2e", "#6d6a75")
"""Colours of all pages: they differ on light and dark backgrounds, and for most colour-blind readers in this order."""
INK, SOFT, LINE, GROUND = "#1c2430", "#5b6675", "#dfe3e8", "#ffffff"
"""Text, marks, grid and background. A page replaces them by its light or dark variables."""
AROUND, UP = "RdBu_r", "viridis"
"""Colour maps for values around zero, and for values from zero up."""
COMMON, OUTLIER = 0.99, 4
"""Values above the quantile COMMON are outliers where the largest is more than OUTLIER times that quantile."""

STYLE: dict[str, Any] = {
    "figure.facecolor": GROUND, "figure.constrained_layout.use": True, "font.size": 10, "text.color": INK,
    "axes.facecolor": "none", "axes.edgecolor": LINE, "axes.labelcolor": INK, "axes.titlesize": 11,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": LINE, "grid.linewidth": 0.7, "xtick.color": SOFT, "ytick.color": SOFT, "lines.linewidth": 1.6,
    "legend.frameon": False, "svg.fonttype": "none", "svg.hashsalt": "posenc", "savefig.dpi": 120,
}  # fmt: skip


class PlotFunction:
    """A plot function: `plot(finding, ..., ax=None)` draws into matplotlib axes, or into a new figure, and returns the
    figure. see: one sentence on what to look at. size: of a new figure, in inches."""

    def __init__(self, draw: Callable[..., None], see: str, size: tuple[float, float]) -> None:
        update_wrapper(self, draw)
        self.draw = draw
        self.see = see
        self.size = size

    def __call__(self, *findings: Any, ax: Axes | None = None, **options: Any) -> "Figure":
        try:
            from matplotlib import rc_context, rcsetup
            from matplotlib.figure import Figure
        except ImportError:
            raise InputError("plots need matplotlib, which is not installed: pip install 'posenc[lab]'") from None
        style: Any = {**STYLE, "axes.prop_cycle": rcsetup.cycler("color", PALETTE)}
        with rc_context(style):
            if ax is None:
                ax = Figure(figsize=self.size).subplots()  # not pyplot's, which keeps figures and opens windows
            self.draw(ax, *findings, **options)
        figure = ax.get_figure(root=True)
        assert figure is not None
        return figure

    def of(self, *findings: Any, **options: Any) -> "Picture":
        """The plot of these findings, drawn when it is needed."""
        return Picture(self, findings, options)


@dataclass(frozen=True, eq=False)
class Picture:
    """A plot and what it shows. `draw()` makes the figure; `see` is what to look at."""

    plot: PlotFunction
    findings: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def see(self) -> str:
        return self.plot.see

    def draw(self) -> "Figure":
        return self.plot(*self.findings, **self.options)


def plot(see: str, size: tuple[float, float] = (6.4, 3.8)) -> Callable[[Callable[..., None]], PlotFunction]:
    """Make a `PlotFunction` of a function that draws a finding into axes: draw(axes, finding, ...)."""
    return lambda draw: PlotFunction(draw, see, size)


@dataclass(frozen=True)
class AnalysisQuestion:
    """A section of the report.

    ask: the finding about a target; raises InputError, with the reason, for a target that it does not apply to.
    pictures: of a target and the finding.
    """

    title: str
    ask: Callable[["Target"], Finding]
    pictures: Callable[["Target", Any], Sequence[Picture]] = lambda target, finding: ()


# ---------------------------------------------------------------- what several plots draw


def image(ax: Axes, values: Tensor, aspect: Any = "equal", clip: bool = False, label: str = "") -> None:
    """A matrix of values around zero as colours, NaN left out. clip: let the colours end before outliers."""
    sizes = values.nan_to_num().abs().flatten().sort().values
    largest, common = float(sizes[-1]) or 1.0, float(sizes[int(COMMON * len(sizes))])
    most = common if clip and largest > OUTLIER * common > 0 else largest
    shown = ax.imshow(values.numpy(), aspect=aspect, cmap=AROUND, vmin=-most, vmax=most, interpolation="nearest")
    ax.grid(False)
    integer_axes(ax)
    ax.figure.colorbar(shown, ax=ax, extend="neither" if most == largest else "both", label=label)


def integer_axes(ax: Axes) -> None:
    """Integers on axes that count: x, and y of an image."""
    from matplotlib.ticker import MaxNLocator

    for axis in (ax.xaxis, ax.yaxis) if ax.images else (ax.xaxis,):
        axis.set_major_locator(MaxNLocator("auto", integer=True))


def channel_label(of: str) -> str:
    return "head or channel" if of == "distance" else "channel"  # a bias has heads, a mapped rotation channels
