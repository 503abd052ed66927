# SPDX-License-Identifier: Apache-2.0
"""Every plot of `posenc.analysis`: functions of a finding that return a matplotlib figure and take `ax`."""

from typing import Any

import torch
from torch import Tensor

from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.finding import LINE, PALETTE, SOFT, Axes, channel_label, image, integer_axes, plot
from posenc.analysis.geometry import Kernel, Shift, Spectrum
from posenc.analysis.scores import Bias, PairRotation, PositionScores

__all__ = [
    "bias_by_distance",
    "dot_products",
    "effective_scores",
    "heat_map",
    "kernel",
    "pair_wavelengths",
    "scores_by_head",
    "shift_matrix",
    "singular_values",
    "wavelengths",
]

MOST = 9
"""Heads that still get a colour and a name each."""


@plot("Each row is the code of one position: read along a column to see how fast a channel changes.")
def heat_map(ax: Axes, subject: Any, length: int = 128) -> None:
    """The codes of positions 0 .. length-1 of anything `codes_of` takes, a row each; fewer where there are fewer."""
    codes, values = _first_codes(subject, length)
    image(ax, values, aspect="auto", clip=True)
    ax.set(xlabel=channel_label(codes.of), ylabel=codes.of)


@plot(
    "Where the line falls, codes grow less alike as they move apart; where the band around it opens, the dot product "
    "depends on more than the distance, and inside the grey strip two codes are as unrelated as two random vectors."
)
def kernel(ax: Axes, finding: Kernel) -> None:
    """The normalised dot product by distance, a standard deviation around it, and that of random vectors."""
    distances = torch.arange(finding.length)
    random = finding.dim**-0.5
    ax.axhspan(-random, random, color=LINE, alpha=0.6, lw=0, label="two random vectors")
    ax.fill_between(
        distances, finding.mean - finding.spread, finding.mean + finding.spread, color=PALETTE[0], alpha=0.25, lw=0
    )
    ax.plot(distances, finding.mean, color=PALETTE[0], label="mean over all places")
    ax.axhline(0, color=SOFT, lw=0.8)
    ax.set(xlabel="distance", ylabel="dot product / mean squared norm", xlim=(0, finding.length - 1))
    ax.legend()


@plot(
    "Bands along the diagonal: the product depends on how far apart two positions are, not on where they are.", (5, 4.2)
)
def dot_products(ax: Axes, subject: Any, length: int = 128) -> None:
    """The dot product of every two codes of positions 0 .. length-1, over their mean square."""
    codes, values = _first_codes(subject, length)
    square = float(values.square().sum(-1).mean()) or 1.0
    image(ax, values @ values.T / square, clip=True)
    ax.set(xlabel=codes.of, ylabel=codes.of)


@plot("Blocks of two by two on the diagonal, or two stripes: each pair of channels is turned by itself.", (5, 4.2))
def shift_matrix(ax: Axes, shift: Shift) -> None:
    """The matrix that takes each code to a later one."""
    image(ax, shift.matrix, clip=True)
    ax.set(xlabel=channel_label(shift.of), ylabel=f"{channel_label(shift.of)}, {shift.shift:+g} {shift.of}s")


@plot("Where the line reaches 1, further directions add nothing: the codes lie in that few dimensions.")
def singular_values(ax: Axes, spectrum: Spectrum) -> None:
    """The share of the variance in each direction, and in all up to it."""
    count = range(1, len(spectrum.share) + 1)
    each = spectrum.share.diff(prepend=torch.zeros(1, dtype=spectrum.share.dtype))
    ax.bar(count, each.tolist(), color=PALETTE[0], label="each direction")
    ax.plot(count, spectrum.share, color=PALETTE[1], label="all up to it")
    ax.axvline(spectrum.directions_99, color=SOFT, linestyle=":", label=f"99% in {spectrum.directions_99}")
    ax.set(xlabel="direction", ylabel="share of the variance", ylim=(0, 1.02))
    integer_axes(ax)
    ax.legend(loc="center right")


@plot(
    "Channels above the line complete less than one period in the text: the further up, the less neighbours differ in them."
)
def wavelengths(ax: Axes, spectrum: Spectrum) -> None:
    """How many positions each channel needs to turn once, against the length of the text. Faint: one wave holds little of
    what the channel does."""
    turning = spectrum.wavelengths.isfinite()
    at = torch.arange(spectrum.dim)[turning]
    strength: Any = spectrum.purity[turning].clamp(0.15, 1).numpy()  # one each; the stubs know a single number
    ax.scatter(at, spectrum.wavelengths[turning], s=14, color=PALETTE[0], alpha=strength)
    ax.axhline(spectrum.length, color=PALETTE[1], label=f"length of the text, {spectrum.length}")
    still = spectrum.dim - int(turning.sum())
    if still:
        ax.plot([], [], " ", label=f"{still} channels are constant")
    ax.set(xlabel=channel_label(spectrum.of), ylabel=f"wavelength ({spectrum.of}s)", xlim=(-1, spectrum.dim))
    integer_axes(ax)
    ax.set_yscale("log")
    ax.legend()


@plot("A line per head: where it falls, that head attends less to tokens so far away; a flat line ignores distance.")
def bias_by_distance(ax: Axes, finding: Bias) -> None:
    """What each head adds to a score, by the distance of the two tokens."""
    _by_head(ax, finding.distances, finding.heads)
    ax.set(xlabel="tokens from the query back to the key", ylabel="added to the score")


@plot(
    "Pairs above the dashed line do not complete a full rotation in training: a longer input rotates them to new angles."
)
def pair_wavelengths(ax: Axes, finding: PairRotation) -> None:
    """Positions a turn, pair by pair."""
    turning = finding.wavelengths.isfinite()
    pairs = torch.arange(len(finding.inv_freq))
    late = turning & (finding.wavelengths > finding.trained)
    for which, colour, name in (
        (turning & ~late, PALETTE[0], "complete a rotation"),
        (late, PALETTE[1], "do not"),
    ):
        if bool(which.any()):
            ax.plot(pairs[which], finding.wavelengths[which], "o", markersize=4, color=colour, label=name)
    ax.axhline(finding.trained, color=SOFT, linestyle="--", linewidth=1.2, label=f"training length, {finding.trained}")
    ax.set(yscale="log", xlabel="pair of channels", ylabel="wavelength (positions)")
    ax.legend()


@plot(
    "The faster the score between two copies of the same token falls from left to right, the more local attention becomes."
)
def effective_scores(ax: Axes, finding: PositionScores) -> None:
    """What position adds to scores by distance, mean over heads, with a standard deviation over contents."""
    distances = torch.arange(finding.length)
    for values, spread, colour, name in (
        (finding.same, finding.same_spread, PALETTE[0], "two copies of the same token"),
        (finding.unrelated, finding.unrelated_spread, PALETTE[1], "two unrelated tokens"),
    ):
        mean, around = values.nanmean(0), spread.nanmean(0)
        ax.plot(distances, mean, color=colour, label=name)
        ax.fill_between(distances, mean - around, mean + around, color=colour, alpha=0.18, linewidth=0)
    ax.axhline(0, color=LINE, linewidth=1)
    ax.set(xlabel="tokens back", ylabel="score minus score without positions")
    ax.legend()


@plot("Heads that part ways specialise by distance; where all lie on one line, position treats every head alike.")
def scores_by_head(ax: Axes, finding: PositionScores) -> None:
    """What position adds to the score of a token with an identical one, a line per head."""
    _by_head(ax, torch.arange(finding.length), finding.same)
    ax.set(xlabel="tokens back", ylabel="score minus score without positions")


def _by_head(ax: Axes, distances: Tensor, heads: Tensor) -> None:
    for number, values in enumerate(heads):
        named = {"label": f"head {number}"} if len(heads) <= MOST else {"color": PALETTE[0], "alpha": 0.4}
        ax.plot(distances, values, **named)
    if 1 < len(heads) <= MOST:
        ax.legend()


def _first_codes(subject: Any, length: int) -> tuple[Codes, Tensor]:
    """The codes of a subject, and their values at positions 0 .. length-1, or as far as they are defined."""
    codes = codes_of(subject)
    return codes, codes(torch.arange(length if codes.limit is None else min(length, codes.limit)))
