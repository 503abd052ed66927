# SPDX-License-Identifier: Apache-2.0
"""`posenc.choose`: methods that extend a model are evaluated on the same documents, and the one that pays is applied.

The net gain of a method, in nats per token, is the loss of the truncated text less that of the method past the context length, as
the mean over the tasks that the unmodified model answers within it, less what the method adds to the loss of running text there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from statistics import fmean
from typing import Any

from posenc.errors import InputError, listed
from posenc.lab.evals.config import EXTENSIONS, NONE
from posenc.lab.evals.reader import BLOCKS
from posenc.lab.evals.study import evaluate
from posenc.lab.study import Interrupted
from posenc.pretrained.changes import ChangeReport
from posenc.pretrained.extend import Extension, extend, restore, target_of
from posenc.pretrained.models import model_structure, unwrap

TASKS, RUNNING = ("passkey", "facts", "perplexity"), "perplexity"


@dataclass(frozen=True)
class Choice(ChangeReport):
    """What `choose` found. choice: the method, or "truncate": the model is then as it was loaded. rows: of each method, the best
    first, its net gain in nats per token with an interval of 95 % for all of them together, and its cost. skipped: methods that
    the model does not take, and why. extension: the report of the method that was applied."""

    choice: str
    target_length: int
    rows: tuple[dict[str, Any], ...]
    skipped: dict[str, str]
    uncounted: tuple[str, ...]
    extension: Any = None

    def __str__(self) -> str:
        wide = max(len(row["method"]) for row in self.rows)
        lines = [f"net gain over truncation at {self.target_length} tokens, nats per token with 95 % intervals"]
        lines += [f"  {r['method']:{wide}}  {r['gain']:+.3f} ({r['low']:+.3f} to {r['high']:+.3f})" for r in self.rows]
        if self.uncounted:
            lines.append(f"not counted, since the unmodified model fails: {listed(self.uncounted)}")
        lines += [f"{method} was not tried: {why}" for method, why in self.skipped.items()]
        return "\n".join([*lines, f"choice: {self.choice}"] + ([str(self.extension)] if self.extension else []))


def choose(
    model: Any,
    tokenizer: Any,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    candidates: Sequence[str] = EXTENSIONS,
    samples: int = 8,
    **options: Any,
) -> Choice:
    """Extend a model by the cheapest of the methods that are measurably better than truncating its inputs and as good as the best
    of them; by none where there is none. An earlier extension is undone; `posenc.restore` undoes this one.

    model: a rotary causal language model. factor, target_length: as of `posenc.extend`; one is needed. candidates: methods to try.
    samples: documents of each task. options: of `posenc.evaluate`: text=FILE, directory=DIR where the same call resumes.

        found = posenc.choose(model, tokenizer, factor=4)
        print(found.choice, found.rows[0]["gain"])

    Raises:
        InputError: no length or one that is too long, or no candidate that the model takes.
        Interrupted: Ctrl-C or SIGTERM; the model is then as it was loaded.
    """
    restore(model)
    structure = model_structure(unwrap(model))
    target, context = target_of(structure, factor, target_length), structure.loaded_length
    if target is None or not context < target <= BLOCKS * context:
        raise InputError(f"the model reads {context} tokens", f"give up to {BLOCKS * context}", target_length=target)
    costs, skipped = _screened(model, candidates, target)
    if not costs:
        raise InputError(f"the model takes none: {listed(list(skipped.values()))}", candidates=tuple(candidates))
    results = evaluate(
        model, tokenizer, tasks=TASKS, methods=tuple(costs), lengths=(context, target), depths=(0.25,), samples=samples,
        generate=False, **options,
    )  # fmt: skip
    if not results["complete"]:
        raise Interrupted
    rows, uncounted = _rows(results, costs)
    paying = [row for row in rows if row["low"] > 0 and row["gain"] >= rows[0]["low"]]
    choice = min(paying, key=lambda row: (row["cost"], -row["gain"]), default={"method": "truncate"})["method"]
    extension = None if choice == "truncate" else extend(model, choice, target_length=target)
    return Choice(choice, target, tuple(rows), skipped, uncounted, extension)


def _screened(model: Any, methods: Sequence[str], target: int) -> tuple[dict[str, int], dict[str, str]]:
    """What each method costs that the model takes: 1 for frequencies in a configuration, 2 for another
    attention, 3 for a position map. And why others are left out."""
    costs, skipped = dict[str, int](), dict[str, str]()
    for method in methods:
        try:
            report = extend(model, method, target_length=target)
            plain = isinstance(report, Extension) and report.plain
            costs[method] = 1 if plain else 2 if getattr(report, "map", None) is None else 3
        except InputError as error:
            skipped[method] = str(error)
        finally:
            restore(model)
    return costs, skipped


def _rows(results: Mapping[str, Any], costs: Mapping[str, int]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The rows of a choice, the best first, and the tasks that do not count."""
    within = {  # (task, method) -> its numbers at the context length, the first of the two
        (task["name"], of["method"]): of["by_length"][0] for task in results["tasks"] for of in task["methods"]
    }
    unsolved = tuple(t for t in TASKS if t != RUNNING and within[t, NONE]["exact"]["mean"] < 0.5)
    names = {task["task"]: task["name"] for task in results["tasks"]}
    past: dict[str, list[Mapping[str, float]]] = {method: [] for method in costs}
    for task in (each for each in results["longer"][-1]["tasks"] if names[each["task"]] not in unsolved):
        for row in (each for each in task["rows"] if each["method"] in costs):
            past[row["method"]].append(row["against_truncation"])
    rows = []
    for method, apart in past.items():
        harm = (within[RUNNING, method]["against_none"] or {}).get("loss") or {"mean": 0.0, "error": 0.0}
        gain = -fmean(each["mean"] for each in apart) - harm["mean"]
        error = hypot(hypot(*(each["error"] for each in apart)) / len(apart), harm["error"])
        # as many standard errors as the widest of the tasks' intervals, which hold for all methods together
        half = error * max((each["high"] - each["mean"]) / (each["error"] or 1.0) for each in apart)
        rows.append({"method": method, "gain": gain, "low": gain - half, "high": gain + half, "cost": costs[method]})
    return sorted(rows, key=lambda row: -float(row["gain"])), unsolved
