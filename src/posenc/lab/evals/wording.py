# SPDX-License-Identifier: Apache-2.0
"""The answer in words, and what an evaluation does not show: every sentence follows from the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from posenc.errors import listed
from posenc.lab.evals.config import CUT_OFF, NONE, Cell
from posenc.lab.evals.results import BETTER, SAME, WORSE, Measured, measure, pooled
from posenc.tasks import Task

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
    none = _method(task, NONE)
    if none is None:
        return []
    rows = none["by_length"]
    told = [row for row in rows if row["middle"] is not None]
    # where the middle and the ends differ for sure, and there at the longest
    row = max(told or rows, key=lambda row: (row["middle"] is not None and _sure(row["middle"]), row["length"]))
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
    said = [f"{_level(cell[by], by)} {_places([cell])}" for cell in (first, last)]
    if inner:
        worst = (max if by == "loss" else min)(cell[by]["mean"] for cell in inner)
        at = [cell for cell in inner if cell[by]["mean"] == worst]
        everywhere = len(at) == len(inner) > 1
        said.append(
            f"{_level(at[0][by], by)} {'everywhere' if everywhere else _places(at)} between them"
            + (", the worst there" if len(at) < len(inner) else "")
        )
    verdict = ""
    if row["middle"] is not None:
        verdict = f" {_gap(row['middle'], [cell[by]['mean'] for cell in cells])}{_so_often(row, told)}"
    return [f"{start}{listed(said)}.{verdict}"]


def _so_often(row: Results, told: Sequence[Results]) -> str:
    """At how many lengths the middle differs as it does here: one among many does by chance."""
    if not _sure(row["middle"]) or len(told) < 2:
        return ""
    same = sum(_sure(at["middle"]) and at["middle"]["mean"] * row["middle"]["mean"] > 0 for at in told)
    return f" So at {same} of {len(told)} lengths."


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
    for verdict, said in ((BETTER, "better on"), (WORSE, "worse on"), (SAME, "no measurable difference on")):
        found = [
            f"{at['task']} ({change(at['against_none'], at['measure'])})" for at in compared if at["verdict"] == verdict
        ]
        if found:
            parts.append(f"{said} {listed(found)}")
    left = [at["task"] for at in row["tasks"] if at["against_none"] is None]
    if left:
        parts.append(f"not compared on {listed(left)}")
    return f"{row['method']} against the model as it is: {'; '.join(parts) or 'nothing measured yet'}."


def _past(task: Results, trained: int) -> list[str]:
    """What becomes of a task past the trained length, held against reading its end alone."""
    cut = _method(task, CUT_OFF)
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
            f"for; with the last {trained} alone it does better ({change(broken[0]['against_none'][by], by)})."
        )
    length = rows[-1]["length"]
    found = {m["method"]: r[by]["mean"] for m in task["methods"] for r in m["by_length"] if r["length"] == length}
    if len(found) > 2 and max(found, key=lambda method: sign * found[method]) == CUT_OFF:
        lines.append(
            f"{task['task']} at {length} tokens: no method does better than the model as it is with the last {trained} "
            "tokens alone."
        )
    return lines


def change(estimate: Mapping[str, float], by: str) -> str:
    """A difference and its interval: "+12 points, +3 to +21"."""
    mean, low, high = (signed(estimate[key], by) for key in ("mean", "low", "high"))
    return f"{mean} {'nats a token' if by == 'loss' else 'points'}, {low} to {high}"


def signed(difference: float, by: str) -> str:
    """A difference of losses in nats, or of shares in points, with its sign."""
    return (f"{difference:+z.3f}" if by == "loss" else f"{100 * difference:+z.0f}").replace("-", "−")


def _method(task: Results, name: str) -> Results | None:
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
