"""Pictures of positions as numbers: the binary counter beside codes, digits under schedules."""

from typing import TYPE_CHECKING

import torch

from posenc.analysis.plots.frame import AROUND, LINE, PALETTE, SOFT, plot
from posenc.analysis.radix import TURN, Counter, Digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@plot(
    "Left the bits of each position, right the sines of its code: columns flip half as often one after the other, first "
    "abruptly, then smoothly.",
    size=(6.4, 4.8),
)
def counter(ax: "Axes", found: Counter) -> None:
    """Positions downwards: their bits, sines of the bits' periods, and sinusoidal codes, fast columns first."""
    gap = torch.full((found.length, 1), torch.nan, dtype=torch.float64)
    parts = [2 * found.bits - 1, found.waves, found.codes]
    together = torch.cat([columns for part in parts for columns in (part, gap)][:-1], 1)
    ax.imshow(together, aspect="auto", cmap=AROUND, vmin=-1, vmax=1, interpolation="nearest")
    ax.grid(False)
    digits = found.bits.shape[1]
    names = ["bits", "sines of their periods", f"codes, base {found.base:g}"]
    ax.set_xticks([i * (digits + 1) + (digits - 1) / 2 for i in range(3)], names)
    ax.set(ylabel="position")


@plot(
    "Where a line rises above the grey, a pair turns to angles it never met in training; the lower it lies elsewhere, the "
    "more neighbours are squeezed together."
)
def digits(ax: "Axes", *found: Digits) -> None:
    """How far each pair turned in training, and how far it turns in the longer text under each schedule."""
    first = found[0]
    pairs = torch.arange(len(first.trained))
    ax.fill_between(pairs, first.trained / TURN, color=LINE, lw=0, label=f"met in {first.length} trained positions")
    for other in found:
        ax.plot(pairs, other.factor * other.length * other.inv_freq / TURN, label=other.schedule)
        beyond = torch.tensor(other.beyond, dtype=torch.long)
        ax.plot(beyond, other.reached[beyond] / TURN, ls="", marker=".", ms=4, color=ax.lines[-1].get_color())
    ax.axhline(1, color=SOFT, lw=0.8)
    longest = first.factor * first.length
    ax.set(xlabel="pair", ylabel=f"turns in {longest:.0f} positions", yscale="log")
    ax.set_ylim(float((first.trained / TURN).min()) / 2, max(2.0, longest / TURN * 1.5))
    ax.legend()


@plot(
    "A bar of height one keeps neighbours as far apart as in training; the schedule squeezes the pairs whose bar is high."
)
def squeeze(ax: "Axes", *found: Digits) -> None:
    """How many times nearer neighbours come in each pair, a line for every schedule."""
    for other, color in zip(found, PALETTE * len(found), strict=False):
        ax.step(torch.arange(len(other.squeeze)), other.squeeze, where="mid", label=other.schedule, color=color)
    ax.set(xlabel="pair", ylabel="times nearer than in training", ylim=(0, None))
    ax.legend()
