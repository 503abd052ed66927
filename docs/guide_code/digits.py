# SPDX-License-Identifier: Apache-2.0
"""Positions in a positional number system: bits beside sines, and RoPE's pairs as the digits of a base."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from guide_code.shared import legend_above
from posenc import frequencies as schedules
from posenc.analysis.finding import AROUND, LINE, PALETTE, Axes, Finding, plot
from posenc.errors import InputError, check_integers, check_sizes
from posenc.frequencies.schedules import check_factor, check_length
from posenc.functional import binary_digits, frequency_curve

Schedule = str | Mapping[str, Any]
"""As a text, "yarn:factor=4:original_max_positions=4096", or as data."""
SCHEDULES = ("default", "linear", "ntk", "yarn")


@dataclass(frozen=True, eq=False)
class Counter(Finding):
    """Positions 0 .. length-1 in binary, beside sines of the same periods and beside sinusoidal codes.

    bits: (length, digits) of 0 and 1, the lowest first; bit k is 2^k zeros and 2^k ones in turn. waves: sines of those
    periods, positive where the bit is 1. codes: the sines of a sinusoidal code of as many pairs, whose periods are
    wavelengths: 2 pi base^(c/digits). bit_steps: the largest and smallest Euclidean distance between neighbours' bits;
    code_steps: the same of complete codes, sines and cosines.
    """

    length: int
    base: float
    bits: Tensor
    waves: Tensor
    codes: Tensor
    wavelengths: Tensor
    bit_steps: tuple[float, float]
    code_steps: tuple[float, float]

    def sentences(self) -> list[str]:
        digits = self.bits.shape[1]
        return [
            f"Bit k flips every 2^k positions: bit 0 at each, bit {digits - 1} every {2 ** (digits - 1)}. A sine of period "
            "2^(k+1) is positive exactly where the bit is 1.",
            f"Pair c of a sinusoidal code turns once in {math.tau:.3g} * {self.base ** (1 / digits):.3g}^c positions: from "
            f"{float(self.wavelengths[0]):.4g} to {float(self.wavelengths[-1]):.4g}.",
            f"Between neighbours the bits move by {self.bit_steps[1]:.3g} to {self.bit_steps[0]:.3g}, the square root of how "
            f"many a carry flips; the code moves by {self.code_steps[0]:.3g} at every step.",
        ]


def counter(length: int = 256, digits: int = 8, *, base: float = 10000.0) -> Counter:
    """The analogy of sinusoidal codes with a binary counter.

    digits: bits, and pairs of the code. base: of the code's frequencies.

    Raises:
        InputError: a length below 2, digits outside 1 .. 62, a base not above 0.
    """
    check_integers(2, length=length)
    check_sizes(digits=digits)
    if digits > 62:
        raise InputError("must be at most 62", digits=digits)
    at = torch.arange(length)
    bits = binary_digits(at, digits).double()
    periods = 2.0 ** torch.arange(1, digits + 1, dtype=torch.float64)
    theta = frequency_curve(2 * digits, base=base)
    angles = at[:, None] * theta
    code = torch.cat((angles.sin(), angles.cos()), -1)
    return Counter(
        length=length,
        base=base,
        bits=bits,
        waves=-((at[:, None] + 0.5) * math.tau / periods).sin(),
        codes=angles.sin(),
        wavelengths=math.tau / theta,
        bit_steps=_steps(bits),
        code_steps=_steps(code),
    )


def _steps(rows: Tensor) -> tuple[float, float]:
    steps = rows.diff(dim=0).norm(dim=-1)
    return float(steps.max()), float(steps.min())


@dataclass(frozen=True, eq=False)
class Digits(Finding):
    """RoPE's pairs as digits, and what a schedule does to each when an input is factor times the context length.

    Position n has the digits floor(n / beta^c) mod beta with beta = base^(2/head_dim), the lowest first; pair c turns by
    n / beta^c radians. values: (positions, pairs), the digits. All others are (pairs,) float64: inv_freq of the schedule;
    trained, the angles that a pair reached in training, from 0 up to length / beta^c and at most a full rotation (radians);
    reached, those of the longer text; unseen, how much of that lies beyond; squeeze, how many times nearer
    neighbours are than in training, infinite where the schedule stops a pair.
    """

    head_dim: int
    base: float
    beta: float
    schedule: str
    factor: float
    length: int
    positions: Tensor
    values: Tensor
    inv_freq: Tensor
    trained: Tensor
    reached: Tensor
    unseen: Tensor
    squeeze: Tensor

    @property
    def beyond(self) -> list[int]:
        """The pairs that reach angles not reached in training."""
        return [pair for pair, angle in enumerate(self.unseen.tolist()) if angle > 0]

    def sentences(self) -> list[str]:
        return [self._about_digits(), self._about_training(), self._about_reach(), self._about_squeeze()]

    def _about_digits(self) -> str:
        return (
            f"RoPE writes a position with {self.head_dim // 2} digits of base {self.beta:.4g}: pair c turns one radian in "
            f"{self.beta:.4g}^c positions, and wraps around after a turn as a digit does after its base."
        )

    def _about_training(self) -> str:
        full, pairs = int((self.trained >= math.tau).sum()), len(self.trained)
        if full == pairs:
            return f"In {self.length} trained positions every pair makes a full rotation: all angles are reached."
        return (
            f"In {self.length} trained positions {full} of {pairs} pairs make a full rotation; the slowest gets "
            f"{float(self.trained[-1]) / math.tau:.3g} of one."
        )

    def _about_reach(self) -> str:
        start = f"{self.schedule} over {self.factor * self.length:.0f} positions"
        beyond = self.beyond
        if not beyond:
            return f"{start}: no pair reaches an angle that it did not reach in training."
        worst = int(self.unseen.argmax())
        return (
            f"{start}: {len(beyond)} of {len(self.unseen)} pairs, from {beyond[0]} to {beyond[-1]}, reach angles not reached in "
            f"training, furthest pair {worst}, trained up to {float(self.trained[worst]) / math.tau:.3g} turns and now at "
            f"{float(self.reached[worst]) / math.tau:.3g}."
        )

    def _about_squeeze(self) -> str:
        first, last = float(self.squeeze[0]), float(self.squeeze[-1])
        if bool((self.squeeze - first).abs().max() < 1e-9):
            if first > 1 and first != math.inf:
                return f"All pairs are compressed {first:.3g} times, the fastest included."
            return f"Neighbours are {_nearer(first)} in every pair."
        unchanged = int(((self.squeeze - 1).abs() < 1e-12).sum())
        return (
            f"Neighbours are {_nearer(first)} in the fastest pair, {_nearer(last)} in the slowest, and as far apart as in "
            f"training in {unchanged} of {len(self.squeeze)}."
        )


def digits(
    positions: Tensor | Sequence[int] | int,
    head_dim: int = 128,
    base: float = 10000.0,
    schedule: Schedule = "default",
    *,
    factor: float = 4.0,
    length: int = 4096,
) -> Digits:
    """The digits of positions as RoPE has them, and what a schedule does to each digit.

    positions: whose digits are wanted, at least 0. schedule: "default" (extrapolation), "linear" (interpolation), "ntk",
    "ntk_old", "ntk_fixed", "ntk_mixed" (conversions of the base), "yarn", or any other, as text or data. factor, length:
    of the longer text, and the trained positions; they go to the schedule where it needs them and does not say them.

    Raises:
        InputError: negative positions, a base not above 1, a factor or length below 1, what the schedule refuses.

    Source: Su, kexue.fm/archives/9675 and 9706.
    """
    at = torch.as_tensor(positions, device="cpu").flatten()
    if not len(at) or bool((at < 0).any()) or not bool(at.double().isfinite().all()):
        raise InputError("digits are those of numbers from 0 on", positions=positions)
    plain = frequency_curve(head_dim, base=base)
    if base <= 1:
        raise InputError("digits need a base above 1", base=base)
    longest = math.ceil(check_factor(factor) * check_length(length, "length"))
    shape = {"factor": float(factor), "original_max_positions": length, "length": longest}
    given = schedules.complete(schedules.parse(schedule) if isinstance(schedule, str) else schedule, **shape)
    inv_freq = schedules.create(given, head_dim, base=base).inv_freq
    beta = base ** (2 / head_dim)
    if math.isclose(beta, round(beta), rel_tol=1e-12):
        beta = float(round(beta))  # a power may miss an integer by rounding, and floor would then miss the digit
    units = beta ** torch.arange(len(plain), dtype=torch.float64, device="cpu")
    trained = (length * plain).clamp(max=math.tau)
    reached = (factor * length * inv_freq).clamp(max=math.tau)
    unseen = (reached - trained).clamp(min=0)
    return Digits(
        head_dim=head_dim,
        base=base,
        beta=beta,
        schedule=_named(schedule),
        factor=float(factor),
        length=length,
        positions=at,
        values=(at[:, None] / units).floor().remainder(beta),
        inv_freq=inv_freq,
        trained=trained,
        reached=reached,
        unseen=unseen.where(unseen > 1e-9 * trained, 0.0),
        squeeze=plain / inv_freq,
    )


def _nearer(squeeze: float) -> str:
    if math.isclose(squeeze, 1, rel_tol=1e-12):
        return "as far apart as in training"
    if squeeze == math.inf:
        return "at the same angle"
    return f"{squeeze:.3g} times nearer" if squeeze > 1 else f"{1 / squeeze:.3g} times further apart"


def _named(schedule: Schedule) -> str:
    name = schedule if isinstance(schedule, str) else schedules.as_text(schedule)
    return {"default": "extrapolation (default)", "linear": "interpolation (linear)"}.get(name, name)


@plot(
    "Left the bits of each position, then sines of their periods, right those of its code: each column flips less often "
    "than the one before, first abruptly, then smoothly.",
    size=(6.4, 4.8),
)
def plot_counter(ax: Axes, finding: Counter) -> None:
    """Positions downwards: their bits, sines of the bits' periods, and sinusoidal codes, fast columns first."""
    gap = torch.full((finding.length, 1), torch.nan, dtype=torch.float64)
    parts = [2 * finding.bits - 1, finding.waves, finding.codes]
    together = torch.cat([columns for part in parts for columns in (part, gap)][:-1], 1)
    ax.imshow(together.numpy(), aspect="auto", cmap=AROUND, vmin=-1, vmax=1, interpolation="nearest")
    ax.grid(False)
    digits = finding.bits.shape[1]
    names = ["bits", "their sines", f"codes, base {finding.base:g}"]
    ax.set_xticks([i * (digits + 1) + (digits - 1) / 2 for i in range(3)], names)
    ax.set(xlabel="digits and pairs, fast ones first", ylabel="position")


@plot("Where a line rises out of the grey, a pair turns to angles that were not reached in training; at one all were.")
def plot_digits(ax: Axes, *findings: Digits) -> None:
    """The turn that each pair made in training, and makes in the longer text under each schedule, up to a full one."""
    first = findings[0]
    pairs = torch.arange(len(first.trained))
    ax.fill_between(pairs, first.trained / math.tau, color=LINE, lw=0, label=f"reached in {first.length} positions")
    for other, color in zip(findings, PALETTE * len(findings), strict=False):
        ax.plot(pairs, other.reached / math.tau, label=other.schedule, color=color)
    part = int((first.trained < math.tau).int().argmax())  # the first pair that did not finish a turn
    ax.set(xlabel="pair", ylabel=f"turn reached in {first.factor * first.length:.0f} positions")
    ax.set(xlim=(max(0, part - len(pairs) // 8), len(pairs) - 1), ylim=(0, 1.05))
    legend_above(ax, ncols=2)


@plot("At one neighbours are as far apart as in training; the higher a line, the more that schedule squeezes the pair.")
def plot_squeeze(ax: Axes, *findings: Digits) -> None:
    """How many times nearer neighbours come in each pair, a line for every schedule."""
    for other, color in zip(findings, PALETTE * len(findings), strict=False):
        ax.step(torch.arange(len(other.squeeze)), other.squeeze, where="mid", label=other.schedule, color=color)
    ax.set(xlabel="pair", ylabel="times nearer than in training", ylim=(0, None))
    ax.legend()
