# SPDX-License-Identifier: Apache-2.0
"""From what the runs measured to every number of the report, with intervals."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from posenc.lab.config import Run, Settings
from posenc.lab.evaluate import BINS_PER_LENGTH
from posenc.lab.statistics import Estimate, estimate

HOLDS = 0.05
"""An arm holds when its loss at the longest length has risen by less than this (nats per token, upper bound)."""
CURVE_POINTS = 50
LOSS = "loss"
"""The measure that every task has: nats per target."""


@dataclass(frozen=True)
class ArmScores:
    """What one arm of a run measured, as plain numbers."""

    name: str
    trained: bool
    paired: dict[str, list[float]]
    """condition -> loss of each example, in nats"""
    by_position: list[list[float]]
    """example -> loss of each bin of positions; empty where the task has none"""
    tokens_per_second: float
    """tested tokens per second, all conditions together"""
    also: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """what else is measured -> condition -> value of each example"""


@dataclass(frozen=True)
class Cell:
    """One finished run."""

    run: dict[str, Any]
    arms: list[ArmScores]
    losses: list[float]
    """training loss of each step"""
    parameters: int
    position_parameters: int
    training_seconds: float
    tokens_per_second: float
    memory_bytes: int
    """what one training batch keeps for its backward pass"""


@dataclass(frozen=True, eq=False)
class Row:
    """One row of the comparison: the same arm over all seeds."""

    name: str
    encoding: str
    trained: bool
    cells: dict[int, Cell]
    scores: dict[int, ArmScores]

    def values(self, condition: int, seeds: Sequence[int], of: str = LOSS) -> Tensor:
        """What was measured under a condition, by (seed, example)."""
        scores = [self.scores[s].paired if of == LOSS else self.scores[s].also[of] for s in seeds]
        return torch.tensor([measured[str(condition)] for measured in scores], dtype=torch.float64)


def collect(cells: Mapping[Run, Cell]) -> list[Row]:
    """The arms of finished runs, in the order of the runs."""
    found: dict[str, Row] = {}
    for run, cell in cells.items():
        for scores in cell.arms:
            arm = found.setdefault(scores.name, Row(scores.name, run.encoding, scores.trained, {}, {}))
            arm.cells[run.seed], arm.scores[run.seed] = cell, scores
    return list(found.values())


def difference(a: Row, b: Row, condition: int, of: str = LOSS) -> Estimate:
    """Of a minus of b on the same examples, and on the same seeds where both have some in common."""
    seeds = sorted(set(a.scores) & set(b.scores))
    if seeds:
        return estimate(a.values(condition, seeds, of) - b.values(condition, seeds, of))
    means = (arm.values(condition, sorted(arm.scores), of).mean(0, keepdim=True) for arm in (a, b))
    return estimate(next(means) - next(means))


def level(arm: Row, condition: int, of: str = LOSS) -> Estimate:
    """What an arm scores under a condition."""
    return estimate(arm.values(condition, sorted(arm.scores), of))


def change(arm: Row, condition: int, trained_at: int = 1, of: str = LOSS) -> Estimate:
    """How much that rises from the condition of training to another, on the same examples."""
    seeds = sorted(arm.scores)
    return estimate(arm.values(condition, seeds, of) - arm.values(trained_at, seeds, of))


def ranked(cells: Mapping[Run, Cell], settings: Settings) -> list[Row]:
    """The arms of finished runs, the lowest loss at the longest length first."""
    last = settings.factors[-1]
    return sorted(collect(cells), key=lambda arm: level(arm, last).mean)


def numbers(arms: Sequence[Row], settings: Settings, bytes_per_token: float = 1.0) -> dict[str, Any]:
    """The measured part of results.json, for ranked arms. bytes_per_token: of the held-out text."""
    best = {f: min(arms, key=lambda arm: level(arm, f).mean) for f in settings.factors}
    return {
        "arms": [_row(arm, best, settings, bytes_per_token) for arm in arms],
        "extensions": _extensions(arms, settings),
    }


def _row(arm: Row, best: Mapping[int, Row], settings: Settings, bytes_per_token: float) -> dict[str, Any]:
    lengths = [
        {
            "factor": f,
            "length": f * settings.length,
            "loss": asdict(level(arm, f)),
            "change": asdict(change(arm, f)),
            "behind_best": asdict(difference(arm, best[f], f)),
            "bits_per_byte": level(arm, f).mean / math.log(2) / bytes_per_token,
        }
        for f in settings.factors
    ]
    return {
        **identity(arm),
        "verdict": verdict(arm, settings),
        "lengths": lengths,
        "by_position": _by_position(arm, sorted(arm.scores), settings),
        **course(arm),
    }


def identity(arm: Row) -> dict[str, Any]:
    """What a row of results.json says of its arm."""
    return {"name": arm.name, "encoding": arm.encoding, "trained": arm.trained, "seeds": sorted(arm.scores)}


def course(arm: Row) -> dict[str, Any]:
    """What it says of training and of costs."""
    seeds = sorted(arm.scores)
    cells = [arm.cells[s] for s in seeds]
    return {
        "training": _training(cells),
        "parameters": cells[0].parameters,
        "position_parameters": cells[0].position_parameters,
        "train_tokens_per_second": statistics.median([c.tokens_per_second for c in cells]),
        "test_tokens_per_second": statistics.median([arm.scores[s].tokens_per_second for s in seeds]),
        "training_seconds": statistics.median([c.training_seconds for c in cells]),
        "memory_bytes": cells[0].memory_bytes,
    }


def verdict(arm: Row, settings: Settings) -> str:
    """What happens past the training length, in a word or three."""
    return told([change(arm, f) for f in settings.factors[1:]], HOLDS)


def told(changes: Sequence[Estimate], holds: float) -> str:
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


def _extensions(arms: Sequence[Row], settings: Settings) -> list[dict[str, Any]]:
    """Each untrained arm against the model it takes its weights from, at every length past the training one."""
    named = {arm.name: arm for arm in arms}
    return [
        {
            "arm": arm.name,
            "against": arm.encoding,
            "factor": f,
            "difference": asdict(difference(arm, named[arm.encoding], f)),
        }
        for arm in arms
        if not arm.trained
        for f in settings.factors[1:]
    ]


def _by_position(arm: Row, seeds: Sequence[int], settings: Settings) -> list[dict[str, float]]:
    losses = torch.tensor([arm.scores[s].by_position for s in seeds], dtype=torch.float64)  # seeds, windows, bins
    width = max(1, settings.length // BINS_PER_LENGTH)
    rows = []
    for index in range(losses.shape[2]):
        e = estimate(losses[:, :, index])
        rows.append({"position": (index + 0.5) * width, "loss": e.mean, "low": e.low, "high": e.high})
    return rows


def _training(cells: Sequence[Cell]) -> list[dict[str, float]]:
    curve = torch.tensor([c.losses for c in cells], dtype=torch.float64).mean(0)
    width = max(1, math.ceil(len(curve) / CURVE_POINTS))
    return [{"step": i + len(part), "loss": part.mean().item()} for i, part in _chunks(curve, width)]


def _chunks(curve: Tensor, width: int) -> list[tuple[int, Tensor]]:
    return [(i, curve[i : i + width]) for i in range(0, len(curve), width)]
