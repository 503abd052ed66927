# SPDX-License-Identifier: Apache-2.0
"""How the dot product of two codes depends on their distance."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.analysis.codes import positions_of
from posenc.analysis.plotting import LINE, PALETTE, SOFT, image, plot
from posenc.analysis.question import AnalysisQuestion, Finding, first_sentence
from posenc.analysis.reading import codes_of, first_codes
from posenc.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
                f"The dot product of two codes of {self.name} depends on their distance alone: over all positions it spreads "
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
        start = f"Two random vectors of {self.dim} channels have {self.random:.3g} or so"
        if self.like_random is None:
            return f"{start}: any two codes within {self.length} positions are more alike, or more opposed, on average."
        return f"{start}: codes {self.like_random} positions apart are as unrelated as these, on average."


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
        raise InputError(f"{codes.name}: its codes are of distances, and no position has a code to compare")
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


def _first(holds: Tensor, offset: int = 0) -> int | None:
    return int(holds.int().argmax()) + offset if bool(holds.any()) else None


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


@plot(
    "Where the line falls, codes grow less alike as they move apart; where the band around it opens, the dot product "
    "depends on more than the distance, and inside the grey strip two codes are as unrelated as two random vectors."
)
def plot_kernel(ax: "Axes", finding: Kernel) -> None:
    """The normalised dot product by distance, a standard deviation around it, and that of random vectors."""
    distances = torch.arange(finding.length)
    ax.axhspan(-finding.random, finding.random, color=LINE, alpha=0.6, lw=0, label="two random vectors")
    ax.fill_between(
        distances, finding.mean - finding.spread, finding.mean + finding.spread, color=PALETTE[0], alpha=0.25, lw=0
    )
    ax.plot(distances, finding.mean, color=PALETTE[0], label=finding.name)
    ax.axhline(0, color=SOFT, lw=0.8)
    ax.set(xlabel="distance", ylabel="dot product / mean squared norm", xlim=(0, finding.length - 1))
    ax.legend()


@plot(
    "Bands along the diagonal: the product depends on how far apart two positions are, not on where they are.", (5, 4.2)
)
def plot_dot_products(ax: "Axes", subject: Any, length: int = 128) -> None:
    """The dot product of every two codes of positions 0 .. length-1, over their mean square."""
    codes, values = first_codes(subject, length)
    square = float(values.square().sum(-1).mean()) or 1.0
    image(ax, values @ values.T / square, clip=True)
    ax.set(xlabel=codes.of, ylabel=codes.of)


KERNEL = AnalysisQuestion(
    "How does the dot product of two codes change with their distance?",
    lambda t: kernel(t.position_codes, t.length),
    lambda t, finding: (plot_kernel.of(finding), plot_dot_products.of(t.codes)),
    first_sentence,
)
