# SPDX-License-Identifier: Apache-2.0
"""How the dot product of codes decays: of infinitely many pairs, and RoPE's bound.

Of infinitely many pairs the dot product of codes is the integral of cos(x theta(t)), t in 0 .. 1: the sum over pairs,
(2/d) sum_c cos(x theta(2c/d)), tends to it as d grows (Su, kexue.fm/archives/8231). It is computed in float64 at any x: for
base^-t a difference of cosine integrals; for t^a a power series near zero and, further out, an integral along the imaginary
direction, where e^(ixu) does not oscillate but decays.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from posenc.analysis.finding import SOFT, Axes, Finding, plot
from posenc.errors import InputError, check_positive, unknown
from posenc.frequencies.schedules import rope_frequencies
from posenc.functional import CURVES

CI_ZERO = 0.6165054856207162
"""Where the cosine integral Ci is first zero. The integral of base^-t is first zero at about this times the base."""
NEAR = 5.0
"""Up to here the power series loses no digits."""
PIECE, NODES = 4.0, 12
"""The integrals along the imaginary direction are split into pieces, with so many Gauss-Legendre nodes on each."""

Numbers = Tensor | Sequence[float] | float


def decay_integral(x: Numbers, curve: str = "geometric", base: float = 10000.0, exponent: float = 1.0) -> Tensor:
    """The integral of cos(x theta(t)) over t in 0 .. 1, float64, of the shape of x: what the normalised dot product of
    two codes x positions apart tends to with more and more pairs. Needs scipy.

    x: distances, any real numbers. curve: "geometric", theta = base^-t, (Ci(x) - Ci(x/base)) / ln base with the cosine
    integral Ci; or "power", theta = t^exponent, a confluent hypergeometric function. The absolute error is about 1e-15,
    for bases near 1 divided by |ln base|.

    Raises:
        InputError: an unknown curve, a base or exponent not above 0, x that is not finite.
    """
    if curve not in CURVES:
        raise unknown("curve", curve, CURVES)
    check_positive(base=base, exponent=exponent)
    x = torch.as_tensor(x, dtype=torch.float64, device="cpu").abs()
    if not bool(x.isfinite().all()):
        raise InputError("x has values that are not finite: distances must be numbers")
    if curve == "power":
        return _power(x, 1 / exponent)
    if base == 1:
        return x.cos()
    from scipy.special import sici

    ends = x, x / base
    fast, slow = (torch.as_tensor(sici(end.numpy())[1]) for end in ends)
    # below, every cosine is 1 in float64, and x / base may be 0, where Ci is infinite
    turns = torch.maximum(*ends) > 1e-8
    return torch.where(turns, (fast - slow) / math.log(base), 1.0)


def first_zero(curve: str = "geometric", base: float = 10000.0, exponent: float = 1.0) -> float | None:
    """The first x at which `decay_integral` is zero; None for a curve that stays above it (t^2). About 0.6165 base for
    base^-t, pi for t, 2.3311 for its root.

    Raises:
        InputError: as `decay_integral`.
    """
    if curve == "geometric" and 0 < base < 1:
        return base * (first_zero(curve, 1 / base) or math.nan)  # the same frequencies, all of them 1/base times faster
    # |Ci(x)| < 1/x adds a ripple to -Ci(x/base) that moves its zero by less than two. Powers: a trend that stays above
    # zero over the first few ripples stays above it over all, since it falls more slowly.
    around = CI_ZERO * base if curve == "geometric" else 0.0
    unit = max(1.0, 1e-12 * around)  # the resolution of float64 there
    start = max(around - 4 * unit, 0.0) if base > 100 else 0.0
    scan = start + unit * torch.arange(0, 64, 1 / 16, dtype=torch.float64, device="cpu")
    below = decay_integral(scan, curve, base, exponent) < 0
    if not below.any():
        return None
    at = int(below.int().argmax())
    low, high = scan[at - 1], scan[at]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if decay_integral(middle, curve, base, exponent) < 0 else (middle, high)
    return float(high)


def _power(x: Tensor, s: float) -> Tensor:
    """s times the integral of u^(s-1) cos(xu) over u in 0 .. 1, for x >= 0."""
    border = max(NEAR, s + 1)
    near, far = x.clamp(max=border), x.clamp(min=border)
    step, term = torch.complex(torch.zeros_like(x), -near), torch.ones_like(x, dtype=torch.complex128)
    series, k = term.clone(), 0
    while term.numel() and float(term.abs().max()) > 1e-18:  # Kummer's form: terms fall from the start on x <= s + 1
        k += 1
        term = term * step / (s + k)
        series = series + term
    slow = math.cos(math.pi * s / 2) * (math.lgamma(1 + s) - s * far.log()).exp()
    inner = (torch.polar(torch.ones_like(x), near) * series).real
    return torch.where(x <= border, inner, slow - s * _beyond_one(far, s).real)


def _beyond_one(x: Tensor, s: float) -> Tensor:
    """The integral of u^(s-1) e^(ixu) over u from 1 to infinity, complex128, for x >= max(NEAR, s): along u = 1 + iy/x."""
    y, weights = _rule(40.0 if s <= 1 else 64.0)  # beyond that it is below 1e-16
    parts = [
        ((s - 1) * torch.log1p(y / (-1j * part[:, None])) - y).exp() @ weights  # y / -ix = iy/x
        for part in x.flatten().to(torch.complex128).split(4096)
    ]
    return (torch.cat(parts) * torch.polar(1 / x, x).flatten() * 1j).view(x.shape)


@lru_cache(maxsize=2)
def _rule(reach: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights for integrals over 0 .. reach: Gauss-Legendre on each piece."""
    from scipy.special import roots_legendre

    nodes, weights = (torch.as_tensor(part) for part in roots_legendre(NODES))
    starts = torch.arange(0, reach, PIECE, dtype=torch.float64)
    y = starts[:, None] + PIECE * (nodes + 1) / 2
    return y.flatten().to(torch.complex128), (PIECE * weights / 2).repeat(len(starts)).to(torch.complex128)


@dataclass(frozen=True, eq=False)
class Curves(Finding):
    """The decay under several curves of frequencies.

    distances: (n,). names: "10000^-t", "t^0.5", ... integrals: (curves, n) float64. zeros: the first zero of each.
    smallest_base: the smallest base whose integral stays above zero up to the largest of the distances, within a position
    or two: length / 0.6165.
    """

    distances: Tensor
    names: tuple[str, ...]
    integrals: Tensor
    zeros: tuple[float | None, ...]
    smallest_base: float

    def sentences(self) -> list[str]:
        far = float(self.distances.abs().max())
        last = self.integrals[:, int(self.distances.abs().argmax())].tolist()
        sentences = []
        for name, zero, value in zip(self.names, self.zeros, last, strict=True):
            crossing = "never reaches zero" if zero is None else f"is first zero at {zero:.5g}"
            sentences.append(f"theta = {name}: the integral {crossing} and is {value:.3g} at distance {far:g}.")
        sentences.append(
            f"A geometric curve stays above zero over {far:g} positions from a base of about {self.smallest_base:.4g} on."
        )
        return sentences


def curves(
    distances: Numbers,
    bases: Sequence[float] = (10000.0, 1000.0, 100.0),
    exponents: Sequence[float] = (0.5, 1.0, 2.0),
) -> Curves:
    """The curves of frequencies that Su compares, over distances: theta = base^-t for every base, t^exponent for every
    exponent.

    Raises:
        InputError: no curve, no distance, what `decay_integral` refuses.

    Source: Su, kexue.fm/archives/8231.
    """
    x = torch.as_tensor(distances, dtype=torch.float64, device="cpu").flatten()
    chosen = {f"{base:g}^-t": ("geometric", base, 1.0) for base in bases}
    chosen |= {"t" if e == 1 else f"t^{e:g}": ("power", 10000.0, e) for e in exponents}
    if not chosen or not len(x):
        raise InputError("pass at least one base or exponent, and at least one distance", argument="curves")
    return Curves(
        distances=x,
        names=tuple(chosen),
        integrals=torch.stack([decay_integral(x, *curve) for curve in chosen.values()]),
        zeros=tuple(first_zero(*curve) for curve in chosen.values()),
        smallest_base=float(x.abs().max()) / CI_ZERO,
    )


@plot("Power curves fall fastest at short range, geometric ones go on falling at long range until they cross zero.")
def plot_curves(ax: Axes, finding: Curves) -> None:
    """The decay under each curve of frequencies."""
    for name, row in zip(finding.names, finding.integrals, strict=True):
        ax.plot(finding.distances, row, label=name)
    ax.axhline(0, color=SOFT, lw=0.8)
    ax.set(xlabel="distance", ylabel="integral")
    ax.legend(title="theta", ncols=2)


def rope_bound(distances: Numbers, head_dim: int, base: float = 10000.0) -> Tensor:
    """RoPE's decay bound: (2/d) sum_j |S_(j+1)| with S_j = sum_(c<j) e^(i m theta_c), float64, of distances' shape.

    By Abel's summation a score at distance m is at most max_j |h_(j+1) - h_j| times sum_j |S_(j+1)|, h_j being the
    product of the j-th pairs of query and key as complex numbers, and zero after the last. It bounds the scores; it does
    not say that they decay. distances: m, any real numbers.

    Raises:
        InputError: distances that are not finite, an odd head_dim, a base not above 0.

    Source: Su et al. 2021, RoFormer, section 3.4.3; kexue.fm/archives/8265.
    """
    theta = rope_frequencies(head_dim, base)
    m = torch.as_tensor(distances, dtype=torch.float64, device="cpu")
    if not bool(m.isfinite().all()):
        raise InputError("distances hold values that are not finite: they must be numbers")
    means = [
        torch.polar(torch.ones(()).double(), part[:, None] * theta).cumsum(-1).abs().mean(-1)
        for part in m.flatten().split(1 << 13)
    ]
    return torch.cat(means).view(m.shape)


@plot(
    "The bound falls in ripples as the distance grows, and faster for small bases; the score itself may do anything below."
)
def plot_rope_bound(ax: Axes, bases: Sequence[float] = (1e4, 5e5, 1e6), head_dim: int = 128, length: int = 512) -> None:
    """RoPE's decay bound over distances below length, a line for every base; for a single one give [base]."""
    distances = torch.arange(length)
    for base in bases:
        ax.plot(distances, rope_bound(distances, head_dim, base), label=f"base {base:g}")
    ax.set(xlabel="distance", ylabel="mean size of partial sums", ylim=(0, None))
    ax.legend()
