# SPDX-License-Identifier: Apache-2.0
"""What RoPE's frequencies bound: the decay of dot products, the score at a distance, and the length that a base serves.

Of infinitely many pairs the dot product of codes is the integral of cos(x theta(t)), t in 0 .. 1: the sum over pairs,
(2/d) sum_c cos(x theta(2c/d)), tends to it as d grows (Su, kexue.fm/archives/8231). It is computed in float64 at any x: for
base^-t a difference of cosine integrals; for t^a a power series near zero and, further out, an integral along the imaginary
direction, where e^(ixu) does not oscillate but decays.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from posenc.analysis.finding import INK, PALETTE, SOFT, AnalysisQuestion, Axes, Finding, plot
from posenc.errors import InputError, check_positive, check_sizes, unknown
from posenc.frequencies.schedules import first_negative, rope_frequencies
from posenc.functional import CURVES, check_even

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


FACTOR = 4
"""How much longer than in training the sequences of a report are."""
LARGEST_BASE = 1e15
WORST = 8
"""Distances at which the sum is negative that are tried on the next base."""


@dataclass(frozen=True)
class Model:
    """A pretrained model's rotation: the channels that rotate, the base, and the tokens it was trained on."""

    name: str
    rotary_dim: int
    base: float
    length: int

    @property
    def longest(self) -> int | None:
        return longest_length(self.base, self.rotary_dim)


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


def longest_length(base: float, head_dim: int, *, limit: int = 1 << 20) -> int | None:
    """The longest context that a base serves: the first distance m at which sum_c cos(m theta_c) < 0, where a key
    like the query is not preferred to a random one (at later distances it may be). None where there is none below `limit`.

    A necessary condition that the paper derives and finds confirmed, not a promise: Llama 2 was trained on more than
    twice its 1707. head_dim: channels that rotate.

    Raises:
        InputError: an odd head_dim, a base not above 0, a limit below 1.

    Source: Men et al. 2024, "Base of RoPE Bounds Context Length" (2405.14591); kexue.fm/archives/10122.
    """
    check_sizes(limit=limit)
    return first_negative(rope_frequencies(head_dim, base), limit)


def smallest_base(length: int, head_dim: int, *, step: float = 1e-3) -> float:
    """The smallest base with sum_c cos(m theta_c) >= 0 at every distance m below `length`.

    The bases that do so are no interval: some fail above the first that does not (`safe_base`: from where on none does). So bases are tried upwards, each a
    factor 1 + step above the last, and windows narrower than that are passed over (128k at head_dim 128: 4.87e6 with
    step 1e-4, 7.79e6 with 1e-3). With infinitely many pairs it is length / 0.6165, see `decay_integral`. A second for 8k,
    ten for 1M.

    Raises:
        InputError: a length below 1, an odd head_dim, a step outside 1e-6 .. 1, or no such base up to 1e15.
    """
    check_sizes(length=length)
    check_even("head_dim", head_dim)
    if not 1e-6 <= step <= 1:
        raise InputError("must be a share of the base from 1e-6 to 1", step=step)
    base, failing = 1 + step, torch.zeros(0, dtype=torch.float64)
    while base <= LARGEST_BASE:
        theta = rope_frequencies(head_dim, base)
        if not bool(((failing[:, None] * theta).cos().sum(-1) < 0).any()):  # most fail where their neighbour does
            worst = _negative_near_the_end(theta, length)
            if worst is None:
                return base
            failing = worst
        base *= 1 + step
    raise InputError(
        f"at every base up to {LARGEST_BASE:g} the sum of {head_dim // 2} cosines is negative somewhere",
        "take more channels, a shorter length or a smaller step",
        length=length,
        head_dim=head_dim,
    )


TRIED_UP_TO, TRIED_STEP = 8.0, 1e-2
"""`safe_base` tries bases up to so many times the smallest, each so much of it above the last."""


def safe_base(length: int, head_dim: int, smallest: float) -> float | None:
    """The base from which on every larger one that is tried has sum_c cos(m theta_c) >= 0 at every distance m below `length`.
    None where the largest that is tried has not.

    Tried are bases a factor 1.01 apart, from 8 times the smallest down to the first that fails. smallest: the
    `smallest_base`. Seconds for 32k.

    Raises:
        InputError: as `smallest_base`.
    """
    check_sizes(length=length)
    base = smallest * TRIED_UP_TO
    while base > smallest:
        if _negative_near_the_end(rope_frequencies(head_dim, base), length) is not None:
            return None if base == smallest * TRIED_UP_TO else base * (1 + TRIED_STEP)
        base /= 1 + TRIED_STEP
    return smallest


def _negative_near_the_end(theta: Tensor, length: int, block: int = 1 << 12) -> Tensor | None:
    """Some of the distances below length at which the sum is negative; the longest fail first as a base grows."""
    for end in range(length, 0, -block):
        distances = torch.arange(max(0, end - block), end, dtype=torch.float64)
        sums = (distances[:, None] * theta).cos().sum(-1)
        worst = sums.topk(min(WORST, len(sums)), largest=False)
        if worst.values[0] < 0:
            return distances[worst.indices[worst.values < 0]]
    return None


@dataclass(frozen=True, eq=False)
class BaseBound(Finding):
    """Bases against lengths: the smallest of each length, and those of models.

    safe: the base of each length from which on larger ones serve too, see `safe_base`; None: not known.
    limits: length / 0.6165, the smallest base with infinitely many pairs. longest: the longest length of each model.
    """

    head_dim: int
    lengths: tuple[int, ...]
    bases: tuple[float, ...]
    safe: tuple[float | None, ...]
    limits: tuple[float, ...]
    models: tuple[Model, ...]
    longest: tuple[int | None, ...]

    def sentences(self) -> list[str]:
        sentences = [
            f"{self.head_dim} channels under plain RoPE need a base of {base:.3g} for {length} positions, {_larger(base, safe)}; "
            f"infinitely many would need {limit:.3g}."
            for length, base, safe, limit in zip(self.lengths, self.bases, self.safe, self.limits, strict=True)
        ]
        for model, longest in zip(self.models, self.longest, strict=True):
            start = f"{model.name} (base {model.base:g}, {model.rotary_dim} channels, {model.length} positions)"
            end = "not negative within 2^20 positions."
            if longest is not None:
                verdict = "beyond" if longest >= model.length else "short of"
                end = f"first negative at {longest}, {verdict} the length it was trained on."
            sentences.append(f"{start}: the sum of its cosines is {end}")
        return sentences


def _larger(base: float, safe: float | None) -> str:
    if safe is None:
        return f"but some larger ones fail, up to the largest that was tried, {base * TRIED_UP_TO:.3g}: which serve is not known"
    if safe <= base:
        return f"and every larger one up to {base * TRIED_UP_TO:.3g} that was tried serves too"
    return (
        f"but some larger ones fail: from {safe:.3g} on every base up to {base * TRIED_UP_TO:.3g} that was tried serves"
    )


def base_bound(
    lengths: Sequence[int] = (1024, 2048, 4096, 8192, 16384, 32768),
    head_dim: int = 128,
    *,
    step: float = 1e-3,
    models: Sequence[Model] = (),
) -> BaseBound:
    """`smallest_base` of several lengths beside what models take. head_dim, step: as there.

    Raises:
        InputError: as `smallest_base`; no length.
    """
    if not lengths:
        raise InputError("lengths is empty: pass at least one")
    bases = tuple(smallest_base(length, head_dim, step=step) for length in lengths)
    return BaseBound(
        head_dim=head_dim,
        lengths=tuple(lengths),
        bases=bases,
        safe=tuple(safe_base(n, head_dim, base) for n, base in zip(lengths, bases, strict=True)),
        limits=tuple(length / CI_ZERO for length in lengths),
        models=tuple(models),
        longest=tuple(model.longest for model in models),
    )


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


@plot("A model under the line was trained on distances at which a key like the query may do worse than a random one.")
def plot_base_bound(ax: Axes, finding: BaseBound) -> None:
    """The smallest base of each length, its limit for infinitely many pairs, and the models."""
    ax.plot(finding.lengths, finding.bases, marker="o", ms=4, label=f"smallest base, {finding.head_dim} channels")
    ax.plot(finding.lengths, finding.limits, ls=":", color=SOFT, label="infinitely many channels")
    points: dict[tuple[int, float], list[str]] = {}
    for model in finding.models:
        points.setdefault((model.length, model.base), []).append(model.name)
    for point, names in points.items():
        ax.plot(*point, marker="s", ms=5, ls="", color=PALETTE[1])
        label: dict[str, Any] = {"xytext": (5, -4), "textcoords": "offset points", "fontsize": 8, "va": "top"}
        ax.annotate("\n".join(names), point, color=INK, **label)
    ax.margins(x=0.2)
    ax.set(xlabel="length of context", ylabel="base", xscale="log", yscale="log")
    ax.legend()


BASE = AnalysisQuestion(
    "How long a context does the base serve?",
    lambda t: base_bound(
        (t.trained, FACTOR * t.trained),
        t.rotary.rotated,
        models=(Model(t.name, t.rotary.rotated, t.rotary.rope_theta, t.trained),),
    ),
    lambda t, finding: (plot_base_bound.of(finding),),
    lambda finding: finding.sentences()[-1],
)
