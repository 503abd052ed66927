# SPDX-License-Identifier: Apache-2.0
"""From measured cells to the numbers of results.json with their intervals, and the lines above its tables.

The seed and the index of a text are its unit: at another depth the same unit gives nearly the same text, so that outcomes are
averaged over each unit before an interval is computed. Units are independent. All methods read the same
documents: the effect of a method is the mean of paired differences, and "documents" has each one's numbers, so that any two can be
compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean
from types import MappingProxyType
from typing import Any

import torch

from posenc.errors import summary
from posenc.lab.evals.config import NONE, TRUNCATION, Cell, EvaluationSettings, texts_a_cell
from posenc.lab.evals.reader import BLOCKS, TextOutcome
from posenc.lab.statistics import Z_975, Estimate, estimate, wilson
from posenc.tasks import Task

__all__ = ["Measured", "mean", "numbers"]

BETTER, WORSE, UNDECIDED, BASE = "better", "worse", "undecided", "baseline"
"""Verdicts on a method. A difference that is not significant makes nothing equal."""
FEWEST = 16
"""Texts: a difference on fewer is undecided."""


@dataclass(frozen=True)
class Measured:
    """What one cell measured. seconds, fed: its share of the time and the tokens of the pass over all depths, generated
    tokens included. peak_bytes: the additional memory of that pass; None: cannot be measured here. processor: its share of
    the seconds of processor time, of all threads."""

    outcomes: tuple[TextOutcome, ...]
    seconds: float
    fed: float
    peak_bytes: int | None
    processor: float


Outcomes = Mapping[tuple[int, float | None, int, int], TextOutcome]
"""By length, depth, seed and index of the text."""
Units = Sequence[Sequence[float]]
"""For each unit one number at every length and depth at which it was read."""
Results = Mapping[str, Any]


def numbers(
    settings: EvaluationSettings,
    tasks: Mapping[str, Task],
    done: Mapping[Cell, Measured],
    trained_length: int,
    fewer: Mapping[tuple[str, int], int] = MappingProxyType({}),
) -> dict[str, Any]:
    """The measured part of results.json: tasks, ranking and cost. fewer: by task and
    length, how many of the documents have nothing in common, where these are not all."""
    longer = any(length > trained_length for length in settings.lengths)
    methods = (*settings.methods, *((TRUNCATION,) if longer else ()))
    same = {TRUNCATION: trained_length}
    by_method = {(text, m): _outcomes(done, text, m, same.get(m, 0)) for text in tasks for m in methods}
    return {
        "tasks": [
            {
                "task": text,
                "name": task.name,
                "summary": summary(type(task)),
                "source": _source(task),
                "takes_depth": task.takes_depth,
                "generates": task.new_tokens > 0,
                "methods": [
                    {"method": method}
                    | _method(task, by_method[text, method], None if method == NONE else by_method[text, NONE], fewer)
                    | cost([m for c, m in done.items() if (c.task, c.method) == (text, method)])
                    for method in methods
                ],
            }
            for text, task in tasks.items()
        ],
        "overlapping": [{"task": text, "length": length, "apart": count} for (text, length), count in fewer.items()],
        "ranking": _ranking(tasks, methods, by_method, fewer),
        "cost": [{"method": method, **cost([m for c, m in done.items() if c.method == method])} for method in methods],
    }


def _outcomes(done: Mapping[Cell, Measured], task: str, method: str, same: int = 0) -> Outcomes:
    """The outcomes of a task under a method. same: prompts of up to so many tokens have the outcomes of the unmodified
    model."""
    return {
        (cell.length, cell.depth, cell.seed, index): outcome
        for cell, measured in done.items()
        if cell.task == task and (cell.method == method or (cell.method == NONE and cell.length <= same))
        for index, outcome in enumerate(measured.outcomes)
    }


def _source(task: Task) -> str:
    """The second paragraph of the docstring of a task, or of its base class, which names the source."""
    for cls in (cls for cls in type(task).__mro__ if issubclass(cls, Task)):
        paragraphs = (cls.__doc__ or "").split("\n\n")
        if len(paragraphs) > 1:
            return " ".join(paragraphs[1].split())
    return ""


def cost(cells: Sequence[Measured]) -> dict[str, Any]:
    """The time and the memory of some cells."""
    seconds, fed = sum(cell.seconds for cell in cells), sum(cell.fed for cell in cells)
    peaks = [cell.peak_bytes for cell in cells if cell.peak_bytes is not None]
    return {
        "seconds": round(seconds, 2),
        "tokens_per_second": round(fed / seconds, 1) if seconds else None,
        "processor_ms_per_token": round(1000 * sum(cell.processor for cell in cells) / fed, 4) if fed else None,
        "peak_bytes": max(peaks, default=None),
    }


# -------------------------------------------------------------------------------- one task under one method


def _method(
    task: Task, outcomes: Outcomes, none: Outcomes | None, fewer: Mapping[tuple[str, int], int]
) -> dict[str, Any]:
    cells, by_length, by_position = [], [], []
    for length in dict.fromkeys(key[0] for key in outcomes):
        here = {key: outcome for key, outcome in outcomes.items() if key[0] == length}
        for depth in sorted({key[1] for key in here}, key=lambda depth: depth or 0.0):
            at = {key: outcome for key, outcome in here.items() if key[1] == depth}
            needles = [outcome.needle for outcome in at.values() if outcome.needle is not None]
            cells.append(
                {"length": length, "depth": depth, "position": fmean(needles) if needles else None, **_pooled(at)}
            )
        against = None if none is None else _differences(here, none, fewer.get((task.text, length)))
        documents = {name: [fmean(unit) for unit in _units(here, name)] for name in ("loss", "exact")}
        by_length.append({"length": length, **_pooled(here), "against_none": against, "documents": documents})
        points = _by_position(here, length)
        by_position += [{"length": length, "points": points}] if points else []
    return {"cells": cells, "by_length": by_length, "by_position": by_position}


def _pooled(outcomes: Outcomes) -> dict[str, Any]:
    score = _units(outcomes, "score") if _scored(outcomes) else None
    binary = score is not None and all(value in (0, 1) for unit in score for value in unit)
    return {
        "n": len(outcomes),
        "tokens": fmean(outcome.tokens for outcome in outcomes.values()),
        "exact": share(_units(outcomes, "exact")),
        "accuracy": asdict(mean(_units(outcomes, "accuracy"))),
        "score": None if score is None else share(score) if binary else asdict(mean(score)),
        "loss": asdict(mean(_units(outcomes, "loss"))),
    }


def _differences(outcomes: Outcomes, none: Outcomes, apart: int | None) -> dict[str, Any] | None:
    """The paired differences to the unmodified model on the prompts that both were evaluated on; None: there are none. apart: how
    many of them have nothing in common; None: all."""
    common = [key for key in outcomes if key in none]
    if not common:
        return None
    ours, theirs = ({key: each[key] for key in common} for each in (outcomes, none))

    def paired(name: str) -> Units:
        both = zip(_units(ours, name), _units(theirs, name), strict=True)
        return [[a - b for a, b in zip(*unit, strict=True)] for unit in both]

    scored = _scored(ours) and _scored(theirs)
    units = len(_units(ours, "loss"))
    count = {"n": units if apart is None else min(units, apart)}
    return {
        "exact": asdict(change(paired("exact"))) | count,
        "score": asdict(change(paired("score"))) | count if scored else None,
        "loss": asdict(mean(paired("loss"))) | count,
    }


def _by_position(outcomes: Outcomes, length: int) -> list[dict[str, float]]:
    points = []
    for block in range(BLOCKS):
        losses: dict[tuple[int, int], list[float]] = {}
        for (_, _, seed, index), outcome in outcomes.items():
            loss = outcome.blocks[block] if outcome.blocks else None
            if loss is not None:
                losses.setdefault((seed, index), []).append(loss)
        if losses:
            e = mean(list(losses.values()))
            points.append({"position": (block + 0.5) * length / BLOCKS, "loss": e.mean, "low": e.low, "high": e.high})
    return points


def _units(outcomes: Outcomes, name: str) -> Units:
    """A number of each outcome, such as the loss, by seed and index."""
    units: dict[tuple[int, int], list[float]] = {}
    for (_, _, seed, index), outcome in outcomes.items():
        units.setdefault((seed, index), []).append(float(getattr(outcome, name)))
    return list(units.values())


def _scored(outcomes: Outcomes) -> bool:
    return all(outcome.score is not None for outcome in outcomes.values())


# -------------------------------------------------------------------------------- intervals


def mean(units: Units) -> Estimate:
    return estimate(torch.tensor([[fmean(unit) for unit in units]], dtype=torch.float64))


def share(units: Units) -> dict[str, float]:
    """The share of ones among outcomes of 0 or 1, with Wilson's interval. Correlated outcomes of one unit count as fewer
    (the design effect, Kish 1965); if all outcomes agree the correlation is unknown, and a unit counts as one."""
    hits, count = sum(map(sum, units)), sum(map(len, units))
    p, many = hits / count, len(units)
    between = many / max(many - 1, 1) * sum((sum(unit) - p * len(unit)) ** 2 for unit in units) / count**2
    effect = max(1.0, between / (p * (1 - p) / (count - 1))) if 0 < p < 1 else count / many
    low, high = wilson(hits / effect, count / effect)
    return {"mean": p, "low": low, "high": high, "n": count, "hits": int(hits)}


def change(units: Units) -> Estimate:
    """The mean of paired differences of outcomes between 0 and 1, with the interval of Agresti and Min (2005), who add two
    pairs: half a pair for each combination of 0 and 1. A few pairs that all agree then leave some uncertainty."""
    means = [fmean(unit) for unit in units]
    count = len(means) + 2
    middle = sum(means) / count
    variance = (sum(x * x for x in means) + 1) / count - middle**2
    error = sqrt(variance / count)
    low, high = max(middle - Z_975 * error, -1.0), min(middle + Z_975 * error, 1.0)
    return Estimate(fmean(means), error, low, high)


# -------------------------------------------------------------------------------- methods compared


def _measure(task: Task, outcomes: Outcomes) -> str:
    """The number that methods are ranked by."""
    if not task.new_tokens:
        return "loss"
    return "score" if _scored(outcomes) else "exact"


def _ranking(
    tasks: Mapping[str, Task],
    methods: Sequence[str],
    by_method: Mapping[tuple[str, str], Outcomes],
    fewer: Mapping[tuple[str, int], int],
) -> list[dict[str, Any]]:
    """The methods, best first: by the tasks on which they are better than the unmodified model less those on which they
    are worse, then by the mean of their shares, then by their mean loss."""
    rows: list[tuple[tuple[float, float, float], dict[str, Any]]] = []
    for method in methods:
        judged: list[dict[str, Any]] = []
        for text, task in tasks.items():
            outcomes, none = by_method[text, method], by_method[text, NONE]
            if not outcomes:
                continue
            by = _measure(task, outcomes)
            apart = min((fewer[text, key[0]] for key in outcomes if (text, key[0]) in fewer), default=None)
            against = None if method == NONE else (_differences(outcomes, none, apart) or {}).get(by)
            judged.append(
                {"task": text, "measure": by, "value": _pooled(outcomes)[by], "against_none": against,
                 "verdict": BASE if method == NONE else _verdict(against, by)}
            )  # fmt: skip
        better, worse = (sum(row["verdict"] == which for row in judged) for which in (BETTER, WORSE))
        losses, shares = (
            [r["value"]["mean"] for r in judged if (r["measure"] == "loss") == is_loss] for is_loss in (True, False)
        )
        order = worse - better, -fmean(shares or [0]), fmean(losses or [0])
        rows.append((order, {"method": method, "tasks": judged, "better": better, "worse": worse}))
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


def _verdict(against: Mapping[str, float] | None, by: str) -> str:
    """A difference is shown by an interval that excludes 0, on enough documents."""
    if against is None or against["n"] < FEWEST or not (against["low"] > 0 or against["high"] < 0):
        return UNDECIDED
    return BETTER if (against["mean"] > 0) != (by == "loss") else WORSE


# -------------------------------------------------------------------------------- in words


def answer(results: Results) -> list[str]:
    """Each method against the unmodified model, in a line."""
    return [_judged(row) for row in results["ranking"] if row["method"] not in (NONE, TRUNCATION)]


def limits(results: Results) -> list[str]:
    """What the intervals do not cover, and what was not measured."""
    s = results["settings"]
    count = s["samples"] * s["seeds"]
    notes = [
        f"One model and one wording of each task, {texts_a_cell(s['samples'], s['seeds'])}: the 95 % intervals cover the "
        "choice of documents, not other models or prompts."
    ]
    if count < FEWEST:
        notes.append(f"A verdict takes {FEWEST} documents: with {count} every difference is undecided.")
    notes += [
        f"{spelled(row['task'])} at {row['length']} tokens: {row['apart']} of the {count} documents do not overlap, so the "
        "intervals are too narrow."
        for row in results["overlapping"]
    ]
    return notes


def spelled(task: str) -> str:
    """A task's text in words: "facts:items=25:query_aware=true" is "facts (items 25, query aware)"."""
    name, *options = task.replace("_", " ").split(":")
    words = [option.removesuffix("=true").replace("=", " ") for option in options]
    return f"{name} ({', '.join(words)})" if words else name


def difference(estimate: Mapping[str, float], by: str) -> tuple[str, str]:
    """A difference and its interval in words: "+12 points", "+3 to +21"."""
    scale, digits, unit = (1, 3, "nats") if by == "loss" else (100, 0, "points")
    mean, low, high = (f"{scale * estimate[key]:+z.{digits}f}".replace("-", "−") for key in ("mean", "low", "high"))
    return f"{mean} {unit}", f"{low} to {high}"


def _judged(row: Results) -> str:
    """The difference that a method makes on each task, with its verdict."""
    parts = [
        f"{at['verdict']} on {spelled(at['task'])} ({', '.join(difference(at['against_none'], at['measure']))})"
        for at in row["tasks"]
        if at["against_none"] is not None
    ]
    return f"{row['method']} against the unmodified model: {'; '.join(parts) or 'not measured yet'}."
