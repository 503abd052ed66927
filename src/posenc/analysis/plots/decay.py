# SPDX-License-Identifier: Apache-2.0
"""Pictures of decay: the kernel of codes, Su's curves, RoPE's bounds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from posenc.analysis import bounds
from posenc.analysis.bounds import BaseBound
from posenc.analysis.decay import Curves, Kernel
from posenc.analysis.plots.frame import INK, LINE, PALETTE, SOFT, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@plot(
    "Where the line falls, codes grow less alike as they move apart; where the band around it opens, the dot product "
    "depends on more than the distance, and inside the grey strip two codes are as unrelated as two random vectors."
)
def kernel(ax: "Axes", found: Kernel) -> None:
    """The normalised dot product by distance, a standard deviation around it, and that of random vectors."""
    distances = torch.arange(found.length)
    ax.axhspan(-found.random, found.random, color=LINE, alpha=0.6, lw=0, label="two random vectors")
    ax.fill_between(distances, found.mean - found.spread, found.mean + found.spread, color=PALETTE[0], alpha=0.25, lw=0)
    ax.plot(distances, found.mean, color=PALETTE[0], label=found.name)
    ax.axhline(0, color=SOFT, lw=0.8)
    ax.set(xlabel="distance", ylabel="dot product / mean squared norm", xlim=(0, found.length - 1))
    ax.legend()


@plot("Power curves fall fastest at short range, geometric ones go on falling at long range until they cross zero.")
def curves(ax: "Axes", found: Curves, *, sums: bool = False, log: bool = False) -> None:
    """The decay under each curve of frequencies. sums: of dim/2 pairs in place of the integrals. log: the distances."""
    rows = found.sums if sums else found.integrals
    for name, row in zip(found.names, rows, strict=True):
        ax.plot(found.distances, row, label=name)
    ax.axhline(0, color=SOFT, lw=0.8)
    what = f"sum over {found.dim // 2} pairs" if sums else "integral"
    ax.set(xlabel="distance", ylabel=what, xscale="log" if log else "linear")
    ax.legend(title="theta", ncols=2)


@plot(
    "The sum over pairs follows the integral while distances are short, then leaves it: decay is a limit of many pairs."
)
def integral_and_sum(ax: "Axes", found: Curves, row: int = 0) -> None:
    """One curve of frequencies: the integral, the sum over dim/2 pairs and the asymptote. row: of `found.names`."""
    name = found.names[row]
    far = found.distances.abs() >= 1
    ax.plot(found.distances, found.sums[row], color=PALETTE[1], lw=0.9, label=f"sum over {found.dim // 2} pairs")
    ax.plot(found.distances, found.integrals[row], color=PALETTE[0], label="integral")
    ax.plot(found.distances[far], found.asymptotes[row][far], color=INK, ls=":", label="asymptote")
    ax.axhline(0, color=SOFT, lw=0.8)
    ax.set(xlabel="distance", ylabel="mean of cos(distance * theta)", title=f"theta = {name}", ylim=(-0.5, 1.05))
    ax.legend()


@plot(
    "The bound falls in ripples as the distance grows, and faster for small bases; the score itself may do anything below."
)
def rope_bound(ax: "Axes", bases: Sequence[float] = (1e4, 5e5, 1e6), head_dim: int = 128, length: int = 512) -> None:
    """RoPE's decay bound over distances below length, a line for every base; for a single one give [base]."""
    distances = torch.arange(length)
    for base in bases:
        ax.plot(distances, bounds.rope_bound(distances, head_dim, base), label=f"base {base:g}")
    ax.set(xlabel="distance", ylabel="mean of |S|, partial sums of the rotations", ylim=(0, None))
    ax.legend()


@plot("A model under the line was trained on distances at which a key like the query may do worse than a random one.")
def base_bound(ax: "Axes", found: BaseBound, *, models: bool = True) -> None:
    """The smallest base of each length, its limit for infinitely many pairs, and known models where they are."""
    ax.plot(found.lengths, found.bases, marker="o", ms=4, label=f"smallest base, {found.head_dim} channels")
    ax.plot(found.lengths, found.limits, ls=":", color=SOFT, label="infinitely many channels")
    places: dict[tuple[int, float], list[str]] = {}
    for model in found.models if models else ():
        places.setdefault((model.length, model.base), []).append(model.name)
    for place, names in places.items():
        ax.plot(*place, marker="s", ms=5, ls="", color=PALETTE[1])
        ax.annotate(
            "\n".join(names), place, xytext=(5, -4), textcoords="offset points", fontsize=8, color=INK, va="top"
        )
    ax.margins(x=0.2)
    ax.set(xlabel="length of context", ylabel="base", xscale="log", yscale="log")
    ax.legend()
