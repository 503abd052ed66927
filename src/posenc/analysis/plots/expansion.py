# SPDX-License-Identifier: Apache-2.0
"""Pictures of a model's expansion in its codes."""

from typing import TYPE_CHECKING

import torch

from posenc.analysis.expansion import Expansion
from posenc.analysis.plots.frame import AROUND, INK, PALETTE, SOFT, plot
from posenc.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from posenc.analysis.expansion import Blocks

TERMS = {
    "change": "all codes do",
    "first": "first order, p·∂f",
    "single": "second order, one position",
    "interaction": "second order, pₘ H pₙ",
    "remainder": "what is left",
}


@plot("Only the fourth pair of bars knows how far apart two tokens are: compare it with the terms of one position.")
def expansion_terms(ax: "Axes", expansion: Expansion) -> None:
    """Every term by its size: with codes on two tokens, and on all."""
    places = torch.arange(len(TERMS)).tolist()
    for shift, terms, label in (
        (-0.2, expansion.pair, "codes on two tokens"),
        (0.2, expansion.whole, f"codes on all {expansion.length}"),
    ):
        ax.barh([i + shift for i in places], [getattr(terms, name) for name in TERMS], 0.38, label=label)
    ax.set_yticks(places, list(TERMS.values()))
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel=f"mean size, of f of {expansion.name}")
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=2)


@plot("On logarithmic axes the remainder runs along the dashed line of slope 3 as soon as the codes are small enough.")
def expansion_remainder(ax: "Axes", expansion: Expansion) -> None:
    """What the expansion to second order misses, against the amplitude of the codes."""
    amplitudes, remainders = expansion.amplitudes, expansion.remainders
    ax.plot(amplitudes, remainders, "o-", label="measured")
    if expansion.slope is not None:
        least, there = min(zip(amplitudes, remainders, strict=True))
        ax.plot(
            amplitudes,
            [there * (a / least) ** 3 for a in amplitudes],
            "--",
            color=SOFT,
            linewidth=1.2,
            label="amplitude³",
        )
    ax.axvline(1, color=SOFT, linewidth=1)
    ax.set(
        xscale="log", yscale="log", xlabel="amplitude of the codes (1: as the model adds them)", ylabel="|remainder|"
    )
    ax.legend(title=None if expansion.slope is None else f"slope at the small end {expansion.slope:.2f}")


@plot("Were H the identity, only the diagonal would have colour.", (5.2, 4.4))
def interaction_block(ax: "Axes", expansion: Expansion) -> None:
    """The mean of H = ∂ₘ∂ₙ f over pairs of positions, channel by channel."""
    matrix = _blocks(expansion).matrix
    most = float(matrix.abs().max())
    image = ax.imshow(matrix.numpy(), cmap=AROUND, vmin=-most, vmax=most, interpolation="nearest")
    ax.grid(False)
    ax.set(xlabel="channel of pₙ", ylabel="channel of pₘ")
    ax.figure.colorbar(image, ax=ax)


@plot("Diagonal entries (dots) that do not leave the band of the entries off the diagonal are no diagonal to speak of.")
def interaction_diagonal(ax: "Axes", expansion: Expansion) -> None:
    """The diagonal of the mean H against the entries off it."""
    matrix = _blocks(expansion).matrix
    diagonal = matrix.diagonal()
    off = float((matrix - diagonal.diag()).square().sum() / (matrix.numel() - len(matrix))) ** 0.5
    ax.axhspan(-2 * off, 2 * off, color=PALETTE[0], alpha=0.15, label="off the diagonal, twice the root mean square")
    ax.axhline(float(diagonal.mean()), color=PALETTE[1], label="mean of the diagonal: H as a multiple of the identity")
    ax.plot(diagonal, ".", color=INK, label="diagonal")
    ax.set(xlabel="channel", ylabel="entry of H")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1))


@plot("Under the identity the interaction decays as the codes' dot products do; under the model's own H it need not.")
def interaction_decay(ax: "Axes", expansion: Expansion) -> None:
    """p_m^T H p_n by distance under three H, each over its largest value, so that it starts above zero."""
    _blocks(expansion)
    decay = expansion.decay
    assert decay is not None
    reach = 1 + 3 * len(decay.full) // 4  # few pairs are as far apart as the rest, their means scatter
    for name, curve in (("identity", decay.identity), ("diagonal", decay.diagonal), ("full", decay.full)):
        label = f"{name} H: distance explains {decay.relative[name]:.0%}"
        ax.plot((curve / _largest(curve).copysign(curve[0]))[:reach], label=label)
    own = torch.tensor(expansion.by_distance)
    ax.plot(range(1, 1 + len(own)), own / _largest(own), ".", color=INK, label="each pair its own H")
    ax.axhline(0, color=SOFT, linewidth=1)
    ax.set(xlabel="distance n - m", ylabel="mean pₘ H pₙ, over its largest")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1))


def _largest(curve: torch.Tensor) -> torch.Tensor:
    return curve.abs().max().clamp(min=torch.finfo(curve.dtype).tiny)


def _blocks(expansion: Expansion) -> "Blocks":
    if expansion.blocks is None:
        raise InputError(f"{expansion.name}: no two positions interact, there is no H to draw")
    return expansion.blocks
