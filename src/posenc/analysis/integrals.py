# SPDX-License-Identifier: Apache-2.0
"""How the dot product of codes decays when there are infinitely many pairs: the integral of cos(x theta(t)), t in 0 .. 1.

The sum over pairs, (2/d) sum_c cos(x theta(2c/d)), tends to it as d grows (Su, kexue.fm/archives/8231). It is computed
in float64 at any x: with u = theta it is an incomplete gamma function of an imaginary argument, a power series near zero
and, further out, an integral along the imaginary direction, where e^(ixu) does not oscillate but dies away.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from posenc.checks import check_divisors, checked
from posenc.errors import InputError, unknown
from posenc.functional import CURVES

EULER = 0.57721566490153286
CI_ZERO = 0.6165054856207162
"""Where the cosine integral Ci is first zero. The integral of base^-t is first zero at about this times the base."""
NEAR = 5.0
"""Up to here the power series lose no digits."""
PIECE, NODES = 4.0, 12
"""The rotated integrals go piece by piece, with so many Gauss-Legendre nodes on each."""

Numbers = Tensor | Sequence[float] | float


@checked
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


@checked
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


@checked
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
    check_divisors(base=base)
    if not 0 < exponent < math.inf:
        raise InputError(f"exponent={exponent}: t^exponent needs a positive exponent")
    found = torch.as_tensor(x, dtype=torch.float64, device="cpu")
    if not bool(found.isfinite().all()):
        raise InputError("x holds values that are not finite: distances must be numbers")
    return found


def _minus_ci(x: Tensor) -> Tensor:
    """-Ci(x) for x > NEAR, else zero."""
    found, far = torch.zeros_like(x), x > NEAR
    found[far] = _beyond_one(x[far], 0.0).real
    return found


def _cin(x: Tensor, minus_ci: Tensor) -> Tensor:
    """The integral of (1 - cos u) / u over u in 0 .. x, for x >= 0: ln x + gamma - Ci(x)."""
    near = x.clamp(max=NEAR)
    term, found = torch.ones_like(x), torch.zeros_like(x)
    for k in range(1, 24):
        term = -term * near * near / ((2 * k - 1) * (2 * k))
        found = found - term / (2 * k)
    return torch.where(x <= NEAR, found, EULER + x.log() + minus_ci)


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
    found = [
        ((s - 1) * torch.log1p(y / (-1j * part[:, None])) - y).exp() @ weights  # y / -ix = iy/x
        for part in x.flatten().to(torch.complex128).split(4096)
    ]
    return (torch.cat(found) * torch.polar(1 / x, x).flatten() * 1j).view(x.shape)


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
