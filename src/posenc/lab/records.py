# SPDX-License-Identifier: Apache-2.0
"""Records of finished runs, and the same variant over all seeds, with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from posenc.lab.statistics import Estimate, estimate, wilson

LOSS = "loss"
"""The measure that every task has: nats per target."""
CONTEXT = "context"
"""The same by how many tokens a target sees, in place of conditions."""


@dataclass(frozen=True)
class VariantScores:
    """What one variant of a run measured, as plain numbers."""

    name: str
    trained: bool
    paired: dict[str, list[float]]
    """condition -> loss of each example, in nats"""
    tokens_per_second: float
    """tested tokens per second, all conditions together"""
    extra: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """what else is measured -> condition -> value of each example"""


@dataclass(frozen=True)
class RunRecord:
    """One finished run."""

    run: dict[str, Any]
    variants: list[VariantScores]
    losses: list[float]
    """training loss of each step"""
    parameters: int
    position_parameters: int
    training_seconds: float
    tokens_per_second: float
    memory_bytes: int
    """what one training batch stores for its backward pass"""


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The same variant over all seeds."""

    name: str
    encoding: str
    trained: bool
    cells: dict[int, RunRecord]
    scores: dict[int, VariantScores]

    def values(self, condition: int, seeds: Sequence[int], of: str = LOSS) -> Tensor:
        """What was measured under a condition, by (seed, example)."""
        scores = [self.scores[s].paired if of == LOSS else self.scores[s].extra[of] for s in seeds]
        return torch.tensor([measured[str(condition)] for measured in scores], dtype=torch.float64)


def difference(a: Aggregate, b: Aggregate, condition: int, of: str = LOSS) -> Estimate:
    """Of a minus of b on the same examples, and on the same seeds where both have some in common."""
    seeds = sorted(set(a.scores) & set(b.scores))
    if seeds:
        return estimate(a.values(condition, seeds, of) - b.values(condition, seeds, of))
    means = (variant.values(condition, sorted(variant.scores), of).mean(0, keepdim=True) for variant in (a, b))
    return estimate(next(means) - next(means))


def level(variant: Aggregate, condition: int, of: str = LOSS) -> Estimate:
    """What a variant scores under a condition."""
    return estimate(variant.values(condition, sorted(variant.scores), of))


def share(e: Estimate, examples: int) -> Estimate:
    """A share, whose interval ends at 0 and 1; where all examples score the same, it is that of so many trials."""
    low, high = wilson(e.mean * examples, examples) if e.error == 0 else (e.low, e.high)
    return replace(e, low=max(low, 0.0), high=min(high, 1.0))


def change(variant: Aggregate, condition: int, trained_at: int, of: str = LOSS) -> Estimate:
    """How much that rises from the condition of training to another, on the same examples."""
    seeds = sorted(variant.scores)
    return estimate(variant.values(condition, seeds, of) - variant.values(trained_at, seeds, of))
