# SPDX-License-Identifier: Apache-2.0
"""Records of finished runs, and the same variant over all seeds, with intervals."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from posenc.lab.statistics import Estimate, estimate, wilson

LOSS = "loss"
"""The measure that every task has: nats per target."""
CONTEXT = "context"
"""The same by how many tokens a target sees, in place of conditions."""
BUDGET = "by budget"
"""The same at the condition of training, by the steps of a branch, of trained variants, see `posenc.lab.budgets`. Not "budget", by
which it once was of other passages than the rest."""
MOST = 1e15
"""What no number of a record is above: sums of squares stay finite."""


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
    """One finished run.

    Raises:
        ValueError: no record that a training could have; msgspec makes its own error of it.
    """

    variants: list[VariantScores]
    losses: list[float]
    """training loss of each step"""
    parameters: int
    position_parameters: int
    training_seconds: float
    tokens_per_second: float
    memory_bytes: int
    """what one training batch stores for its backward pass"""

    def __post_init__(self) -> None:
        scores = [of for variant in self.variants for of in (variant.paired, *variant.extra.values())]
        values = [value for of in scores for each in of.values() for value in each]
        counts = [self.parameters, self.position_parameters, self.memory_bytes]
        rates = [self.training_seconds, self.tokens_per_second, *(each.tokens_per_second for each in self.variants)]
        if not all(0 <= value <= MOST for value in (*counts, *rates)) or not all(abs(v) <= MOST for v in values):
            raise ValueError(f"a number of it is not between 0 and {MOST:.0e}")
        if not all(abs(loss) <= MOST for loss in self.losses):
            raise ValueError(f"a loss of it is beyond {MOST:.0e}")

    def check(self, measured: Mapping[str, Collection[int]], examples: int, steps: int) -> None:
        """measured: what it has at least, by measure the conditions.

        Raises:
            ValueError: it is of other measures, conditions, examples or steps.
        """
        if len(self.losses) != steps:
            raise ValueError(f"has {len(self.losses)} training losses for {steps} steps")
        for variant in self.variants:
            there = {LOSS: variant.paired, **variant.extra}
            for measure, conditions in measured.items():
                expected = set(map(str, conditions if measure != BUDGET or variant.trained else ()))
                if there.get(measure, {}).keys() != expected:
                    raise ValueError(f"has not the {measure} of {variant.name} under every condition, and no other")
            if any(len(values) != examples for of in there.values() for values in of.values()):
                raise ValueError(f"has other numbers of examples than {examples}")


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
