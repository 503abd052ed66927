# SPDX-License-Identifier: Apache-2.0
"""What every comparison makes of its records: ranking, numbers with intervals, verdicts, sentences."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from posenc.errors import InputError, counted, listed
from posenc.lab import budgets
from posenc.lab.experiment import Experiment, Run
from posenc.lab.records import LOSS, Aggregate, RunRecord, change, difference, level, share
from posenc.lab.statistics import Estimate, chances, estimate, found, near_best, wilson

CURVE_POINTS = 50
LEARNED = 0.1
"""Of the way from guessing to the best possible: a task on which nobody came farther says nothing of the encodings."""


def collect(cells: Mapping[Run, RunRecord]) -> list[Aggregate]:
    """The variants of finished runs, in the order of the runs."""
    aggregates: dict[str, Aggregate] = {}
    for run, cell in cells.items():
        for scores in cell.variants:
            variant = aggregates.setdefault(scores.name, Aggregate(scores.name, run.encoding, scores.trained, {}, {}))
            variant.cells[run.seed], variant.scores[run.seed] = cell, scores
    return list(aggregates.values())


class Ranking:
    """The variants of an experiment, the best at the last condition first, and what follows from their numbers. swept: each has its
    learning rate."""

    def __init__(
        self, variants: Sequence[Aggregate], settings: Experiment, corpus: Any, *, swept: bool = False
    ) -> None:
        self.settings = settings
        self.swept = swept
        self.corpus = corpus
        self.criterion = settings.criterion
        self.chance = {condition: settings.chance(corpus, condition) for condition in settings.conditions}
        self.variants: list[Aggregate] = sorted(
            variants, key=lambda variant: self.criterion.worse * self.level(variant, settings.conditions[-1]).mean
        )
        self.trained: list[Aggregate] = [variant for variant in self.variants if variant.trained]

    def level(self, variant: Aggregate, condition: int) -> Estimate:
        """What a variant scores; the interval of a share ends at 0 and 1."""
        e = level(variant, condition, self.criterion.key)
        return share(e, self.settings.examples) if self.criterion.higher_is_better else e

    def change(self, variant: Aggregate, condition: int) -> Estimate:
        """How much that rises from the condition of training on."""
        return change(variant, condition, self.settings.trained_at, self.criterion.key)

    def behind(self, a: Aggregate, b: Aggregate, condition: int) -> Estimate:
        """How much worse a is than b."""
        if self.criterion.higher_is_better:
            a, b = b, a
        return difference(a, b, condition, self.criterion.key)

    def _apart(self, pairs: Sequence[tuple[Aggregate, Aggregate]], condition: int) -> list[bool]:
        """Which pairs of variants differ under a condition: by the test of `posenc.lab.statistics.chances`, with Holm's correction
        for all the pairs. On the seeds that all of them have; if there are none, by the mean over those of each."""
        rows = list(dict.fromkeys(variant for pair in pairs for variant in pair))
        if not rows:
            return []
        seeds, key = sorted(set[int].intersection(*(set(variant.scores) for variant in rows))), self.criterion.key
        if seeds:
            values = torch.stack([variant.values(condition, seeds, key) for variant in rows])
        else:
            values = torch.stack([v.values(condition, sorted(v.scores), key).mean(0) for v in rows])
        at = {variant: index for index, variant in enumerate(rows)}
        of_rows = chances(values, jumps=self.jumps)
        return [bool(each) for each in found(torch.stack([of_rows[at[a], at[b]] for a, b in pairs]))]

    def best(self, condition: int, variants: Sequence[Aggregate]) -> Aggregate:
        """The best of some variants under a condition."""
        return min(variants, key=lambda variant: self.criterion.worse * self.level(variant, condition).mean)

    def at_chance(self, variant: Aggregate) -> bool:
        """Whether a variant is not measurably better than guessing under the condition of training."""
        at = self.settings.trained_at
        return self.chance[at] is not None and estimate(self.normalised(variant, at)).low <= 0

    def nobody_learned(self, condition: int) -> bool:
        """Whether no variant came, in the mean, farther than LEARNED of the way from guessing to the best possible under a
        condition."""
        return all(self.normalised(variant, condition).mean().item() <= LEARNED for variant in self.trained)

    @property
    def seeds(self) -> list[int]:
        """The seeds that all trained variants have."""
        of = [set(variant.scores) for variant in self.trained]
        return sorted(set[int].intersection(*of)) if of else []

    def near_best(self, condition: int) -> dict[str, float]:
        """How probably each trained variant is within the tolerance of the best under a condition, by
        `posenc.lab.statistics.near_best`; empty where the variants have no seed in common."""
        if not self.seeds:
            return {}
        values = [self.criterion.worse * v.values(condition, self.seeds, self.criterion.key) for v in self.trained]
        shares = near_best(torch.stack(values), self.criterion.tolerance).tolist()
        return dict(zip((v.name for v in self.trained), shares, strict=True))

    def normalised(self, variant: Aggregate, condition: int) -> Tensor:
        """What a variant scored, (seeds, examples), on a scale that has guessing at 0 and the best possible at 1."""
        chance, best = self.chance[condition], self.criterion.best
        if chance is None:
            raise InputError("what guessing scores is not known", "define Experiment.chance", task=self.settings.name)
        values = variant.values(condition, sorted(variant.scores), self.criterion.key)
        return (values - chance) / (best - chance)

    def reached(self, variant: Aggregate) -> list[float]:
        """What each training reached at the condition of training, from 0, guessing, to 1, the best possible."""
        return self.normalised(variant, self.settings.trained_at).mean(1).tolist()

    @property
    def jumps(self) -> bool:
        """Whether trainings learn the task or do not: at the condition of training, fewer than a quarter of them end in the
        middle half of the way from guessing to the best possible, and a tenth or more on each side of it."""
        if not self.criterion.higher_is_better or self.chance[self.settings.trained_at] is None:
            return False
        ends = [end for variant in self.trained for end in self.reached(variant)]
        low, high = (sum(end < 0.25 for end in ends), sum(end > 0.75 for end in ends))
        return min(low, high) >= len(ends) / 10 and len(ends) - low - high < len(ends) / 4

    def learned(self, variant: Aggregate) -> list[int]:
        """The seeds whose trainings came more than half the way from guessing to the best possible, at the condition of training."""
        return [seed for seed, end in zip(sorted(variant.scores), self.reached(variant), strict=True) if end > 0.5]

    def verdict(self, variant: Aggregate, conditions: Sequence[int]) -> str:
        """What happens on the way from the condition of training over others: "extrapolates", "breaks at once", ..."""
        if not conditions:
            return "not tested"
        if self.at_chance(variant):
            return "at chance"
        first, last = (self._fall(variant, condition) for condition in (conditions[0], conditions[-1]))
        tolerance = self.criterion.tolerance
        if last.high < tolerance:
            return "extrapolates"
        if last.low <= 0:
            return "unclear"
        at_once = len(conditions) > 1 and first.low > tolerance and first.mean > 0.5 * last.mean
        return "breaks at once" if at_once else "degrades"

    def _fall(self, variant: Aggregate, condition: int) -> Estimate:
        """The change for the worse."""
        e = self.change(variant, condition)
        return Estimate(-e.mean, e.error, -e.high, -e.low) if self.criterion.higher_is_better else e

    # ---------------------------------------------------------------- numbers

    def numbers(self) -> dict[str, Any]:
        """The measured part of results.json."""
        conditions = self.settings.conditions
        best = {condition: self.best(condition, self.variants) for condition in conditions}
        of = {condition: self.near_best(condition) for condition in conditions}
        rows = {"variants": [self._row(variant, best, of) for variant in self.variants]}
        return rows | ({"curve": self.curve} if self.curve else {})

    @cached_property
    def curve(self) -> dict[str, Any] | None:
        """The losses by budget and the order that they predict; None: they are not measured."""
        if not self.settings.budgets or not self.trained:
            return None
        return budgets.numbers(self.trained, self.settings.steps, [v.name for v in self.trained if self.at_chance(v)])

    def _row(
        self, variant: Aggregate, best: Mapping[int, Aggregate], of: Mapping[int, Mapping[str, float]]
    ) -> dict[str, Any]:
        s, m = self.settings, self.criterion
        points = []
        for condition in s.conditions:
            point = {m.condition: condition, m.size: s.size_at(condition), LOSS: asdict(level(variant, condition))}
            if m.key != LOSS:
                point["loss_change"] = asdict(change(variant, condition, s.trained_at))
                point[m.key] = asdict(self.level(variant, condition))
            point["change"] = asdict(self.change(variant, condition))
            point["behind_best"] = asdict(self.behind(variant, best[condition], condition))
            point |= {"near_best": of[condition].get(variant.name), "chance": self.chance[condition]}
            points.append(point | s.point(variant, condition, self.corpus))
        seeds = sorted(variant.scores)
        cells = [variant.cells[seed] for seed in seeds]
        return {
            "name": variant.name,
            "encoding": variant.encoding,
            "trained": variant.trained,
            "seeds": seeds,
            "verdict": self.verdict(variant, s.larger),
            **self._share_learned(variant),
            m.points: points,
            **s.row(variant),
            "training": _training(cells),
            "parameters": cells[0].parameters,
            "position_parameters": cells[0].position_parameters,
            "train_tokens_per_second": statistics.median([c.tokens_per_second for c in cells]),
            "test_tokens_per_second": statistics.median([variant.scores[s].tokens_per_second for s in seeds]),
            "training_seconds": statistics.median([c.training_seconds for c in cells]),
            "memory_bytes": cells[0].memory_bytes,
        }

    def _share_learned(self, variant: Aggregate) -> dict[str, Any]:
        """Where trainings jump: how many learned the task, and what those score at the last condition."""
        if not self.jumps:
            return {}
        seeds, condition = self.learned(variant), self.settings.conditions[-1]
        low, high = wilson(len(seeds), len(variant.scores))
        of = [variant.values(condition, [seed], self.criterion.key).mean().item() for seed in seeds]
        return {
            "learned": {"hits": len(seeds), "n": len(variant.scores), "low": low, "high": high},
            "given_learned": statistics.fmean(of) if of else None,
        }

    # ---------------------------------------------------------------- sentences

    def answer(self) -> list[str]:
        """What a reader wants to know first."""
        s = self.settings
        guessing = [variant.name for variant in self.trained if self.at_chance(variant)]
        learned = [variant for variant in self.variants if not self.at_chance(variant)]  # of others, none is the best
        trained = [variant for variant in learned if variant.trained]
        lines = [self._first(s.trained_at, trained, f"At the training {self.criterion.size} of")] if trained else []
        ends = (s.conditions[0], s.conditions[-1]) if learned else ()
        lines += [self._first(at, learned, "At") for at in ends if at != s.trained_at]
        if self.curve:
            lines.append(budgets.sentence(self.curve))
        if guessing:
            lines.append(
                f"Not measurably better than guessing ({self.criterion.value(self.chance[s.trained_at] or 0)}): "
                f"{counted(len(guessing), 'encoding')}, {listed(guessing)}."
            )
        return lines

    def _first(self, condition: int, variants: Sequence[Aggregate], opening: str) -> str:
        best, m = self.best(condition, variants), self.criterion
        pairs = list(combinations(variants, 2))  # any of them might have been the best
        apart = dict(zip(pairs, self._apart(pairs, condition), strict=True))
        ties = [v.name for v in variants if v is not best and not (apart.get((v, best)) or apart.get((best, v)))]
        value = m.value(self.level(best, condition).mean)
        unit = "" if m.higher_is_better else f" nats per {self.settings.unit}"
        tied = f"; undecided between it and {listed(ties)}" if ties else "; all others are measurably behind"
        spelled, first = self.settings.spelled(condition), listed([best.name])
        return f"{opening} {spelled}, {first} has the best {m.key} ({value}{unit}){tied if len(variants) > 1 else ''}."

    def limits(self) -> list[str]:
        """What the comparison does not show, as far as it can be computed from what was run."""
        s, m, notes = self.settings, self.criterion, []
        learned = [variant for variant in self.trained if not self.at_chance(variant)]
        best = self.best(s.trained_at, learned) if learned else None
        late = [v.name for v in learned if best and self.behind(v, best, s.trained_at).mean > m.undertrained]
        if late:
            notes.append(
                f"After {counted(s.steps, 'step')} these are still more than {m.undertrained} behind the best {m.key}: {listed(late)}. A "
                "model that has learned little has little to lose, so a flat curve is no merit there."
            )
        notes += s.limits(self.trained, self.corpus)
        notes.append(
            f"One small model ({counted(s.num_layers, 'layer')}, width {s.dim}), one data set, {counted(s.steps, 'step')}, "
            f"{'learning rates from a small sweep' if self.swept else 'the same learning rates for all'}. The order may differ at other sizes; the intervals cover the choice of test examples and of seeds, not "
            "that."
        )
        if self.curve and sum(row["learned"] for row in self.curve["rows"]) > 1:
            at = self.curve["at"]
            notes.append(
                f"The order at {at} steps is that of straight lines over the logarithm of the steps, whose differences were right to about "
                f"±{budgets.SPREAD} nats in a test from 200 steps to 800; the losses at {at} steps are not predicted, nor is anything beyond."
            )
        seeds = {variant.name: sorted(variant.scores) for variant in self.trained}
        if any(len(each) == 1 for each in seeds.values()):
            notes.append("Where one seed was run, the interval covers the test examples, not the luck of training.")
        if len({*map(tuple, seeds.values())}) > 1:
            of = [f"{name} ({', '.join(map(str, each))})" for name, each in seeds.items()]
            notes.append(f"The encodings have different seeds, so that their luck differs, too: {listed(of)}.")
        return notes


def _training(cells: Sequence[RunRecord]) -> list[dict[str, float]]:
    """The loss of the training batches, mean over seeds, in at most CURVE_POINTS points."""
    curve = torch.tensor([cell.losses for cell in cells], dtype=torch.float64).mean(0)
    width = max(1, math.ceil(len(curve) / CURVE_POINTS))
    return [{"step": i * width + len(part), "loss": part.mean().item()} for i, part in enumerate(curve.split(width))]
