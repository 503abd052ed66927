# SPDX-License-Identifier: Apache-2.0
"""Pictures of the phases that a dtype loses."""

import math
from typing import TYPE_CHECKING, Any

from posenc.analysis.plots.frame import INK, SOFT, plot
from posenc.analysis.precision import PhaseError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {
    "positions": "positions rounded",
    "frequencies": "frequencies rounded",
    "product": "product rounded",
    "all": "all arithmetic in it",
    "cos_sin": "cos and sin rounded",
    "module": "posenc's module",
}


@plot("Where a line crosses the dashed one, the fastest pairs point a tenth of a turn away from where they should.")
def phase_error(ax: "Axes", found: PhaseError) -> None:
    """The largest error of the phases up to each position, a line for every cause."""
    for name, row in zip(found.causes, found.by_position, strict=True):
        if float(row.max()) == 0:
            continue  # a logarithmic axis has no place for it
        own: dict[str, Any] = {"ls": ":", "color": INK, "lw": 2.4} if name == "module" else {}
        ax.plot(found.positions + 1, row.where(row > 0, float("nan")), label=NAMES[name], **own)
    ax.axhline(math.tau / 10, color=SOFT, ls="--", lw=0.9, label="a tenth of a turn")
    ax.set(xlabel="positions", ylabel="radians", xscale="log", yscale="log", title=f"{found.name} in {found.dtype}")
    ax.legend(fontsize=8)


@plot("The fast pairs, to the left, lose most: their phases are the largest numbers, and rounding is relative.")
def phase_error_by_pair(ax: "Axes", found: PhaseError) -> None:
    """The largest error of each pair's phase, a line for every cause."""
    for name, row in zip(found.causes, found.by_pair, strict=True):
        if float(row.max()) > 0:
            ax.plot(row.where(row > 0, float("nan")), label=NAMES[name])
    ax.axhline(math.tau / 10, color=SOFT, ls="--", lw=0.9, label="a tenth of a turn")
    ax.set(xlabel="pair", ylabel="radians", yscale="log", title=f"{found.name} in {found.dtype}")
    ax.legend(fontsize=8)
