# SPDX-License-Identifier: Apache-2.0
"""From what the cells measured to every number of the report with its interval, and to the answer and its limits in words:
every sentence follows from the numbers.

The unit is the material of a text, which its seed and index say: at another depth or length it is the same again, so that
outcomes of one unit are averaged before anything is concluded on how sure a mean is. Units are independent, whatever their
seeds. Methods read the same texts: what a method changes is the mean of paired differences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from types import MappingProxyType
from typing import Any

import torch

from posenc.errors import listed, summary
from posenc.lab.evals.config import CUT_OFF, NONE, Cell, EvaluationSettings
from posenc.lab.evals.reader import BLOCKS, TextOutcome
from posenc.lab.statistics import Z_975, Estimate, estimate, wilson
from posenc.tasks import Task

BETTER, WORSE, SAME, BASE = "better", "worse", "no different", "the arm to beat"


@dataclass(frozen=True)
class Measured:
    """What one cell measured. seconds: of its texts' share in the pass that read all depths; fed: tokens that the model
    was given for them, counted so too. peak_bytes: that this pass took above what was there before; None: cannot be
    measured here."""

    outcomes: tuple[TextOutcome, ...]
    seconds: float
    fed: float
    peak_bytes: int | None


Key = tuple[int, float | None, int, int]
"""Length, depth, seed and index of a text."""
Outcomes = Mapping[Key, TextOutcome]
Units = Sequence[Sequence[float]]
"""For each unit one number at every length and depth at which it was read."""


def numbers(
    settings: EvaluationSettings,
    tasks: Mapping[str, Task],
    done: Mapping[Cell, Measured],
    trained_length: int,
    exact: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """The measured part of results.json: tasks, ranking and cost. exact: as in `posenc.lab.evals.config.planned`."""
    longer = any(length > trained_length for length in settings.lengths)
    methods = (*settings.methods, *((CUT_OFF,) if longer else ()))
    same = {**exact, CUT_OFF: trained_length}
    found = {(text, method): outcomes(text, method, done, same.get(method, 0)) for text in tasks for method in methods}
    return {
        "tasks": [
            {
                "task": text,
                "name": task.name,
                "summary": summary(type(task)),
                "source": source(task),
                "takes_depth": task.takes_depth,
                "generates": task.new_tokens > 0,
                "methods": [
                    {"method": method}
                    | _method(task, found[text, method], None if method == NONE else found[text, NONE])
                    | spent([m for c, m in done.items() if (c.task, c.method) == (text, method)])
                    for method in methods
                ],
            }
            for text, task in tasks.items()
        ],
        "ranking": ranking(tasks, methods, found),
        "cost": [{"method": method, **spent([m for c, m in done.items() if c.method == method])} for method in methods],
    }


def outcomes(task: str, method: str, done: Mapping[Cell, Measured], same: int) -> dict[Key, TextOutcome]:
    """What a method made of a task's texts. On texts of up to `same` tokens it is the model as it is, and was not measured
    apart."""

    def serves(cell: Cell) -> bool:
        borrowed = cell.method == NONE and cell.length <= same
        return cell.task == task and (cell.method == method or borrowed)

    return {
        (cell.length, cell.depth, cell.seed, index): outcome
        for cell, measured in done.items()
        if serves(cell)
        for index, outcome in enumerate(measured.outcomes)
    }


def source(task: Task) -> str:
    """The second paragraph of a task's docstring, or of that of its family, which says where it comes from."""
    for cls in (cls for cls in type(task).__mro__ if issubclass(cls, Task)):
        paragraphs = (cls.__doc__ or "").split("\n\n")
        if len(paragraphs) > 1:
            return " ".join(paragraphs[1].split())
    return ""


def spent(cells: Sequence[Measured]) -> dict[str, Any]:
    """Time and memory of some cells. Tokens a second: those that the model was given, generated ones among them."""
    seconds = sum(cell.seconds for cell in cells)
    peaks = [cell.peak_bytes for cell in cells if cell.peak_bytes is not None]
    return {
        "seconds": round(seconds, 2),
        "tokens_per_second": round(sum(cell.fed for cell in cells) / seconds, 1) if seconds else None,
        "peak_bytes": max(peaks, default=None),
    }


# -------------------------------------------------------------------------------- one task under one method


def _method(task: Task, found: Outcomes, none: Outcomes | None) -> dict[str, Any]:
    cells, by_length, by_position = [], [], []
    for length in dict.fromkeys(key[0] for key in found):
        here = {key: outcome for key, outcome in found.items() if key[0] == length}
        for depth in sorted({key[1] for key in here}, key=lambda depth: depth or 0.0):
            at = {key: outcome for key, outcome in here.items() if key[1] == depth}
            needles = [outcome.needle for outcome in at.values() if outcome.needle is not None]
            position = sum(needles) / len(needles) if needles else None
            cells.append({"length": length, "depth": depth, "position": position, **pooled(at)})
        against = None if none is None else differences(here, none)
        by_length.append({"length": length, **pooled(here), "against_none": against, "middle": middle(task, here)})
        points = _by_position(here, length)
        by_position += [{"length": length, "points": points}] if points else []
    return {"cells": cells, "by_length": by_length, "by_position": by_position}


def pooled(found: Outcomes) -> dict[str, Any]:
    """n, exact, accuracy, score and loss of some outcomes."""
    return {
        "n": len(found),
        "exact": share(units(found, _exact)),
        "accuracy": asdict(mean(units(found, lambda outcome: outcome.accuracy))),
        "score": value(units(found, _score)) if _scored(found) else None,
        "loss": asdict(mean(units(found, _loss))),
    }


def differences(found: Outcomes, none: Outcomes) -> dict[str, Any] | None:
    """What a method changes of exact, score and loss, on the texts that both arms have read; None: there are none."""
    common = [key for key in found if key in none]
    if not common:
        return None
    mine, theirs = ({key: arm[key] for key in common} for arm in (found, none))

    def paired(get: Callable[[TextOutcome], float]) -> list[list[float]]:
        pairs = zip(units(mine, get), units(theirs, get), strict=True)
        return [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]

    scored = _scored(mine) and _scored(theirs)
    return {
        "exact": asdict(change(paired(_exact))),
        "score": asdict(change(paired(_score))) if scored else None,
        "loss": asdict(mean(paired(_loss))),
    }


def middle(task: Task, found: Outcomes) -> dict[str, Any] | None:
    """How much better or worse the depths in between come off than the outermost two, in what the task is measured by,
    on the same material, as far as it was read at every depth; None: there are none in between, or nothing of that kind
    is asked for."""
    depths = sorted({depth for _, depth, _, _ in found if depth is not None})
    by = measure(task, found)
    if len(depths) < 3 or by == "loss":
        return None
    get = _score if by == "score" else _exact
    lists: dict[tuple[int, int], dict[float | None, float]] = {}
    for (_, depth, seed, index), outcome in found.items():
        lists.setdefault((seed, index), {})[depth] = get(outcome)
    gaps = []
    for at in (at for at in lists.values() if len(at) == len(depths)):
        ends = at.pop(depths[0]) + at.pop(depths[-1])
        gaps.append([sum(at.values()) / len(at) - ends / 2])
    return {"measure": by, **asdict(change(gaps))} if gaps else None


def by_unit(found: Outcomes, get: Callable[[TextOutcome], float]) -> dict[tuple[int, int], list[float]]:
    """For each seed and index the numbers at every length and depth."""
    lists: dict[tuple[int, int], list[float]] = {}
    for (_, _, seed, index), outcome in found.items():
        lists.setdefault((seed, index), []).append(get(outcome))
    return lists


def units(found: Outcomes, get: Callable[[TextOutcome], float]) -> list[list[float]]:
    """As `by_unit`, where it does not matter which unit is which."""
    return list(by_unit(found, get).values())


def _exact(outcome: TextOutcome) -> float:
    return float(outcome.exact)


def _loss(outcome: TextOutcome) -> float:
    return outcome.loss


def _score(outcome: TextOutcome) -> float:
    assert outcome.score is not None
    return outcome.score


def _scored(found: Outcomes) -> bool:
    return all(outcome.score is not None for outcome in found.values())


def _by_position(found: Outcomes, length: int) -> list[dict[str, float]]:
    points = []
    for block in range(BLOCKS):
        told = {key: outcome for key, outcome in found.items() if outcome.blocks and outcome.blocks[block] is not None}
        if told:
            e = mean(units(told, lambda outcome, block=block: outcome.blocks[block]))  # type: ignore[misc]
            points.append({"position": (block + 0.5) * length / BLOCKS, "loss": e.mean, "low": e.low, "high": e.high})
    return points


# -------------------------------------------------------------------------------- how sure


def mean(values: Units) -> Estimate:
    """The mean over units, and its interval."""
    means = torch.tensor([sum(each) / len(each) for each in values], dtype=torch.float64)
    return estimate(means[None])


def share(values: Units) -> dict[str, float]:
    """How many of the outcomes, 0 or 1, are 1, with Wilson's interval. Where outcomes of one unit go together, they count
    as so many fewer (the design effect, Kish 1965); where all are alike nothing tells whether they do, and a unit counts
    as one."""
    hits, count = sum(map(sum, values)), sum(map(len, values))
    p, many = hits / count, len(values)
    between = many / max(many - 1, 1) * sum((sum(each) - p * len(each)) ** 2 for each in values) / count**2
    effect = max(1.0, between / (p * (1 - p) / (count - 1))) if 0 < p < 1 else count / many
    low, high = wilson(hits / effect, count / effect)
    return {"mean": p, "low": low, "high": high, "n": count, "hits": int(hits)}


def value(values: Units) -> dict[str, float]:
    """A share where every outcome is 0 or 1, a mean otherwise."""
    return share(values) if all(each in (0, 1) for unit in values for each in unit) else asdict(mean(values))


def change(values: Units) -> Estimate:
    """The mean of paired differences of outcomes between 0 and 1, and its interval: that of Agresti and Min (2005), who
    add two pairs to those seen, half a pair to each combination of 0 and 1. Without them a few pairs that all agree
    would leave no doubt."""
    means = [sum(each) / len(each) for each in values]
    count = len(means) + 2
    middle = sum(means) / count
    variance = (sum(x * x for x in means) + 1) / count - middle**2
    error = sqrt(variance / count)
    low, high = max(middle - Z_975 * error, -1.0), min(middle + Z_975 * error, 1.0)
    return Estimate(sum(means) / len(means), error, low, high)


# -------------------------------------------------------------------------------- methods against each other


def measure(task: Task, found: Outcomes) -> str:
    """The number that methods are held against each other by."""
    if not task.new_tokens:
        return "loss"
    return "score" if _scored(found) else "exact"


def ranking(
    tasks: Mapping[str, Task], methods: Sequence[str], found: Mapping[tuple[str, str], Outcomes]
) -> list[dict[str, Any]]:
    """The methods, best first: by tasks on which they are better than the model as it is less those on which they are
    worse, then by the mean of their shares, then by their mean loss."""
    rows: list[dict[str, Any]] = []
    order = {}
    for method in methods:
        told: list[dict[str, Any]] = []
        shares: list[float] = []
        losses: list[float] = []
        for text, task in tasks.items():
            mine, none = found[text, method], found[text, NONE]
            if not mine:
                continue
            by = measure(task, mine)
            total = pooled(mine)[by]
            against = None if method == NONE else (differences(mine, none) or {}).get(by)
            told.append(
                {"task": text, "measure": by, "value": total, "against_none": against,
                 "verdict": BASE if method == NONE else verdict(against, by)}
            )  # fmt: skip
            (losses if by == "loss" else shares).append(total["mean"])
        better, worse = (sum(row["verdict"] == which for row in told) for which in (BETTER, WORSE))
        rows.append({"method": method, "tasks": told, "better": better, "worse": worse})
        order[method] = worse - better, -_average(shares), _average(losses)
    return sorted(rows, key=lambda row: order[row["method"]])


def verdict(against: Mapping[str, float] | None, by: str) -> str:
    """Whether a method is better or worse than the model as it is, as far as the interval says so."""
    if against is None or against["low"] <= 0 <= against["high"]:
        return SAME
    return BETTER if (against["mean"] > 0) != (by == "loss") else WORSE


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


Results = Mapping[str, Any]


def answer(results: Results) -> list[str]:
    """What a reader wants to know first."""
    lines = [line for task in results["tasks"] for line in _as_it_is(task)]
    same = {m for m, tokens in results.get("exact_tokens", {}).items() if tokens >= max(results["settings"]["lengths"])}
    lines += [_judged(row, row["method"] in same) for row in results["ranking"] if row["method"] not in (NONE, CUT_OFF)]
    return lines + [line for task in results["tasks"] for line in _past(task, results["model"]["trained_length"])]


def outcome_of(task: Task, cells: Mapping[Cell, Measured]) -> str:
    """The cells of one task, method, length and seed, all depths together."""
    found = {
        (cell.length, cell.depth, cell.seed, index): outcome
        for cell, measured in cells.items()
        for index, outcome in enumerate(measured.outcomes)
    }
    by = measure(task, found)
    return f"{replace(next(iter(cells)), depth=None)}: {_level(pooled(found)[by], by)}"


def limits(results: Results) -> list[str]:
    """What this evaluation does not show, as far as it can be computed from what was measured."""
    s = results["settings"]
    texts = s["samples"] * s["seeds"]
    notes = [
        f"One model and one wording of each task, {texts} texts a cell: the intervals cover the choice of texts, not "
        "other models or other ways to ask. They are 95 % each, and among many cells some miss."
    ]
    if not results["complete"]:
        done = results["cells"]
        notes.append(f"Only {done['finished']} of {done['planned']} cells were measured.")
    if any(task["generates"] for task in results["tasks"]) and not s["generate"]:
        notes.append(
            "No answer was generated: an answer counts where each of its tokens is the likeliest after the right ones before "
            "it, which is when greedy decoding gives it word for word. An answer in other words does not count."
        )
    if any(method not in (NONE, CUT_OFF) for method in s["methods"]):
        notes.append("No method was followed by fine-tuning, for which some are meant.")
    if any(row["method"] == CUT_OFF for row in results["ranking"]):
        notes.append(
            f"{CUT_OFF} sees the end of a prompt alone: what stands before that it can only guess, and where it does well, "
            "the task did not need the rest."
        )
    for method, tokens in results.get("exact_tokens", {}).items():
        if tokens >= min(s["lengths"]):
            notes.append(
                f"{method} reads texts of up to {tokens} tokens as the model as it is does, by construction: its numbers there "
                "are those of none, and were not measured again."
            )
    for why in dict.fromkeys(results.get("attention_refused", {}).values()):
        under = [method for method, reason in results["attention_refused"].items() if reason == why]
        notes.append(f"Where the model looks could not be measured under {listed(under)}: {why}.")
    longest, trained = max(s["lengths"]), results["model"]["trained_length"]
    if longest <= trained:
        notes.append(
            f"All texts are within the {trained} tokens that the model was made for: nothing here says what happens past "
            "them."
        )
    return notes


def _as_it_is(task: Results) -> list[str]:
    """What the model as it is makes of a task: by depth at one length where there are several, else by length."""
    none = _with_cells(task, NONE)
    if none is None:
        return []
    rows = none["by_length"]
    rows_with_middle = [row for row in rows if row["middle"] is not None]
    # where the middle and the ends differ for sure, and there at the longest
    row = max(
        rows_with_middle or rows, key=lambda row: (row["middle"] is not None and _sure(row["middle"]), row["length"])
    )
    by = _measure(task, row)
    cells = sorted((c for c in none["cells"] if c["length"] == row["length"]), key=lambda cell: cell["depth"] or 0.0)
    if len(cells) == 1:
        where = "" if cells[0]["depth"] is None else f", {_places(cells)}"
        found = [f"{_level(at[by], by)} at {at['length']} tokens" for at in rows]
        return [f"{task['task']}, the model as it is{where}: {listed(found)}."]
    start = f"{task['task']} at {row['length']} tokens, the model as it is: "
    if len({cell[by]["mean"] for cell in cells}) == 1:
        same = (
            "no depth is better or worse than another" if cells[0][by]["mean"] or by == "loss" else "nothing is found"
        )
        return [f"{start}{_level(cells[0][by], by)} at every depth, {same} here."]
    first, *inner, last = cells
    parts = [f"{_level(cell[by], by)} {_places([cell])}" for cell in (first, last)]
    if inner:
        worst = (max if by == "loss" else min)(cell[by]["mean"] for cell in inner)
        at = [cell for cell in inner if cell[by]["mean"] == worst]
        everywhere = len(at) == len(inner) > 1
        parts.append(
            f"{_level(at[0][by], by)} {'everywhere' if everywhere else _places(at)} between them"
            + (", the worst there" if len(at) < len(inner) else "")
        )
    verdict = ""
    if row["middle"] is not None:
        verdict = f" {_gap(row['middle'], [cell[by]['mean'] for cell in cells])}{_so_often(row, rows_with_middle)}"
    return [f"{start}{listed(parts)}.{verdict}"]


def _so_often(row: Results, rows_with_middle: Sequence[Results]) -> str:
    """At how many lengths the middle differs as it does here: one among many does by chance."""
    if not _sure(row["middle"]) or len(rows_with_middle) < 2:
        return ""
    same = sum(_sure(at["middle"]) and at["middle"]["mean"] * row["middle"]["mean"] > 0 for at in rows_with_middle)
    return f" So at {same} of {len(rows_with_middle)} lengths."


def _gap(middle: Mapping[str, float], shares: Sequence[float]) -> str:
    """The middle against the ends, in a sentence. shares: of right answers, by depth."""
    less, high, low = (-100 * middle[key] for key in ("mean", "low", "high"))
    first, *inner, last = shares
    if low > 0 and min(first, last) <= sum(inner) / len(inner):  # a U has two arms
        which = "end" if last < first else "start"
        return f"Found at one end: what stands at the {which} is found no better than what stands between the two."
    if low > 0:
        return f"Lost in the middle: between the two ends it finds {less:.0f} points less than at them ({low:.0f} to {high:.0f})."
    if high < 0:
        return f"Better in the middle: between the two ends it finds {-less:.0f} points more than at them ({-high:.0f} to {-low:.0f})."
    if round(less) == 0:
        seen = "as much as"
    else:
        seen = f"{abs(less):.0f} points {'less' if less > 0 else 'more'} than"
    return (
        f"Between the two ends it finds {seen} at them, and these texts leave open whether it loses the middle "
        f"(from {high:.0f} points less to {-low:.0f} more)."
    )


def _judged(row: Results, same: bool) -> str:
    """What a method changes, task by task. same: it changes nothing by construction, and was not measured."""
    if same:
        return f"{row['method']} reads all of these texts as the model as it is does, by construction."
    compared = [at for at in row["tasks"] if at["against_none"] is not None]
    parts = []
    for verdict, words in ((BETTER, "better on"), (WORSE, "worse on"), (SAME, "no measurable difference on")):
        tasks = [
            f"{at['task']} ({in_words(at['against_none'], at['measure'])})"
            for at in compared
            if at["verdict"] == verdict
        ]
        if tasks:
            parts.append(f"{words} {listed(tasks)}")
    left = [at["task"] for at in row["tasks"] if at["against_none"] is None]
    if left:
        parts.append(f"not compared on {listed(left)}")
    return f"{row['method']} against the model as it is: {'; '.join(parts) or 'nothing measured yet'}."


def _past(task: Results, trained: int) -> list[str]:
    """What becomes of a task past the trained length, held against reading its end alone."""
    cut = _with_cells(task, CUT_OFF)
    rows = [row for row in cut["by_length"] if row["length"] > trained and row["against_none"]] if cut else []
    if not rows:
        return []
    by = _measure(task, rows[0])
    sign = -1 if by == "loss" else 1
    lines = []
    broken = [row for row in rows if sign * row["against_none"][by]["mean"] > 0 and _sure(row["against_none"][by])]
    if broken:
        lines.append(
            f"{task['task']} at {broken[0]['length']} tokens: the model as it is breaks past the {trained} that it was made "
            f"for; with the last {trained} alone it does better ({in_words(broken[0]['against_none'][by], by)})."
        )
    length = rows[-1]["length"]
    found = {m["method"]: r[by]["mean"] for m in task["methods"] for r in m["by_length"] if r["length"] == length}
    if len(found) > 2 and max(found, key=lambda method: sign * found[method]) == CUT_OFF:
        lines.append(
            f"{task['task']} at {length} tokens: no method does better than the model as it is with the last {trained} "
            "tokens alone."
        )
    return lines


def in_words(estimate: Mapping[str, float], by: str) -> str:
    """A difference and its interval: "+12 points, +3 to +21"."""
    mean, low, high = (_signed(estimate[key], by) for key in ("mean", "low", "high"))
    return f"{mean} {'nats a token' if by == 'loss' else 'points'}, {low} to {high}"


def _signed(difference: float, by: str) -> str:
    """A difference of losses in nats, or of shares in points, with its sign."""
    return (f"{difference:+z.3f}" if by == "loss" else f"{100 * difference:+z.0f}").replace("-", "−")


def _with_cells(task: Results, name: str) -> Results | None:
    return next((method for method in task["methods"] if method["method"] == name and method["cells"]), None)


def _measure(task: Results, row: Results) -> str:
    """What a task is measured by, as in `posenc.lab.evals.results.measure`."""
    if not task["generates"]:
        return "loss"
    return "exact" if row["score"] is None else "score"


def _places(cells: Sequence[Results]) -> str:
    """Where the answer stands in some cells: "at the start", "at depth 0.25 and 0.5"."""
    depths = [cell["depth"] for cell in cells]
    if depths in ([0], [1]):
        return "at the end" if depths[0] else "at the start"
    return f"at depth {listed([f'{depth:g}' for depth in depths])}"


def _sure(estimate: Mapping[str, float]) -> bool:
    return estimate["low"] > 0 or estimate["high"] < 0


def _level(value: Mapping[str, float], by: str) -> str:
    return f"{value['mean']:.2f} nats a token" if by == "loss" else f"{100 * value['mean']:.0f} % right"
