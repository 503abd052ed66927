# SPDX-License-Identifier: Apache-2.0
"""Losses at several budgets from one training, and the order that they predict at `BEYOND` times the largest.

The trunk's learning rate falls as 1/sqrt(step). At 1/4, 1/2 and 1 of the steps a copy of the training, a branch, cools down to 0, as
a training of that budget by itself would. docs/compare.md has what was measured of both.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from posenc.errors import InputError, counted, listed
from posenc.lab.records import BUDGET, Aggregate, level
from posenc.lab.statistics import Estimate, estimate

BEYOND = 4
"""Times the budget at which differences are predicted, with an interval."""
WARM_UP, FLAT = 12, 30
"""Steps: the rate rises to its peak, and from FLAT on it falls."""
UNDECIDED = "not decided at this budget"
FURTHER = (
    "In a test from 200 steps the rank correlation of such lines was 0.78 and of the last loss 0.76 at 4 times the steps, 86 % and 87 % of the "
    "pairs farther apart than 0.02 in order (benchmarks/rule.md); in one from 100 steps, of eight new encodings, 0.98 and 0.79 at 16 times (benchmarks/early.md)."
)
SPREAD = 0.47
"""Nats: half the 95 % interval of a predicted difference for the error of the line itself, as it was found from 200 steps to 800
(benchmarks/rule.md). Larger budgets are not tested, so they have it too."""
COOLDOWN = 0.35
"""Share of a budget over which the rate falls linearly to 0."""


def budgets(steps: int) -> tuple[int, int, int]:
    """The budgets that a training of so many steps measures."""
    return steps // 4, steps // 2, steps


def cooldown_start(budget: int) -> int:
    """The step, counted from 0, from which the rate falls to 0 at the budget."""
    return budget - max(1, round(COOLDOWN * budget))


def rate(step: int, budget: int) -> float:
    """The learning rate of a step, counted from 0, over its peak, in a training that ends at the budget."""
    start = cooldown_start(budget)
    return _trunk(step) if step < start else _trunk(start) * (budget - step) / (budget - start)


def _trunk(step: int) -> float:
    return min(1.0, (step + 1) / WARM_UP) * math.sqrt(min(1.0, FLAT / (step + 1)))


def trained_steps(steps: int) -> int:
    """All steps of such a training, those of the branches included."""
    return cooldown_start(steps) + sum(budget - cooldown_start(budget) for budget in budgets(steps))


def check(steps: int) -> None:
    """Raises:
    InputError: the first cooldown would begin before the warm-up ends.
    """
    first = budgets(steps)[0]
    if cooldown_start(first) < WARM_UP:
        least = next(n for n in range(4, 10**4) if cooldown_start(n // 4) >= WARM_UP)
        why = f"a quarter of it, {first}, cools down from step {cooldown_start(first)} on, before the warm-up of {WARM_UP} steps ends"
        raise InputError(why, f"give at least {least}, or curve=False", steps=steps)


# -------------------------------------------------------------------- results


def numbers(trained: Sequence[Aggregate], steps: int, guessing: Collection[str] = ()) -> dict[str, Any]:
    """The part of results.json: by encoding the loss at each budget, and in the order predicted at BEYOND times the last one how far
    each is behind the first, by the line through the last two losses over the logarithm of the steps. guessing: those that have
    learned nothing, of which nothing is predicted; they come last."""
    _, half, full = budgets(steps)
    far = math.log(BEYOND) / math.log(full / half)

    def predicted(variant: Aggregate, seeds: Sequence[int]) -> Any:
        last, before = (variant.values(budget, seeds, BUDGET) for budget in (full, half))
        return last + far * (last - before)

    def place(variant: Aggregate) -> tuple[bool, float]:
        return variant.name in guessing, predicted(variant, sorted(variant.scores)).mean().item()

    order, rows = sorted(trained, key=place), []
    for variant in order:
        seeds = sorted(set(variant.scores) & set(order[0].scores))
        behind = None
        if variant is not order[0] and variant.name not in guessing:
            if seeds:
                between = estimate(predicted(variant, seeds) - predicted(order[0], seeds))
            else:
                means = [predicted(each, sorted(each.scores)).mean(0, keepdim=True) for each in (variant, order[0])]
                between = estimate(means[0] - means[1])
            half_width = math.hypot(SPREAD, (between.high - between.low) / 2)
            e = Estimate(between.mean, between.error, between.mean - half_width, between.mean + half_width)
            behind = {**asdict(e), "decided": e.low > 0}
        losses = [{"steps": budget, **asdict(level(variant, budget, BUDGET))} for budget in budgets(steps)]
        learned = variant.name not in guessing
        rows.append({"name": variant.name, "losses": losses, "behind": behind, "learned": learned})
    return {"budgets": list(budgets(steps)), "at": BEYOND * steps, "rows": rows}


def verdicts(curve: Mapping[str, Any]) -> list[str]:
    """Of each row: "first" where every other is behind, "behind", "not decided at this budget", or "at chance"."""
    decided = [row["behind"]["decided"] for row in curve["rows"][1:] if row["learned"]]
    of = {None: "first" if decided and all(decided) else UNDECIDED, True: "behind", False: UNDECIDED}
    behind = [row["behind"] and row["behind"]["decided"] for row in curve["rows"]]
    return [of[each] if row["learned"] else "at chance" for row, each in zip(curve["rows"], behind, strict=True)]


def sentence(curve: Mapping[str, Any]) -> str:
    """The order at BEYOND times the budget, and what is not decided; no first is named where none is known."""
    by: dict[str, list[str]] = {}
    for row, verdict in zip(curve["rows"], verdicts(curve), strict=True):
        by.setdefault(verdict, []).append(row["name"])
    at = f"{curve['at']} steps, {BEYOND} times this budget"
    if sum(row["learned"] for row in curve["rows"]) < 2:
        return f"No order is predicted at {at}: fewer than two encodings have learned more than guessing."
    behind = f"; {counted(len(by['behind']), 'encoding')} behind: {listed(by['behind'])}." if "behind" in by else "."
    if "first" in by:
        return f"At {at}, {listed(by['first'])} is predicted to be first{behind} {FURTHER}"
    return f"Which of {listed(by[UNDECIDED])} is first at {at}, is {UNDECIDED}{behind} {FURTHER}"
