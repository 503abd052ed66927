# SPDX-License-Identifier: Apache-2.0
"""Records of finished runs, and the numbers with intervals that every comparison makes of them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posenc.lab.experiment import Experiment, Run
from posenc.lab.statistics import Estimate, estimate

CURVE_POINTS = 50
LOSS = "loss"
"""The measure that every task has: nats per target."""


@dataclass(frozen=True)
class VariantScores:
    """What one variant of a run measured, as plain numbers."""

    name: str
    trained: bool
    paired: dict[str, list[float]]
    """condition -> loss of each example, in nats"""
    by_position: list[list[float]]
    """example -> loss of each bin of positions; empty where the task has none"""
    tokens_per_second: float
    """tested tokens per second, all conditions together"""
    extra: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """what else is measured -> condition -> value of each example"""


@dataclass(frozen=True)
class RunRecord:
    """One finished run."""

    run: dict[str, Any]
    arms: list[VariantScores]
    losses: list[float]
    """training loss of each step"""
    parameters: int
    position_parameters: int
    training_seconds: float
    tokens_per_second: float
    memory_bytes: int
    """what one training batch keeps for its backward pass"""


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


def collect(cells: Mapping[Run, RunRecord]) -> list[Aggregate]:
    """The variants of finished runs, in the order of the runs."""
    aggregates: dict[str, Aggregate] = {}
    for run, cell in cells.items():
        for scores in cell.arms:
            variant = aggregates.setdefault(scores.name, Aggregate(scores.name, run.encoding, scores.trained, {}, {}))
            variant.cells[run.seed], variant.scores[run.seed] = cell, scores
    return list(aggregates.values())


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


def change(variant: Aggregate, condition: int, trained_at: int = 1, of: str = LOSS) -> Estimate:
    """How much that rises from the condition of training to another, on the same examples."""
    seeds = sorted(variant.scores)
    return estimate(variant.values(condition, seeds, of) - variant.values(trained_at, seeds, of))


def naming(variant: Aggregate) -> dict[str, Any]:
    """How results.json names a variant."""
    return {
        "name": variant.name,
        "encoding": variant.encoding,
        "trained": variant.trained,
        "seeds": sorted(variant.scores),
    }


def course(variant: Aggregate) -> dict[str, Any]:
    """What it says of training and of costs."""
    seeds = sorted(variant.scores)
    cells = [variant.cells[s] for s in seeds]
    return {
        "training": _training(cells),
        "parameters": cells[0].parameters,
        "position_parameters": cells[0].position_parameters,
        "train_tokens_per_second": statistics.median([c.tokens_per_second for c in cells]),
        "test_tokens_per_second": statistics.median([variant.scores[s].tokens_per_second for s in seeds]),
        "training_seconds": statistics.median([c.training_seconds for c in cells]),
        "memory_bytes": cells[0].memory_bytes,
    }


def verdict_of(changes: Sequence[Estimate], holds: float) -> str:
    """What happens on the way from the condition of training to another, in a word or three. changes: for the worse, along
    that way; less than `holds` is none."""
    if not changes:
        return "not tested"
    soon, end = changes[0], changes[-1]
    if end.high < holds:
        return "holds"
    if end.low <= 0:
        return "unclear"
    if soon.low > holds and soon.mean > 0.5 * end.mean and len(changes) > 1:
        return "breaks at once"
    return "degrades"


def _training(cells: Sequence[RunRecord]) -> list[dict[str, float]]:
    curve = torch.tensor([c.losses for c in cells], dtype=torch.float64).mean(0)
    width = max(1, math.ceil(len(curve) / CURVE_POINTS))
    return [{"step": i + len(part), "loss": part.mean().item()} for i, part in _chunks(curve, width)]


def _chunks(curve: Tensor, width: int) -> list[tuple[int, Tensor]]:
    return [(i, curve[i : i + width]) for i in range(0, len(curve), width)]


def general_limits(variants: Sequence[Aggregate], settings: Experiment, data: str, examples: str) -> list[str]:
    """What no comparison of one small model shows. data: what it was trained on; examples: what it was tested on."""
    notes = [
        f"One small model ({settings.num_layers} layers, width {settings.dim}), {data}, {settings.steps} steps, "
        "the same learning rates given to all. The order may differ at other sizes; the intervals cover the choice of test "
        f"{examples} and of seeds, not that."
    ]
    if len({s for a in variants for s in a.scores}) == 1:
        notes.append(f"Only one seed was run: the intervals cover the test {examples}, not the luck of training.")
    return notes
