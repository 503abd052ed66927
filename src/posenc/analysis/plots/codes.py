# SPDX-License-Identifier: Apache-2.0
"""Pictures of codes, and of what they are made of."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.analysis.codes import codes_of
from posenc.analysis.plots.frame import AROUND, INK, PALETTE, SOFT, plot
from posenc.analysis.properties import Steps
from posenc.analysis.reading import Codes
from posenc.analysis.shift import MEANT, Shift
from posenc.analysis.spectrum import Spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMMON, OUTLIER = 0.99, 4
"""Values beyond the share COMMON are outliers where the largest is OUTLIER times as large: the colours end before them."""


@plot("Each row is the code of one position: read along a column to see how fast a channel changes.")
def heat_map(ax: "Axes", subject: Any, length: int = 128) -> None:
    """The codes of positions 0 .. length-1 of anything `codes_of` takes, a row each; fewer where there are fewer."""
    codes, values = _read(subject, length)
    _image(ax, values)
    ax.set(xlabel=_channel(codes.of), ylabel=codes.of)


@plot(
    "Bands along the diagonal: the product depends on how far apart two positions are, not on where they are.", (5, 4.2)
)
def dot_products(ax: "Axes", subject: Any, length: int = 128) -> None:
    """The dot product of every two codes of positions 0 .. length-1, over their mean square."""
    codes, values = _read(subject, length)
    square = float(values.square().sum(-1).mean()) or 1.0
    _image(ax, values @ values.T / square, aspect="equal")
    ax.set(xlabel=codes.of, ylabel=codes.of)


@plot("Where the line reaches 1, further directions add nothing: the codes lie in that few dimensions.")
def singular_values(ax: "Axes", spectrum: Spectrum) -> None:
    """The share of the variance in each direction, and in all up to it."""
    count = range(1, len(spectrum.share) + 1)
    each = spectrum.share.diff(prepend=torch.zeros(1, dtype=spectrum.share.dtype))
    ax.bar(count, each.tolist(), color=PALETTE[0], label="each direction")
    ax.plot(count, spectrum.share, color=PALETTE[1], label="all up to it")
    ax.axvline(spectrum.directions_99, color=SOFT, linestyle=":", label=f"99% in {spectrum.directions_99}")
    ax.set(xlabel="direction", ylabel="share of the variance", ylim=(0, 1.02))
    _count(ax)
    ax.legend(loc="center right")


@plot("Channels above the line turn less than once in the text: the further up, the less they tell neighbours apart.")
def wavelengths(ax: "Axes", spectrum: Spectrum) -> None:
    """How many positions each channel needs to turn once, against the length of the text. Faint: one wave holds little of
    what the channel does."""
    turning = spectrum.wavelengths.isfinite()
    at = torch.arange(spectrum.dim)[turning]
    strength: Any = spectrum.purity[turning].clamp(0.15, 1).numpy()  # one each; the stubs know a single number
    ax.scatter(at, spectrum.wavelengths[turning], s=14, color=PALETTE[0], alpha=strength)
    ax.axhline(spectrum.length, color=PALETTE[1], label=f"length of the text, {spectrum.length}")
    still = spectrum.dim - int(turning.sum())
    if still:
        ax.plot([], [], " ", label=f"{still} channels never turn")
    ax.set(xlabel=_channel(spectrum.of), ylabel=f"wavelength ({spectrum.of}s)", xlim=(-1, spectrum.dim))
    _count(ax)
    ax.set_yscale("log")
    ax.legend()


@plot("Blocks of two by two on the diagonal, or two stripes: each pair of channels is turned by itself.", (5, 4.2))
def shift_matrix(ax: "Axes", shift: Shift) -> None:
    """The matrix that takes each code to a later one."""
    _image(ax, shift.matrix, aspect="equal")
    ax.set(xlabel=_channel(shift.of), ylabel=f"{_channel(shift.of)}, {shift.shift:+g} {shift.of}s")


@plot("A line at the bottom: one matrix does it for every position. A line far up: there is no such matrix.")
def shift_error(ax: "Axes", shift: Shift) -> None:
    """By how much the matrix misses, position by position, against doing nothing."""
    at = shift.first + torch.arange(len(shift.by_position))
    missed = shift.by_position.clamp(min=1e-17)
    if shift.fitted:
        ax.plot(at[1::2], missed[1::2], ".", markersize=3, color=PALETTE[0], label="not fitted to")
        ax.plot(at[::2], missed[::2], ".", markersize=3, color=PALETTE[2], label="fitted to")
    else:
        ax.plot(at, missed, ".", markersize=3, color=PALETTE[0], label="by its frequencies")
    ax.axhline(max(shift.still, 1e-17), color=PALETTE[1], label="doing nothing")
    ax.axhline(MEANT, color=SOFT, linestyle=":", label="counts as exact below")
    ax.set_yscale("log")
    ax.set(xlabel=shift.of, ylabel="missed by (share of the norm)")
    ax.legend(fontsize="small")


@plot("A band without width: the step is the same wherever it is taken.")
def step_sizes(ax: "Axes", steps: Steps) -> None:
    """The distance between codes so many steps apart: mean, smallest and largest over the text."""
    ax.fill_between(
        steps.steps, steps.smallest, steps.largest, color=PALETTE[0], alpha=0.25, label="smallest to largest"
    )
    ax.plot(steps.steps, steps.mean, "o-", color=PALETTE[0], markersize=4, label="mean")
    ax.set_xscale("log", base=2)
    ax.set_xticks(steps.steps, [str(k) for k in steps.steps])
    ax.minorticks_off()
    ax.set(xlabel=f"steps ({steps.of}s)", ylabel="distance of the codes")
    ax.set_ylim(bottom=0)
    ax.legend()


@plot("Flat: codes are as long far out as in training. A line that rises or ends past the mark: they are not.")
def norms(ax: "Axes", subject: Any, length: int = 2048, trained: int = 512) -> None:
    """How long the codes are, to past the trained length."""
    codes, values = _read(subject, length)
    ax.plot(torch.arange(len(values)), values.norm(dim=-1), color=PALETTE[0])
    ax.axvline(trained, color=INK, linestyle=":", label=f"trained length, {trained}")
    ax.set(xlabel=codes.of, ylabel="length of the code", xlim=(0, length))
    ax.set_ylim(bottom=0)
    ax.legend()


def _read(subject: Any, length: int) -> tuple[Codes, Tensor]:
    codes = codes_of(subject)
    return codes, codes(torch.arange(length if codes.limit is None else min(length, codes.limit)))


def _image(ax: "Axes", values: Tensor, aspect: Any = "auto") -> None:
    sizes = values.abs().flatten().sort().values
    largest = most = float(sizes[-1]) or 1.0
    if largest > OUTLIER * sizes[int(COMMON * len(sizes))] > 0:  # a few would leave the rest without colour
        most = float(sizes[int(COMMON * len(sizes))])
    image = ax.imshow(values.numpy(), aspect=aspect, cmap=AROUND, vmin=-most, vmax=most, interpolation="nearest")
    ax.grid(False)
    _count(ax)
    ax.figure.colorbar(image, ax=ax, extend="neither" if most == largest else "both")


def _count(ax: "Axes") -> None:
    """Whole numbers on the axes of things that are counted."""
    from matplotlib.ticker import MaxNLocator

    for axis in (ax.xaxis, ax.yaxis) if ax.images else (ax.xaxis,):
        axis.set_major_locator(MaxNLocator("auto", integer=True))


def _channel(of: str) -> str:
    return "head or channel" if of == "distance" else "channel"  # a bias has heads, a mapped rotation channels
