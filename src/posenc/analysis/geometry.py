# SPDX-License-Identifier: Apache-2.0
"""Codes as vectors: their dot products by distance, the matrix that shifts them, and the directions and waves they consist of."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.analysis.codes import codes_of, in_chunks, positions_of
from posenc.analysis.finding import Finding
from posenc.errors import InputError, check_numbers

SAME = 1e-4
"""Of the mean squared norm: dot products nearer than this are the same, which leaves room for codes in float32."""
RISE = 1e-12
"""Of the same: means that differ by less are equal."""


@dataclass(frozen=True, eq=False)
class Kernel(Finding):
    """Dot products of codes by distance k, over their mean squared norm: p_m . p_(m+k) over all m, in length positions.

    A distance is None where there is no such one.
    """

    name: str
    dim: int
    length: int
    mean: Tensor
    """(length,) float64, over m"""
    spread: Tensor
    """(length,) float64, standard deviation over m, zero where the distance decides"""
    deviation: float
    """The largest difference of a product from the mean at its distance"""
    first_rise: int | None
    """The first k at which the mean is larger than at k - 1"""
    first_zero: int | None
    """The first k at which the mean is not above zero"""
    half: int | None
    """The first k at which the mean is at most half of its value at zero"""
    tail: float
    """Mean from half the length on"""

    @property
    def stationary(self) -> bool:
        """Whether the dot product is a function of the distance."""
        return self.deviation <= SAME

    @property
    def monotone(self) -> bool:
        return self.first_rise is None

    def sentences(self) -> list[str]:
        return [self._about_distance(), self._about_decay()]

    def _about_distance(self) -> str:
        if self.stationary:
            return (
                f"The dot product of two codes of {self.name} depends on their distance alone, within "
                f"{self.deviation:.1g}."
            )
        near = self.spread[: self.length // 2 + 1]  # further out there are few pairs to judge by
        at = int((near if float(near.max()) > SAME else self.spread).argmax())
        return (
            f"The dot product of two codes of {self.name} is no function of their distance: at distance {at} its standard "
            f"deviation is {float(self.spread[at]):.3g}, its mean {float(self.mean[at]):.3g}."
        )

    def _about_decay(self) -> str:
        steps, last = self.mean.diff(), self.length - 1
        if not self.monotone:
            shape = f"does not fall steadily: it rises first at distance {self.first_rise}"
        elif bool((steps < -RISE).all()):
            shape = f"falls with every step up to distance {last}"
        elif bool((steps >= -RISE).all()):
            shape = f"is the same at every distance up to {last}"
        else:
            shape = f"never rises up to distance {last}"
        half = f"halves at {self.half}" if self.half else f"does not halve within {last}"
        zero = f"reaches zero at {self.first_zero}" if self.first_zero else "stays above zero"
        tail = f"{self.tail:.3g} on average from distance {self.length // 2} on"
        return f"Its mean {shape}; it {half}, {zero}, and is {tail}."


def kernel(subject: Any, length: int = 512, **options: Any) -> Kernel:
    """The dot product of codes by distance, over all pairs of the first `length` positions.

    subject, options: see `codes_of`. Memory grows with the length, time with its square: 16384 positions of 64 channels
    take a quarter of a minute.

    Raises:
        InputError: a subject whose codes belong to distances, a length below 3 or past what it defines, codes that are
            all zero.
    """
    codes = codes_of(subject, **options)
    if codes.of == "distance":
        raise InputError("its codes are of distances, and no position has a code to compare", argument=codes.name)
    positions = positions_of(codes, length, 3)  # two have no p_(m-k) beside p_(m+k)
    values, length = codes(positions), len(positions)
    power = float(values.pow(2).sum(-1).mean())
    if power == 0:
        raise InputError("every code is zero, so there is nothing to compare", argument=codes.name)
    values = values / math.sqrt(power)
    of_distances = []
    for k in range(length):
        dots = (values[: length - k] * values[k:]).sum(-1)
        of_distances.append(torch.stack((dots.mean(), dots.std(correction=0), (dots - dots.mean()).abs().max())))
    mean, spread, deviations = torch.stack(of_distances, 1)
    level = float(mean[0])
    rises = mean.diff() > RISE
    return Kernel(
        name=codes.name,
        dim=values.shape[1],
        length=length,
        mean=mean,
        spread=spread,
        deviation=float(deviations.max()),
        first_rise=_first(rises, 1),
        first_zero=_first(mean <= 0),
        half=_first(mean <= level / 2),
        tail=float(mean[length // 2 :].mean()),
    )


def _first(holds: Tensor, offset: int = 0) -> int | None:
    return int(holds.int().argmax()) + offset if bool(holds.any()) else None


ROUNDING = 1e-4
"""Share of the norm below which a miss is rounding: codes in float32 leave so much in long inputs."""


@dataclass(frozen=True, eq=False)
class Shift(Finding):
    """One matrix for a shift by `shift` positions, (dim, dim), and how well it does at every position."""

    name: str
    of: str
    shift: float
    length: int
    exact: bool
    """It is made of the known frequencies, a rotation for each; otherwise it is the least-squares fit to every other
    position"""
    holds: bool
    """It misses codes it was not fitted to by less than `ROUNDING` of their norm"""
    matrix: Tensor
    """(dim, dim)"""
    residual: float
    """How far M p(t) is from p(t + shift) there, root mean square over that of p"""
    still: float
    """What the identity misses by"""
    added: float
    """What adding one vector everywhere misses by"""
    by_position: Tensor
    """(positions,), the residual at every t that has both codes"""
    fitted: int
    """How many positions it was fitted to"""
    rank: int
    """In how many directions: as many as serve positions left out"""

    def sentences(self) -> list[str]:
        dim = len(self.matrix)
        unit = self.of if abs(self.shift) == 1 else f"{self.of}s"
        later = f"{abs(self.shift):g} {unit} {'later' if self.shift > 0 else 'earlier'}"
        if self.holds:
            sentences = [
                f"One {dim} x {dim} matrix takes every code to that of {later} "
                f"(it misses by {self.residual:.1g} of a code's norm)."
            ]
        else:
            sentences = [
                f"No one matrix takes every code to that of {later}: the best for half of them "
                f"misses the others by {self.residual:.1%} of a code's norm, the identity by {self.still:.1%}."
            ]
        if self.still < ROUNDING:
            sentences.append(f"The identity misses by {self.still:.1g}: codes so far apart are the same.")
        elif self.added < ROUNDING and not self.holds:
            sentences.append("Adding one vector does it everywhere.")
        if self.exact:
            sentences.append("It rotates each pair of channels by the shift times its frequency.")
        elif not self.holds and self.fitted <= dim:
            sentences.append(f"A fit to {self.fitted} positions in {dim} dimensions is tested on the others alone.")
        return sentences


def shift_matrix(subject: Any, shift: float = 1, *, length: int = 512, fit: bool = False, **options: Any) -> Shift:
    """The matrix that moves codes by `shift` positions: exact where the frequencies are known (sinusoidal codes, and what
    rotation makes of a vector), else fitted by least squares to every other position and tested on the rest.

    Args:
        subject: anything `codes_of` takes, with its options. shift: positions; negative, and fractional where codes of
            fractional positions exist. length: codes p(0) .. p(length-1) are used. fit: fit even where the frequencies
            are known.

    Raises:
        InputError: codes that cannot be read, a shift of 0, or a length that leaves fewer than 4 pairs.
    """
    codes = codes_of(subject, **options)
    check_numbers(shift=shift)
    if shift == 0:
        raise InputError("how many positions to move by, not 0", shift=shift)
    steps = math.ceil(abs(shift))
    at = positions_of(codes, length, 2 * steps + 4)
    at = at[: -2 * steps] if shift > 0 else at[2 * steps :]
    read = in_chunks(codes, length) if shift == int(shift) else codes
    before, after = read(at), read(at + int(shift) if shift == int(shift) else at.double() + shift)
    norm = float(after.square().sum(-1).mean().sqrt()) or 1.0
    known = codes.waves is not None and not fit
    rest = torch.arange(len(at)) % 2 == 1
    if known:
        assert codes.waves is not None
        matrix, rank, rest = codes.waves.matrix(shift, before.shape[1]), before.shape[1], torch.ones_like(rest)
    else:
        matrix, rank = _fitted(before[~rest], after[~rest])
    missed = (before @ matrix.T - after).norm(dim=-1) / norm
    residual = _mean(missed[rest])
    return Shift(
        name=codes.name,
        of=codes.of,
        shift=shift,
        length=length,
        exact=known,
        holds=residual < ROUNDING,
        matrix=matrix,
        residual=residual,
        added=_mean(((after - before) - (after - before).mean(0)).norm(dim=-1) / norm),
        still=_mean((before - after).norm(dim=-1) / norm),
        by_position=missed,
        fitted=0 if known else int((~rest).sum()),
        rank=rank,
    )


def _fitted(before: Tensor, after: Tensor) -> tuple[Tensor, int]:
    """M with M before = after in the sense of least squares, and in how many of the directions of the codes. Fewer than
    all where more would fit noise: every other row decides, as a fit in all of more dimensions than rows is always exact.
    """
    part, rest = slice(0, None, 2), slice(1, None, 2)
    tried = {rank: _least_squares(before[part], after[part], rank) for rank in _ranks(before[part])}
    missed = {rank: float((before[rest] @ matrix.T - after[rest]).square().sum()) for rank, matrix in tried.items()}
    best, every = min(missed, key=missed.__getitem__), _ranks(before)[-1]
    rank = every if best == max(tried) else best
    return _least_squares(before, after, rank), rank


def _ranks(codes: Tensor) -> list[int]:
    """1, 2, 4, .. and all of the directions that codes have at all."""
    singular = torch.linalg.svdvals(codes)
    every = max(1, int((singular > 1e-10 * singular[0]).sum()))
    return [*(2**k for k in range(every.bit_length()) if 2**k < every), every]


def _least_squares(before: Tensor, after: Tensor, rank: int) -> Tensor:
    left, singular, right = torch.linalg.svd(before, full_matrices=False)
    if not singular[0]:
        return before.new_zeros(before.shape[1], before.shape[1])
    return after.T @ left[:, :rank] / singular[:rank] @ right[:rank]


def _mean(shares: Tensor) -> float:
    return float(shares.square().mean().sqrt())


PURE = 0.9
"""A channel of which one wave holds this share of the variance is a wave."""


@dataclass(frozen=True, eq=False)
class Spectrum(Finding):
    """Directions and wavelengths of the codes of 0 .. length - 1."""

    name: str
    of: str
    length: int
    dim: int
    share: Tensor
    """Of the variance of the codes in the first so many directions, cumulative, (min(length, dim),)"""
    effective_dim: float
    """Directions in use, (sum s^2)^2 / sum s^4, with s the singular values of the codes less their mean"""
    directions_99: int
    """Directions that have 99% of the variance"""
    mean_share: float
    """Of the codes' mean square, what their mean has, which is the same at every position"""
    known: bool
    """The wavelengths are of the frequencies of the encoding; else of the wave that fits a channel best"""
    wavelengths: Tensor
    """Positions that each channel needs to turn once, (dim,), inf where it never does"""
    purity: Tensor
    """Share of the channel's variance that its wave has, (dim,)"""
    unfinished: int
    """Channels that complete less than one period"""
    waves: int
    """Channels that complete at least one period and have a purity of 0.9 and more"""

    def sentences(self) -> list[str]:
        if not self.directions_99:
            return [f"All codes of the first {self.length} {self.of}s are the same."]
        sentences = [
            f"{self.directions_99} of {self.dim} directions have 99% of the variance of the first {self.length} codes "
            f"(effective dimension {self.effective_dim:.3g})."
        ]
        if self.mean_share > 0.01:
            sentences.append(f"{self.mean_share:.0%} of the codes' mean square is the same at every {self.of}.")
        if not self.known:
            sentences.append(
                f"{self.waves} of {self.dim} channels are a single wave that completes at least one period (to 90% of their variance "
                "or more)."
            )
        sentences.append(
            f"{self.unfinished} of {self.dim} channels complete less than one period in {self.length} {self.of}s."
        )
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
        frequencies, purity = torch.zeros(dim, dtype=torch.float64), torch.ones(dim, dtype=torch.float64)
        frequencies[codes.waves.first] = frequencies[codes.waves.second] = codes.waves.frequencies.abs()
    else:
        frequencies, purity = _dominant(varying, values.square().sum(0))
    wavelengths = 2 * math.pi / frequencies
    return Spectrum(
        name=codes.name,
        of=codes.of,
        length=length,
        dim=dim,
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
    holds: least squares on a constant, a sine and a cosine, which also finds waves longer than the text. squares:
    of the channels with their means, against which what rounding leaves of a constant is nothing."""
    length = len(varying)
    slow = torch.logspace(-1, 0, 17, dtype=torch.float64)[:-1] / length
    fast = torch.arange(8, 4 * length + 1, dtype=torch.float64) / (8 * length)
    turns = torch.cat((slow, fast))  # per position, up to one in two
    total = varying.square().sum(0)
    shares = torch.cat([_explained(varying, part) for part in turns.split(256)]) / torch.where(total > 0, total, 1.0)
    best = shares.max(0)
    moves = total > 1e-24 * squares
    frequencies = torch.where(moves, 2 * math.pi * turns[best.indices], 0.0)
    return frequencies, torch.where(moves, best.values.clamp(0, 1), 1.0)


def _explained(varying: Tensor, turns: Tensor) -> Tensor:
    """How much of each channel's square a wave of each of these frequencies explains: (frequencies, dim)."""
    angles = 2 * math.pi * turns[:, None] * torch.arange(len(varying), dtype=torch.float64)
    waves = torch.stack((torch.ones_like(angles), angles.sin(), angles.cos()), -1)
    basis = torch.linalg.svd(waves, full_matrices=False)
    directions = basis.U * (basis.S / basis.S[:, :1] > 1e-8)[:, None]  # at half a turn a position the sine is nothing
    return (directions.mT @ varying).square().sum(1)
