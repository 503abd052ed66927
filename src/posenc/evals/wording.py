"""The answer in words, and what an evaluation does not show: every sentence follows from the numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from posenc.evals.config import CUT_OFF, NONE

Results = Mapping[str, Any]


def answer(results: Results) -> list[str]:
    """What a reader wants to know first."""
    lines = [line for task in results["tasks"] for line in _middle(task)]
    lines += [_judged(row) for row in results["ranking"] if row["method"] not in (NONE, CUT_OFF)]
    return lines + [line for task in results["tasks"] for line in _past(task, results["model"]["trained_length"])]


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
    longest, trained = max(s["lengths"]), results["model"]["trained_length"]
    if longest <= trained:
        notes.append(
            f"All texts are within the {trained} tokens that the model was made for: nothing here says what happens past "
            "them."
        )
    return notes


def _middle(task: Results) -> list[str]:
    """Whether the model as it is finds less in the middle than at the ends: the longest texts whose interval says so, and
    at how many lengths it does, since one among many does by chance."""
    none = _method(task, NONE)
    if none is None:
        return []
    told = [row for row in none["by_length"] if row["middle"] is not None]
    if not told:
        return []
    row = max(told, key=lambda row: (_sure(row["middle"]), row["length"]))
    middle, by = row["middle"], row["middle"]["measure"]
    cells = sorted((cell for cell in none["cells"] if cell["length"] == row["length"]), key=lambda cell: cell["depth"])
    first, last = cells[0], cells[-1]
    worst = min(cells[1:-1], key=lambda cell: float(cell[by]["mean"]))
    shares = (
        f"{_percent(first[by])} at the start, {_percent(last[by])} at the end, {_percent(worst[by])} at depth "
        f"{worst['depth']:g}, the worst between them"
    )
    gap = f"{_points(middle)} between the ends against at them"
    if middle["high"] < 0:
        verdict = f"lost in the middle: {gap}"
    elif middle["low"] > 0:
        verdict = f"found better in the middle: {gap}"
    else:
        verdict = f"no measurable difference between middle and ends: {gap}"
    if _sure(middle) and len(told) > 1:
        same = sum(_sure(at["middle"]) and at["middle"]["mean"] * middle["mean"] > 0 for at in told)
        verdict += f"; so at {same} of {len(told)} lengths"
    return [f"{task['task']} at {row['length']} tokens, the model as it is: {shares} ({verdict})."]


def _judged(row: Results) -> str:
    """What a method changes, task by task."""
    parts = []
    for outcome in ("better", "worse"):
        found = [f"{at['task']} ({_changed(at)})" for at in row["tasks"] if at["verdict"] == outcome]
        if found:
            parts.append(f"{outcome} on {_listed(found)}")
    same = [f"{at['task']} ({_changed(at)})" for at in row["tasks"] if at["verdict"] == "no different"]
    if same:
        parts.append(f"not measurably different on {_listed(same)}")
    return f"{row['method']} against the model as it is: {'; '.join(parts) or 'nothing measured yet'}."


def _past(task: Results, trained: int) -> list[str]:
    """What becomes of a task past the trained length, held against reading its end alone."""
    cut = _method(task, CUT_OFF)
    if cut is None:
        return []
    by = "loss" if not task["generates"] else "exact"
    sign = -1 if by == "loss" else 1
    rows = [row for row in cut["by_length"] if row["length"] > trained and row["against_none"] is not None]
    broken = [row for row in rows if sign * row["against_none"][by]["mean"] > 0 and _sure(row["against_none"][by])]
    lines = []
    if broken:
        first = broken[0]
        lines.append(
            f"{task['task']}: past its {trained} tokens the model as it is breaks, at {first['length']} tokens it does worse "
            f"than with the last {trained} alone ({_change(first['against_none'][by], by)} for those)."
        )
    if rows:
        length = rows[-1]["length"]
        found = {m["method"]: r[by]["mean"] for m in task["methods"] for r in m["by_length"] if r["length"] == length}
        best = max(found, key=lambda method: sign * found[method])
        if len(found) > 2 and best == CUT_OFF:
            lines.append(
                f"{task['task']} at {length} tokens: no method does better than the model as it is with the last {trained} "
                "tokens alone."
            )
    return lines


def _method(task: Results, name: str) -> Results | None:
    return next((method for method in task["methods"] if method["method"] == name and method["cells"]), None)


def _sure(estimate: Mapping[str, float]) -> bool:
    return estimate["low"] > 0 or estimate["high"] < 0


def _changed(at: Results) -> str:
    return "not measured" if at["against_none"] is None else _change(at["against_none"], at["measure"])


def _change(estimate: Mapping[str, float], by: str) -> str:
    if by == "loss":
        return f"{estimate['mean']:+.3f} nats, {estimate['low']:+.3f} to {estimate['high']:+.3f}"
    return _points(estimate)


def _points(estimate: Mapping[str, float]) -> str:
    mean, low, high = (100 * estimate[key] for key in ("mean", "low", "high"))
    return f"{mean:+.0f} points, {low:+.0f} to {high:+.0f}"


def _percent(value: Mapping[str, float]) -> str:
    return f"{100 * value['mean']:.0f} % right"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
