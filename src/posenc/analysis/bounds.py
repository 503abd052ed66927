# SPDX-License-Identifier: Apache-2.0
"""What RoPE's frequencies bound: the length that a base serves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.analysis.finding import INK, PALETTE, SOFT, AnalysisQuestion, Axes, Finding, plot
from posenc.errors import InputError, check_sizes
from posenc.frequencies.schedules import first_negative, rope_frequencies
from posenc.functional import check_even

FACTOR = 4
"""How much longer than in training the sequences of a report are."""
CI_ZERO = 0.6165054856207162
"""Where the cosine integral Ci is first zero: infinitely many pairs are first negative at about this times the base."""
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

    The bases that do so are no interval: some fail above the first that does not. So bases are tried upwards, each a factor
    1 + step above the last, and windows narrower than that are passed over (128k at head_dim 128: 4.87e6 with
    step 1e-4, 7.79e6 with 1e-3). With infinitely many pairs it is length / 0.6165. A second for 8k,
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

    limits: length / 0.6165, the smallest base with infinitely many pairs. longest: the longest length of each model.
    """

    head_dim: int
    lengths: tuple[int, ...]
    bases: tuple[float, ...]
    limits: tuple[float, ...]
    models: tuple[Model, ...]
    longest: tuple[int | None, ...]

    def sentences(self) -> list[str]:
        sentences = [
            f"{self.head_dim} channels under plain RoPE need a base of {base:.3g} for {length} positions, and some larger ones "
            f"may fail again; infinitely many would need {limit:.3g}."
            for length, base, limit in zip(self.lengths, self.bases, self.limits, strict=True)
        ]
        for model, longest in zip(self.models, self.longest, strict=True):
            start = f"{model.name} (base {model.base:g}, {model.rotary_dim} channels, {model.length} positions)"
            end = "not negative within 2^20 positions."
            if longest is not None:
                verdict = "beyond" if longest >= model.length else "short of"
                end = f"first negative at {longest}, {verdict} the length it was trained on."
            sentences.append(f"{start}: the sum of its cosines is {end}")
        return sentences


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
        limits=tuple(length / CI_ZERO for length in lengths),
        models=tuple(models),
        longest=tuple(model.longest for model in models),
    )


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
