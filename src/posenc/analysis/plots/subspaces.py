# SPDX-License-Identifier: Apache-2.0
"""Pictures of random directions, and of tokens against positions."""

from typing import TYPE_CHECKING

import torch

from posenc.analysis.plots.frame import PALETTE, SOFT, plot
from posenc.analysis.subspaces import AddOrConcat, RandomDots, Subspaces, dot_density

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INSIDE = torch.linspace(-0.999, 0.999, 1001, dtype=torch.float64)
"""Where densities are drawn."""


@plot("Nearly all random directions are close to orthogonal: the more dimensions, the narrower the bell.")
def random_dots(ax: "Axes", found: RandomDots) -> None:
    """Histogram of the dot products of random unit vectors, with the exact density."""
    ax.stairs(found.density, found.edges, fill=True, color=PALETTE[0], alpha=0.35, label="sampled")
    ax.plot(_INSIDE, dot_density(_INSIDE, found.dim), color=PALETTE[1], label="exact")
    widest = min(1.0, 5 * found.dim**-0.5)
    ax.set(xlabel=f"dot product of two random unit vectors, {found.dim} dimensions", ylabel="density")
    ax.set(xlim=(-widest, widest))
    ax.legend(fontsize="small")


@plot("Chebyshev's bound holds, and promises far less than is true: the exact tail falls off like a bell's.")
def random_tails(ax: "Axes", found: RandomDots) -> None:
    """How often a dot product of random unit vectors exceeds epsilon: measured, exactly, and at most by Chebyshev."""
    ax.plot(found.epsilons, found.chebyshev, "v--", color=PALETTE[1], label="at most (Chebyshev)")
    ax.plot(found.epsilons, found.exact, "-", color=PALETTE[0], label="exactly")
    ax.plot(
        found.epsilons, found.measured.where(found.measured > 0, torch.nan), "o", color=PALETTE[2], label="measured"
    )
    ax.set(xlabel="epsilon", ylabel="share of pairs with |dot| > epsilon", yscale="log")
    ax.legend(fontsize="small")


@plot(
    "A histogram narrower than the random curve: tokens and positions are more nearly orthogonal than chance makes them."
)
def cosine_histogram(ax: "Axes", found: Subspaces) -> None:
    """Cosines of all token-position pairs, as they are and less the mean vectors, against random vectors."""
    ax.stairs(found.raw, found.edges, color=SOFT, label="as they are")
    ax.stairs(found.centred, found.edges, fill=True, color=PALETTE[0], alpha=0.35, label="less the mean vectors")
    ax.plot(_INSIDE, dot_density(_INSIDE, found.dim), color=PALETTE[1], label="random vectors")
    most = float(found.edges[1:][(found.raw + found.centred) > 0].abs().max())
    widest = max(most, 4 * found.expected)
    ax.set(xlabel="cosine between a token's and a position's vector", ylabel="density", xlim=(-widest, widest))
    ax.legend(fontsize="small")


@plot("Angles above the grey ones: the leading directions of tokens and positions keep out of each other's way.")
def principal_angles(ax: "Axes", found: Subspaces) -> None:
    """Principal angles between the leading dimensions of tokens and of positions, against random subspaces."""
    order = torch.arange(1, len(found.angles) + 1)
    ax.plot(order, found.random_angles, color=SOFT, linestyle="--", label="random subspaces")
    ax.plot(order, found.angles, "o-", color=PALETTE[0], markersize=3, label=found.name)
    ax.set(xlabel=f"principal angle, of {found.rank}", ylabel="degrees", ylim=(0, 92))
    ax.legend(fontsize="small")


@plot("Adding costs little where there is room: with more dimensions the sum names its token and its position alike.")
def read_back(ax: "Axes", found: AddOrConcat) -> None:
    """How often a linear map names the right token and position from their sum, by dimension."""
    dims = [one.dim for one in found.random]
    for colour, kind in zip(PALETTE, ("tokens", "positions"), strict=False):
        ax.plot(dims, [one.found[kind] for one in found.random], "o-", color=colour, label=f"{kind}, random tables")
        if found.given is not None:
            ax.plot(found.given.dim, found.given.found[kind], "*", color=colour, markersize=12, label=f"{kind}, {found.given.name}")  # fmt: skip
    ax.axhline(1, color=SOFT, linestyle="--", linewidth=1, label="concatenated")
    ax.set(xlabel="dimensions", ylabel="named rightly from the sum", ylim=(0, 1.05))
    ax.set_xscale("log", base=2)
    ax.legend(fontsize="small")
