# SPDX-License-Identifier: Apache-2.0
"""What every plot shares: a figure of its own or the caller's axes, the house's colours, a sentence on what to see."""

from collections.abc import Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from posenc.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#3b7dd8", "#e4572e", "#2a9d6f", "#9b5de5", "#d99a00", "#00a6a6", "#c2416c", "#7a8b2e", "#6d6a75")
"""Colours that stay apart on light and on dark ground, those of the other reports."""
INK, SOFT, LINE, GROUND = "#1c2430", "#5b6675", "#dfe3e8", "#ffffff"
"""Of text, marks, grid and paper. A page puts its own in their place, light or dark."""
AROUND, UP = "RdBu_r", "viridis"
"""Colour maps for values around zero, and for those from nothing up."""

STYLE: dict[str, Any] = {
    "figure.facecolor": GROUND, "figure.constrained_layout.use": True, "font.size": 10, "text.color": INK,
    "axes.facecolor": "none", "axes.edgecolor": LINE, "axes.labelcolor": INK, "axes.titlesize": 11,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": LINE, "grid.linewidth": 0.7, "xtick.color": SOFT, "ytick.color": SOFT, "lines.linewidth": 1.6,
    "legend.frameon": False, "svg.fonttype": "none", "svg.hashsalt": "posenc", "savefig.dpi": 120,
}  # fmt: skip


class Plot:
    """A plot function: `plot(finding, ..., ax=None)` draws into a matplotlib axes, or into a figure of its own, and
    returns the figure. see: one sentence on what to look at. size: in inches, of a figure of its own."""

    def __init__(self, draw: Callable[..., None], see: str, size: tuple[float, float]) -> None:
        update_wrapper(self, draw)
        self.draw = draw
        self.see = see
        self.size = size

    def __call__(self, *findings: Any, ax: "Axes | None" = None, **options: Any) -> "Figure":
        try:
            from matplotlib import rc_context, rcsetup
            from matplotlib.figure import Figure
        except ImportError:
            raise InputError("plots need matplotlib, which is not installed: pip install 'posenc[lab]'") from None
        style: Any = {**STYLE, "axes.prop_cycle": rcsetup.cycler("color", PALETTE)}
        with rc_context(style):
            if ax is None:
                ax = Figure(figsize=self.size).subplots()  # not pyplot's: nothing keeps it, no window opens
            self.draw(ax, *findings, **options)
        figure = ax.get_figure(root=True)
        assert figure is not None
        return figure


def plot(see: str, size: tuple[float, float] = (6.4, 3.8)) -> Callable[[Callable[..., None]], Plot]:
    """Make a `Plot` of a function that draws a finding into axes: draw(axes, finding, ...)."""
    return lambda draw: Plot(draw, see, size)
