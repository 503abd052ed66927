# SPDX-License-Identifier: Apache-2.0
"""Pictures of positions as numbers: the binary counter beside codes, digits under schedules."""

import math
from typing import TYPE_CHECKING

import torch

from posenc.analysis.plots.frame import AROUND, LINE, PALETTE, plot
from posenc.analysis.radix import Counter, Digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@plot(
    "Left the bits of each position, then sines of their periods, right those of its code: each column flips less often "
    "than the one before, first abruptly, then smoothly.",
    size=(6.4, 4.8),
)
def counter(ax: "Axes", found: Counter) -> None:
    """Positions downwards: their bits, sines of the bits' periods, and sinusoidal codes, fast columns first."""
    gap = torch.full((found.length, 1), torch.nan, dtype=torch.float64)
    parts = [2 * found.bits - 1, found.waves, found.codes]
    together = torch.cat([columns for part in parts for columns in (part, gap)][:-1], 1)
    ax.imshow(together.numpy(), aspect="auto", cmap=AROUND, vmin=-1, vmax=1, interpolation="nearest")
    ax.grid(False)
    digits = found.bits.shape[1]
    names = ["bits", "sines of their periods", f"codes, base {found.base:g}"]
    ax.set_xticks([i * (digits + 1) + (digits - 1) / 2 for i in range(3)], names)
    ax.set(xlabel="digits and pairs, fast ones first", ylabel="position")


@plot(
    "Where a line rises out of the grey, a pair turns to angles that it never met in training; at one it has met all."
)
def digits(ax: "Axes", *found: Digits) -> None:
    """The turn that each pair made in training, and makes in the longer text under each schedule, up to a whole one."""
    first = found[0]
    pairs = torch.arange(len(first.trained))
    ax.fill_between(pairs, first.trained / math.tau, color=LINE, lw=0, label=f"met in {first.length} positions")
    for other, color in zip(found, PALETTE * len(found), strict=False):
        ax.plot(pairs, other.reached / math.tau, label=other.schedule, color=color)
    part = int((first.trained < math.tau).int().argmax())  # the first pair that did not finish a turn
    ax.set(xlabel="pair", ylabel=f"turn met in {first.factor * first.length:.0f} positions")
    ax.set(xlim=(max(0, part - len(pairs) // 8), len(pairs) - 1), ylim=(0, 1.05))
    ax.legend(loc="upper right", fontsize=8)


@plot("At one neighbours are as far apart as in training; the higher a line, the more that schedule squeezes the pair.")
def squeeze(ax: "Axes", *found: Digits) -> None:
    """How many times nearer neighbours come in each pair, a line for every schedule."""
    for other, color in zip(found, PALETTE * len(found), strict=False):
        ax.step(torch.arange(len(other.squeeze)), other.squeeze, where="mid", label=other.schedule, color=color)
    ax.set(xlabel="pair", ylabel="times nearer than in training", ylim=(0, None))
    ax.legend()
