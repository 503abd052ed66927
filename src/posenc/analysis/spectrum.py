# SPDX-License-Identifier: Apache-2.0
"""What codes are made of: how many directions they use, and how fast each channel oscillates."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.analysis.codes import positions_of
from posenc.analysis.plotting import PALETTE, SOFT, channel_label, integer_axes, plot
from posenc.analysis.question import AnalysisQuestion, Finding
from posenc.analysis.reading import codes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


PURE = 0.9
"""A channel of which one wave holds this share of the variance is a wave."""


@dataclass(frozen=True, eq=False)
class Spectrum(Finding):
    """Directions and wavelengths of the codes of 0 .. length-1.

    singular_values: of the codes less their mean, (min(length, dim),), largest first. share: of the variance that the
    first so many directions hold, cumulative. effective_dim: directions in use, (sum s^2)^2 / sum s^4 with s the singular
    values. directions_99: how many hold 99% of the variance. mean_share: of the codes' mean square that is their mean,
    the same at every position. wavelengths: positions that each channel needs to turn once, (dim,), inf where it never
    does. known: they are the encoding's own frequencies; else those of the wave that fits a channel best, and purity is
    the share of the channel's variance it holds, (dim,). unfinished: channels that turn less than once. waves: channels
    that turn at least once and have a purity of 0.9 and more.
    """

    name: str
    of: str
    length: int
    dim: int
    singular_values: Tensor
    share: Tensor
    effective_dim: float
    directions_99: int
    mean_share: float
    known: bool
    wavelengths: Tensor
    purity: Tensor
    unfinished: int
    waves: int

    def sentences(self) -> list[str]:
        if not self.directions_99:
            return [f"All codes of the first {self.length} {self.of}s are the same."]
        sentences = [
            f"{self.directions_99} of {self.dim} directions hold 99% of the variance of the first {self.length} codes "
            f"(effective dimension {self.effective_dim:.3g})."
        ]
        if self.mean_share > 0.01:
            sentences.append(f"{self.mean_share:.0%} of the codes' mean square is the same at every {self.of}.")
        if not self.known:
            sentences.append(
                f"{self.waves} of {self.dim} channels are a single wave that turns at least once (to 90% of their variance "
                "or more)."
            )
        sentences.append(f"{self.unfinished} of {self.dim} channels turn less than once in {self.length} {self.of}s.")
        return sentences


def spectrum(subject: Any, length: int = 512, **options: Any) -> Spectrum:
    """Singular values and wavelengths of the codes.

    Args:
        subject: anything `codes_of` takes, with its options. length: positions of the text.

    Raises:
        InputError: codes that cannot be read, or a length below 4.
    """
    codes = codes_of(subject, **options)
    values = codes(positions_of(codes, length, 4))
    dim = values.shape[1]
    mean = values.mean(0)
    varying = values - mean
    singular = torch.linalg.svdvals(varying)
    power = singular.square()
    total = float(power.sum())
    share = power.cumsum(0) / (total or 1.0)
    if codes.waves is not None:
        frequencies, purity = codes.waves.by_channel(dim).abs(), torch.ones(dim, dtype=torch.float64)
    else:
        frequencies, purity = _dominant(varying, values.square().sum(0))
    wavelengths = 2 * math.pi / frequencies
    return Spectrum(
        name=codes.name,
        of=codes.of,
        length=length,
        dim=dim,
        singular_values=singular,
        share=share,
        effective_dim=total**2 / float(power.square().sum()) if total else 0.0,
        directions_99=int((share < 0.99).sum()) + 1 if total else 0,
        mean_share=float(mean.square().sum() / values.square().sum(-1).mean()) if bool(values.any()) else 0.0,
        known=codes.waves is not None,
        wavelengths=wavelengths,
        purity=purity,
        unfinished=int((wavelengths > length).sum()),
        waves=int(((purity >= PURE) & (wavelengths <= length)).sum()),
    )


def _dominant(varying: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """The wave that fits each channel best, as its frequency in radians a position, and the share of the variance that it
    holds: least squares on a constant, a sine and a cosine, which also tells waves that are longer than the text. squares:
    of the channels with their means, against which what rounding leaves of a constant is nothing."""
    length = len(varying)
    slow = torch.logspace(-1, 0, 17, dtype=torch.float64)[:-1] / length
    fast = torch.arange(8, 4 * length + 1, dtype=torch.float64) / (8 * length)
    turns = torch.cat((slow, fast))  # per position, up to one in two
    total = varying.square().sum(0)
    shares = torch.cat([_held(varying, part) for part in turns.split(256)]) / torch.where(total > 0, total, 1.0)
    best = shares.max(0)
    moves = total > 1e-24 * squares
    frequencies = torch.where(moves, 2 * math.pi * turns[best.indices], 0.0)
    return frequencies, torch.where(moves, best.values.clamp(0, 1), 1.0)


def _held(varying: Tensor, turns: Tensor) -> Tensor:
    """How much of each channel's square a wave of each of these frequencies holds: (frequencies, dim)."""
    angles = 2 * math.pi * turns[:, None] * torch.arange(len(varying), dtype=torch.float64)
    waves = torch.stack((torch.ones_like(angles), angles.sin(), angles.cos()), -1)
    basis = torch.linalg.svd(waves, full_matrices=False)
    directions = basis.U * (basis.S / basis.S[:, :1] > 1e-8)[:, None]  # at half a turn a position the sine is nothing
    return (directions.mT @ varying).square().sum(1)


@plot("Where the line reaches 1, further directions add nothing: the codes lie in that few dimensions.")
def plot_singular_values(ax: "Axes", spectrum: Spectrum) -> None:
    """The share of the variance in each direction, and in all up to it."""
    count = range(1, len(spectrum.share) + 1)
    each = spectrum.share.diff(prepend=torch.zeros(1, dtype=spectrum.share.dtype))
    ax.bar(count, each.tolist(), color=PALETTE[0], label="each direction")
    ax.plot(count, spectrum.share, color=PALETTE[1], label="all up to it")
    ax.axvline(spectrum.directions_99, color=SOFT, linestyle=":", label=f"99% in {spectrum.directions_99}")
    ax.set(xlabel="direction", ylabel="share of the variance", ylim=(0, 1.02))
    integer_axes(ax)
    ax.legend(loc="center right")


@plot("Channels above the line turn less than once in the text: the further up, the less they tell neighbours apart.")
def plot_wavelengths(ax: "Axes", spectrum: Spectrum) -> None:
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
    ax.set(xlabel=channel_label(spectrum.of), ylabel=f"wavelength ({spectrum.of}s)", xlim=(-1, spectrum.dim))
    integer_axes(ax)
    ax.set_yscale("log")
    ax.legend()


SPECTRUM = AnalysisQuestion(
    "How many dimensions do the codes use?",
    lambda t: spectrum(t.position_codes, t.length),
    lambda t, finding: (plot_singular_values.of(finding), plot_wavelengths.of(finding)),
)
