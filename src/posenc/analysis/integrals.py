# SPDX-License-Identifier: Apache-2.0
"""How the dot product of codes decays when there are infinitely many pairs: the integral of cos(x theta(t)), t in 0 .. 1.

The sum over pairs, (2/d) sum_c cos(x theta(2c/d)), tends to it as d grows (Su, kexue.fm/archives/8231). It is computed
in float64 at any x: with u = theta it is an incomplete gamma function of an imaginary argument, a power series near zero
and, further out, an integral along the imaginary direction, where e^(ixu) does not oscillate but dies away.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posenc.analysis.plotting import INK, PALETTE, SOFT, plot
from posenc.analysis.question import Finding
from posenc.errors import InputError, check_positive, unknown
from posenc.functional import CURVES, frequency_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes


EULER = 0.57721566490153286
CI_ZERO = 0.6165054856207162
"""Where the cosine integral Ci is first zero. The integral of base^-t is first zero at about this times the base."""
NEAR = 5.0
"""Up to here the power series lose no digits."""
PIECE, NODES = 4.0, 12
"""The rotated integrals go piece by piece, with so many Gauss-Legendre nodes on each."""

Numbers = Tensor | Sequence[float] | float


def decay_integral(x: Numbers, curve: str = "geometric", base: float = 10000.0, exponent: float = 1.0) -> Tensor:
    """The integral of cos(x theta(t)) over t in 0 .. 1, float64, of the shape of x: what the normalised dot product of
    two codes x positions apart tends to with more and more pairs.

    x: distances, any real numbers. curve: "geometric", theta = base^-t, (Ci(x) - Ci(x/base)) / ln base with the cosine
    integral Ci; or "power", theta = t^exponent, a confluent hypergeometric function. The absolute error is about 1e-15,
    for bases near 1 divided by |ln base|.

    Raises:
        InputError: an unknown curve, a base or exponent not above 0, x that is not finite.
    """
    x = _checked(x, curve, base, exponent).abs()
    if curve == "power":
        return _power(x, 1 / exponent)
    if base == 1:
        return x.cos()
    ends = x, x / base
    fast, slow = (_minus_ci(end) for end in ends)
    apart = _cin(ends[1], slow) - _cin(ends[0], fast)
    return torch.where(torch.minimum(*ends) > NEAR, slow - fast, math.log(base) + apart) / math.log(base)


def decay_asymptote(x: Numbers, curve: str = "geometric", base: float = 10000.0, exponent: float = 1.0) -> Tensor:
    """The leading term of `decay_integral` for large x, float64, of the shape of x.

    base^-t: (ln(base/x) - 0.5772) / ln base between 1 and the base, a logarithm, and beyond the base
    -base sin(x/base) / (x ln base). t^a: Gamma(1 + 1/a) cos(pi/2a) x^(-1/a) for a > 1, where the slow end of the curve
    rules; sin(x) / (a x) for a <= 1, where the fast end does. Infinite or undefined at x = 0.

    Raises:
        InputError: as `decay_integral`; a base that is not above 1.
    """
    x = _checked(x, curve, base, exponent).abs()
    if curve == "power":
        s = 1 / exponent
        return s * x.sin() / x if s >= 1 else math.gamma(1 + s) * math.cos(math.pi * s / 2) * x**-s
    if base <= 1:
        raise InputError(f"base={base}: the asymptote needs a base above 1")
    near, far = (base / x).log() - EULER, -(x / base).sin() / (x / base)
    return torch.where(x <= base, near, far) / math.log(base)


def first_zero(curve: str = "geometric", base: float = 10000.0, exponent: float = 1.0) -> float | None:
    """The first x at which `decay_integral` is zero; None for a curve that stays above it (t^2). About 0.6165 base for
    base^-t, pi for t, 2.3311 for its root.

    Raises:
        InputError: as `decay_integral`.
    """
    if curve == "geometric" and 0 < base < 1:
        return base * (first_zero(curve, 1 / base) or math.nan)  # the same frequencies, all of them 1/base times faster
    # |Ci(x)| < 1/x adds a ripple to -Ci(x/base) that moves its zero by less than two. Powers: a trend that wins over the
    # first few ripples wins over all, for it falls more slowly.
    around = CI_ZERO * base if curve == "geometric" else 0.0
    unit = max(1.0, 1e-12 * around)  # which float64 still tells apart there
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


def _checked(x: Numbers, curve: str, base: float, exponent: float) -> Tensor:
    if curve not in CURVES:
        raise unknown("curve", curve, CURVES)
    check_positive(base=base, exponent=exponent)
    values = torch.as_tensor(x, dtype=torch.float64, device="cpu")
    if not bool(values.isfinite().all()):
        raise InputError("x holds values that are not finite: distances must be numbers")
    return values


def _minus_ci(x: Tensor) -> Tensor:
    """-Ci(x) for x > NEAR, else zero."""
    result, far = torch.zeros_like(x), x > NEAR
    result[far] = _beyond_one(x[far], 0.0).real
    return result


def _cin(x: Tensor, minus_ci: Tensor) -> Tensor:
    """The integral of (1 - cos u) / u over u in 0 .. x, for x >= 0: ln x + gamma - Ci(x)."""
    near = x.clamp(max=NEAR)
    term, series = torch.ones_like(x), torch.zeros_like(x)
    for k in range(1, 24):
        term = -term * near * near / ((2 * k - 1) * (2 * k))
        series = series - term / (2 * k)
    return torch.where(x <= NEAR, series, EULER + x.log() + minus_ci)


def _power(x: Tensor, s: float) -> Tensor:
    """s times the integral of u^(s-1) cos(xu) over u in 0 .. 1, for x >= 0."""
    border = max(NEAR, s + 1)
    near, far = x.clamp(max=border), x.clamp(min=border)
    step, term = torch.complex(torch.zeros_like(x), -near), torch.ones_like(x, dtype=torch.complex128)
    series, k = term.clone(), 0
    while (
        term.numel() and float(term.abs().max()) > 1e-18
    ):  # Kummer's form: the terms fall from the start on x <= s + 1
        k += 1
        term = term * step / (s + k)
        series = series + term
    slow = math.cos(math.pi * s / 2) * (math.lgamma(1 + s) - s * far.log()).exp()
    return torch.where(
        x <= border, (torch.polar(torch.ones_like(x), near) * series).real, slow - s * _beyond_one(far, s).real
    )


def _beyond_one(x: Tensor, s: float) -> Tensor:
    """The integral of u^(s-1) e^(ixu) over u from 1 to infinity, complex128, for x >= max(NEAR, s): along u = 1 + iy/x."""
    y, weights = _rule(40.0 if s <= 1 else 64.0)  # beyond that it is below 1e-16, at the latest
    parts = [
        ((s - 1) * torch.log1p(y / (-1j * part[:, None])) - y).exp() @ weights  # y / -ix = iy/x
        for part in x.flatten().to(torch.complex128).split(4096)
    ]
    return (torch.cat(parts) * torch.polar(1 / x, x).flatten() * 1j).view(x.shape)


@lru_cache(maxsize=2)
def _rule(reach: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights for integrals over 0 .. reach: Gauss-Legendre on each piece, from the eigenvectors of its
    recurrence (Golub and Welsch 1969)."""
    k = torch.arange(1, NODES, dtype=torch.float64, device="cpu")
    beside = k / (4 * k * k - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(beside.diag(1) + beside.diag(-1))
    starts = torch.arange(0, reach, PIECE, dtype=torch.float64, device="cpu")
    y = starts[:, None] + PIECE * (nodes + 1) / 2
    return y.flatten().to(torch.complex128), (PIECE * vectors[0] ** 2).repeat(len(starts)).to(torch.complex128)


@dataclass(frozen=True)
class FrequencyCurve:
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
    curves: tuple[FrequencyCurve, ...]
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
        sentences = []
        for name, zero, last, gap in rows:
            crossing = "never reaches zero" if zero is None else f"is first zero at {zero:.5g}"
            sentences.append(
                f"theta = {name}: the integral {crossing} and is {last:.3g} at distance {far:g}; the sum over "
                f"{self.dim // 2} pairs is up to {gap:.2g} away from it."
            )
        sentences.append(
            f"A geometric curve stays above zero over {far:g} positions from a base of about {self.wanted:.4g} on; a larger "
            "base decays more slowly over them."
        )
        return sentences


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
    chosen = [FrequencyCurve("geometric", base) for base in bases] + [
        FrequencyCurve("power", exponent=e) for e in exponents
    ]
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


@plot("Power curves fall fastest at short range, geometric ones go on falling at long range until they cross zero.")
def plot_curves(ax: "Axes", finding: Curves, *, sums: bool = False, log: bool = False) -> None:
    """The decay under each curve of frequencies. sums: of dim/2 pairs in place of the integrals. log: the distances."""
    rows = finding.sums if sums else finding.integrals
    for name, row in zip(finding.names, rows, strict=True):
        ax.plot(finding.distances, row, label=name)
    ax.axhline(0, color=SOFT, lw=0.8)
    what = f"sum over {finding.dim // 2} pairs" if sums else "integral"
    ax.set(xlabel="distance", ylabel=what, xscale="log" if log else "linear")
    ax.legend(title="theta", ncols=2)


@plot(
    "The sum over pairs follows the integral while distances are short, then leaves it: decay is a limit of many pairs."
)
def plot_integral_and_sum(ax: "Axes", finding: Curves, row: int = 0) -> None:
    """One curve of frequencies: the integral, the sum over dim/2 pairs and the asymptote. row: of `finding.names`."""
    name = finding.names[row]
    far = finding.distances.abs() >= 1
    ax.plot(finding.distances, finding.sums[row], color=PALETTE[1], lw=0.9, label=f"sum over {finding.dim // 2} pairs")
    ax.plot(finding.distances, finding.integrals[row], color=PALETTE[0], label="integral")
    ax.plot(finding.distances[far], finding.asymptotes[row][far], color=INK, ls=":", label="asymptote")
    ax.axhline(0, color=SOFT, lw=0.8)
    ax.set(xlabel="distance", ylabel="mean of cos(distance * theta)", title=f"theta = {name}", ylim=(-0.5, 1.05))
    ax.legend()
