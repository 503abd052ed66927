# SPDX-License-Identifier: Apache-2.0
"""What RoPE's frequencies bound: the length that a base serves."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.analysis.finding import Finding
from posenc.errors import InputError, check_sizes
from posenc.frequencies.schedules import first_negative, rope_frequencies
from posenc.functional import check_even

FACTOR = 4
"""How much longer than in training the sequences of a report are."""
LARGEST_BASE = 1e15
WORST = 8
"""Distances at which the sum is negative that are tried on the next base."""


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
    step 1e-4, 7.79e6 with 1e-3). With infinitely many pairs it is length / 0.6165. A second for 8k, ten for 1M.

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
    """A base beside the smallest that its training length needs, and longer sequences.

    lengths, bases: the smallest base of each length. longest: the longest length that the frequencies serve, None: 2^20 and more.
    """

    head_dim: int
    base: float
    trained: int
    lengths: tuple[int, ...]
    bases: tuple[float, ...]
    longest: int | None

    def sentences(self) -> list[str]:
        end = "not negative within 2^20 positions."
        if self.longest is not None:
            verdict = "beyond" if self.longest >= self.trained else "short of"
            end = f"first negative at {self.longest}, {verdict} the length of training, {self.trained}."
        return [
            f"Under its base, {self.base:g}, the sum of its cosines is {end}",
            *(
                f"{self.head_dim} channels under plain RoPE need a base of {base:.3g} for {length} positions, and some "
                "larger ones may fail again."
                for length, base in zip(self.lengths, self.bases, strict=True)
            ),
        ]


def base_bound(
    base: float, head_dim: int, trained: int, *, step: float = 1e-3, inv_freq: Tensor | None = None
) -> BaseBound:
    """`longest_length` of a base, and `smallest_base` of the length that it was trained on and of 4 times as much.

    inv_freq: (head_dim/2,), what a schedule makes of the base, whose longest length is then given; None: plain RoPE's.

    Raises:
        InputError: as both.
    """
    check_sizes(trained=trained)
    lengths = trained, FACTOR * trained
    return BaseBound(
        head_dim=head_dim,
        base=base,
        trained=trained,
        lengths=lengths,
        bases=tuple(smallest_base(length, head_dim, step=step) for length in lengths),
        longest=longest_length(base, head_dim) if inv_freq is None else first_negative(inv_freq),
    )
