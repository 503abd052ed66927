# SPDX-License-Identifier: Apache-2.0
"""Pictures of what position does to scores."""

from typing import TYPE_CHECKING

import torch

from posenc.analysis.plots.frame import LINE, PALETTE, SOFT, plot
from posenc.analysis.scores import Bias, Rotation, Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 9
"""Heads that still get a colour and a name each."""


@plot("A line a head: where it falls, that head looks less at tokens so far away; a flat line is blind to distance.")
def bias_by_distance(ax: "Axes", found: Bias) -> None:
    """What each head adds to a score, by the distance of the two tokens."""
    _by_head(ax, found.distances, found.heads)
    ax.set(xlabel="tokens from the query back to the key", ylabel="added to the score")


@plot("Pairs above the dashed line never come round in training: a longer text turns them to angles they have not met.")
def pair_wavelengths(ax: "Axes", found: Rotation) -> None:
    """Positions a turn, pair by pair."""
    turning = found.wavelengths.isfinite()
    pairs = torch.arange(len(found.angles))
    late = turning & (found.wavelengths > found.trained)
    for which, colour, name in ((turning & ~late, PALETTE[0], "come round"), (late, PALETTE[1], "never come round")):
        if bool(which.any()):
            ax.plot(pairs[which], found.wavelengths[which], "o", markersize=4, color=colour, label=name)
    ax.axhline(found.trained, color=SOFT, linestyle="--", linewidth=1.2, label=f"trained length, {found.trained}")
    ax.set(yscale="log", xlabel="pair of channels", ylabel="positions a turn")
    ax.legend()


@plot("How fast a token's score with its own like drops from left to right is how local this encoding makes attention.")
def effective_scores(ax: "Axes", found: Scores) -> None:
    """What position adds to scores by distance, mean over heads, with a standard deviation over contents."""
    distances = torch.arange(found.length)
    for values, spread, colour, name in (
        (found.same, found.same_spread, PALETTE[0], "a token and its like"),
        (found.unrelated, found.unrelated_spread, PALETTE[1], "two unrelated tokens"),
    ):
        mean, around = values.nanmean(0), spread.nanmean(0)
        ax.plot(distances, mean, color=colour, label=name)
        ax.fill_between(distances, mean - around, mean + around, color=colour, alpha=0.18, linewidth=0)
    ax.axhline(0, color=LINE, linewidth=1)
    ax.set(xlabel="tokens back", ylabel="score minus score without positions")
    ax.legend()


@plot("Heads that part ways specialise by distance; where all lie on one line, position treats every head alike.")
def scores_by_head(ax: "Axes", found: Scores) -> None:
    """What position adds to the score of a token with its own like, a line a head."""
    _by_head(ax, torch.arange(found.length), found.same)
    ax.set(xlabel="tokens back", ylabel="score minus score without positions")


def _by_head(ax: "Axes", distances: torch.Tensor, heads: torch.Tensor) -> None:
    for number, values in enumerate(heads):
        named = {"label": f"head {number}"} if len(heads) <= MOST else {"color": PALETTE[0], "alpha": 0.4}
        ax.plot(distances, values, **named)
    if 1 < len(heads) <= MOST:
        ax.legend()
