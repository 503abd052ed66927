# SPDX-License-Identifier: Apache-2.0
"""How the dot product of two codes changes with their distance, and the curves that it follows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.analysis.codes import codes_of
from posenc.analysis.finding import Finding
from posenc.analysis.integrals import CI_ZERO, Numbers, decay_asymptote, decay_integral, first_zero
from posenc.analysis.reading import positions_of
from posenc.checks import checked
from posenc.errors import InputError
from posenc.functional import frequency_curve

SAME = 1e-4
"""Of the mean squared norm: dot products nearer than this are the same, which leaves room for codes in float32."""
RISE = 1e-12
"""Of the same: means that differ by less are equal."""
BLOCK = 1 << 20
"""Dot products at once."""


@dataclass(frozen=True, eq=False)
class Kernel(Finding):
    """Dot products of codes by distance k, over their mean squared norm: p_m . p_(m+k) over all m, in length positions.

    mean, spread: (length,) float64, over m; the spread is a standard deviation, zero where the distance decides.
    asymmetry: the largest |p_m . p_(m+k) - p_m . p_(m-k)| over all m and k. first_rise: the first k at which the mean
    is larger than at k - 1. first_zero: the first at which it is not above zero. half: the first at which it is at
    most half of its value at zero. tail: its mean from half the length on. random: standard deviation of the dot
    product of two random unit vectors, dim^(-1/2). like_random: the first k at which the mean is within it. Each is
    None where there is no such distance.
    """

    name: str
    dim: int
    length: int
    mean: Tensor
    spread: Tensor
    asymmetry: float
    first_rise: int | None
    first_zero: int | None
    half: int | None
    tail: float
    random: float
    like_random: int | None

    @property
    def stationary(self) -> bool:
        """Whether the dot product is a function of the distance."""
        return float(self.spread.max()) <= SAME and self.symmetric

    @property
    def symmetric(self) -> bool:
        """Whether p_m has the same dot product with what lies as far before it as after it."""
        return self.asymmetry <= SAME

    @property
    def monotone(self) -> bool:
        return self.first_rise is None

    def sentences(self) -> list[str]:
        return [self._about_distance(), self._about_order(), self._about_decay(), self._about_random()]

    def _about_distance(self) -> str:
        if self.stationary:
            return (
                f"The dot product of two codes of {self.name} depends on their distance alone: over all places it spreads "
                f"by {float(self.spread.max()):.1g} at most."
            )
        near = self.spread[: self.length // 2 + 1]  # further out there are few pairs to judge by
        at = int((near if float(near.max()) > SAME else self.spread).argmax())
        return (
            f"The dot product of two codes of {self.name} is no function of their distance: between positions {at} apart "
            f"it spreads by {float(self.spread[at]):.3g} around {float(self.mean[at]):.3g}."
        )

    def _about_order(self) -> str:
        if self.symmetric:
            return (
                "It is the same before and after, p_m . p_(m+k) = p_m . p_(m-k), as for all codes whose dot products "
                "depend on the distance alone. That is of two codes: the scores of a query with the keys around it may "
                "still tell before from after."
            )
        return (
            f"p_m . p_(m+k) and p_m . p_(m-k) differ by up to {self.asymmetry:.3g}. Each is the same both ways, as dot "
            "products are; that the two differ takes a dependence on where m is, and is no sign of a direction."
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

    def _about_random(self) -> str:
        if self.dim == 1:
            return "Codes of one channel are parallel or opposed: none are as unrelated as random vectors of many."
        told = f"Two random vectors of {self.dim} channels have {self.random:.3g} or so"
        if self.like_random is None:
            return f"{told}: any two codes within {self.length} positions are more alike, or more opposed, on average."
        return f"{told}: codes {self.like_random} positions apart are as unrelated as these, on average."


@checked
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
        raise InputError(f"{codes.name}: its codes are of distances, and no position has one of its own to compare")
    positions = positions_of(codes, length, 3)  # two have no p_(m-k) beside p_(m+k)
    values, length = codes(positions), len(positions)
    power = float(values.pow(2).sum(-1).mean())
    if power == 0:
        raise InputError(f"{codes.name}: every code is zero, so there is nothing to compare")
    mean, spread, asymmetry = _by_distance(values / math.sqrt(power))
    level = float(mean[0])
    rises = mean.diff() > RISE
    random = values.shape[1] ** -0.5
    return Kernel(
        name=codes.name,
        dim=values.shape[1],
        length=length,
        mean=mean,
        spread=spread,
        asymmetry=asymmetry,
        first_rise=_first(rises, 1),
        first_zero=_first(mean <= 0),
        half=_first(mean <= level / 2),
        tail=float(mean[length // 2 :].mean()),
        random=random,
        like_random=_first(mean.abs() <= random),
    )


def _first(found: Tensor, offset: int = 0) -> int | None:
    return int(found.int().argmax()) + offset if bool(found.any()) else None


def _by_distance(values: Tensor) -> tuple[Tensor, Tensor, float]:
    """Mean and standard deviation of v_m . v_(m+k) for each k, and the largest difference to v_m . v_(m-k)."""
    length = len(values)
    distances = torch.arange(length)
    count = length - distances.double()
    level = values @ values[0]  # of the first row: deviations from it are small where the distance decides
    first, second, asymmetry = torch.zeros_like(level), torch.zeros_like(level), 0.0
    for rows in distances.split(max(1, BLOCK // length)):
        dots = values[rows] @ values.T
        after, before = rows[:, None] + distances, rows[:, None] - distances
        ahead = dots.gather(1, after.clamp(max=length - 1))
        behind = dots.gather(1, before.clamp(min=0))
        off = (ahead - level).masked_fill(after >= length, 0)
        first, second = first + off.sum(0), second + off.pow(2).sum(0)
        both = (after < length) & (before >= 0)
        asymmetry = max(asymmetry, float((ahead - behind).abs().masked_fill(~both, 0).max()))
    shift = first / count
    return level + shift, (second / count - shift**2).clamp(min=0).sqrt(), asymmetry


@dataclass(frozen=True)
class Curve:
    """theta(t) over t in 0 .. 1: base^-t ("geometric"), or t^exponent ("power")."""

    curve: str
    base: float = 10000.0
    exponent: float = 1.0

    @property
    def name(self) -> str:
        if self.curve == "geometric":
            return f"{self.base:g}^-t"
        return "t" if self.exponent == 1 else f"t^{self.exponent:g}"

    @property
    def first_zero(self) -> float | None:
        return first_zero(self.curve, self.base, self.exponent)


@dataclass(frozen=True, eq=False)
class Curves(Finding):
    """The decay under several curves of frequencies: integrals, sums over dim/2 pairs and asymptotes, a row each.

    distances: (n,). integrals, sums, asymptotes: (curves, n) float64. zeros: the first zero of each integral.
    wanted: the smallest base whose integral stays above zero up to the largest of the distances, but for a position or two:
    length / 0.6165.
    """

    dim: int
    distances: Tensor
    names: tuple[str, ...]
    curves: tuple[Curve, ...]
    integrals: Tensor
    sums: Tensor
    asymptotes: Tensor
    zeros: tuple[float | None, ...]
    wanted: float

    def sentences(self) -> list[str]:
        far = float(self.distances.abs().max())
        at = int(self.distances.abs().argmax())
        apart = (self.sums - self.integrals).abs().amax(-1).tolist()
        rows = zip(self.names, self.zeros, self.integrals[:, at].tolist(), apart, strict=True)
        found = []
        for name, zero, last, gap in rows:
            crossing = "never reaches zero" if zero is None else f"is first zero at {zero:.5g}"
            found.append(
                f"theta = {name}: the integral {crossing} and is {last:.3g} at distance {far:g}; the sum over "
                f"{self.dim // 2} pairs is up to {gap:.2g} away from it."
            )
        found.append(
            f"A geometric curve stays above zero over {far:g} positions from a base of about {self.wanted:.4g} on; a larger "
            "base decays more slowly over them."
        )
        return found


@checked
def curves(
    distances: Numbers,
    bases: Sequence[float] = (10000.0, 1000.0, 100.0),
    exponents: Sequence[float] = (0.5, 1.0, 2.0),
    *,
    dim: int = 128,
) -> Curves:
    """The curves of frequencies that Su compares, over distances: theta = base^-t for every base, t^exponent for every
    exponent; as integrals, as sums over dim/2 pairs, and asymptotically.

    Raises:
        InputError: no curve, no distance, what `decay_integral` refuses, an odd dim.

    Source: Su, kexue.fm/archives/8231.
    """
    chosen = [Curve("geometric", base) for base in bases] + [Curve("power", exponent=e) for e in exponents]
    x = torch.as_tensor(distances, dtype=torch.float64, device="cpu").flatten()
    if not chosen or not len(x):
        raise InputError("curves: pass a base or an exponent, and a distance at least")
    arguments = [(c.curve, c.base, c.exponent) for c in chosen]
    integrals = torch.stack([decay_integral(x, *a) for a in arguments])
    thetas = [frequency_curve(dim, base, curve, exponent) for curve, base, exponent in arguments]
    asymptotes = [x * math.nan if a[0] == "geometric" and a[1] <= 1 else decay_asymptote(x, *a) for a in arguments]
    return Curves(
        dim=dim,
        distances=x,
        names=tuple(c.name for c in chosen),
        curves=tuple(chosen),
        integrals=integrals,
        sums=torch.stack([(x[:, None] * theta).cos().mean(-1) for theta in thetas]),
        asymptotes=torch.stack(asymptotes),
        zeros=tuple(c.first_zero for c in chosen),
        wanted=float(x.abs().max()) / CI_ZERO,
    )
