# SPDX-License-Identifier: Apache-2.0
"""Pictures of symmetry: what breaks it, and one word at two places."""

from typing import TYPE_CHECKING

from posenc.analysis.plots.frame import INK, PALETTE, SOFT, plot
from posenc.analysis.symmetry import ROUNDING, Breakers, Equivariance
from posenc.analysis.twins import Twins

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FLOOR = 1e-17
"""Where a difference of exactly zero is drawn, on an axis of logarithms."""
KINDS = {
    "blind to order": SOFT,
    "sees order, not its direction": PALETTE[4],
    "sees order, and the same wherever the text begins": PALETTE[0],
    "sees order, and where the text begins": PALETTE[1],
    "sees order, is not told positions": PALETTE[2],
}


@plot(
    "Right of the line order is seen: without positions or a mask only rounding is left, 13 powers of ten lower.",
    (7, 9),
)
def symmetry_bars(ax: "Axes", breakers: Breakers) -> None:
    """What breaks the symmetry of attention, by how much."""
    for place, row in enumerate(breakers.rows):
        ax.barh(place, max(row.order, FLOOR), 0.7, color=KINDS[_kind(row)])
    ax.axvline(ROUNDING, color=INK, linewidth=1)
    for name, colour in KINDS.items():
        ax.barh(0, 0, color=colour, label=name)
    ax.set_yticks(range(len(breakers.rows)), [row.name for row in breakers.rows], fontsize=8)
    ax.invert_yaxis()
    ax.set(xscale="log", xlim=(FLOOR, None), xlabel="largest difference of f(Px) and P f(x)")
    ax.grid(axis="y", visible=False)
    ax.margins(y=0.01)
    ax.legend(loc="lower center", bbox_to_anchor=(0.4, 1), fontsize=8)


def _kind(row: Equivariance) -> str:
    blind, even, direct, fixed, untold = KINDS
    if row.blind:
        return blind
    if row.mirror < ROUNDING:
        return even
    if row.shift is None:
        return untold
    return direct if row.shift < ROUNDING else fixed


@plot("Left end: the two tokens without positions, one vector but for rounding. Right end: with positions.")
def twins_apart(ax: "Axes", *twins: Twins) -> None:
    """How far apart the two representations of one word are, without and with positions."""
    for place, pair in enumerate(twins):
        ends = [max(pair.distance_without, FLOOR), max(pair.distance, FLOOR)]
        ax.plot(ends, [place, place], color=SOFT, linewidth=1)
        for end, colour, label in zip(ends, PALETTE, ("without positions", "with positions"), strict=False):
            ax.plot(end, place, "o", color=colour, label=None if place else label)
    ax.set_yticks(range(len(twins)), [f"{pair.name}{', causal' * pair.causal}\n{pair.word!r}" for pair in twins])
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel="distance of the two representations, over their norm")
    ax.grid(axis="y", visible=False)
    ax.margins(y=0.3)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
