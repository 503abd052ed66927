# SPDX-License-Identifier: Apache-2.0
"""Comparisons of the same encodings on several tasks, as one study: all cells in one folder, one table of all tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from posenc.errors import InputError
from posenc.lab.compare import Comparison, ComparisonStudy
from posenc.lab.engines import Engine, ProcessPool
from posenc.lab.experiment import Dataset, Run
from posenc.lab.records import RunRecord
from posenc.lab.results import Ranking
from posenc.lab.statistics import average
from posenc.lab.study import run

TASKS = (
    "text", "copy", "addition", "recall", "sort", "dyck", "induction", "reverse", "parity", "flip_flop", "n_back_1", "n_back_2",
    "n_back_3", "n_back_4", "selective_copy", "indirect_indexing", "a5",
)  # fmt: skip
"""Of the preset leaderboard."""
End = Literal["trained", "longest"]
ENDS: tuple[End, End] = "trained", "longest"
"""The training length, and the longest of the test."""


class Leaderboard(ComparisonStudy):
    """Comparisons of the same encodings on several tasks: their results and one table of all."""

    def check(self) -> None:
        """Raises:
        InputError: what a comparison refuses, comparisons of different encodings, or two of one task.
        """
        names = tuple(comparison.settings.name for comparison, _ in self.comparisons)
        if len(set(names)) < len(names):
            raise InputError("names a task twice", "name each once", task=names)
        for name in ("encodings", "seeds"):
            if len(found := {getattr(comparison, name) for comparison, _ in self.comparisons}) > 1:
                of = " and ".join(map(str, sorted(found)))
                why = f"must be the same in all tasks of a table, and these have {of}"
                raise InputError(why, "give one for all", argument=name)
        super().check()

    def describe(self, job: Sequence[Run]) -> str:
        return f"{job[0].settings.name}, {super().describe(job)}"

    def results(self, done: Mapping[Run, RunRecord]) -> dict[str, Any]:
        tasks, rankings = {}, {}
        for comparison, corpus in self.comparisons:
            name = comparison.settings.name
            if part := {run: record for run, record in done.items() if run.settings.name == name}:
                tasks[name], rankings[name] = self.of_comparison(comparison, corpus, part)
        one, rows = next(iter(tasks.values())), table(rankings)
        return {
            "settings": {"tasks": list(tasks), "encodings": one["settings"]["encodings"]},
            "seeds": one["seeds"],
            "machine": one["machine"],
            "tasks": tasks,
            "table": rows,
            "not_learned": {
                name: [at for at in ENDS if None not in r.chance.values() and r.nobody_learned(end(r, at))]
                for name, r in rankings.items()
            },
            "answer": [f"{name}: {line}" for name, of in tasks.items() for line in of["answer"]],
        }


def end(ranking: Ranking, at: End) -> int:
    """The condition of training, or the last."""
    return ranking.settings.trained_at if at == "trained" else ranking.settings.conditions[-1]


def table(rankings: Mapping[str, Ranking]) -> list[dict[str, Any]]:
    """A row for each trained encoding that has results in every task, the best at the longest length first: at the training
    length and at the longest, the mean over the tasks of its scores, on a scale with guessing at 0 and the best possible at 1,
    and by task how probably it is near the best. Left out of a mean are tasks that nobody learned, and tasks of which it is not
    known what guessing scores; where none is left, it is None."""
    known = {task: r for task, r in rankings.items() if None not in r.chance.values()}
    counted = {at: [r for r in known.values() if not r.nobody_learned(end(r, at))] for at in ENDS}
    near = {task: {at: r.near_best(end(r, at)) for at in ENDS} for task, r in rankings.items()}
    names = [variant.name for variant in next(iter(rankings.values())).trained]
    rows: list[dict[str, Any]] = []
    for name in names:
        of = {task: next((v for v in r.trained if v.name == name), None) for task, r in rankings.items()}
        if None in of.values():
            continue
        row: dict[str, Any] = {"encoding": name}
        for at in ENDS:
            values = [r.normalised(variant, end(r, at)) for r in counted[at] if (variant := of[r.settings.name])]
            row[at] = asdict(average(values)) if values else None
        rows.append(row | {"near_best": {task: {at: near[task][at].get(name) for at in ENDS} for task in rankings}})
    return sorted(rows, key=lambda row: tuple(-(row[at] or {"mean": 0})["mean"] for at in reversed(ENDS)))


def compare_tasks(
    comparisons: Sequence[tuple[Comparison, Dataset]],
    directory: str | Path,
    *,
    engine: Engine | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run comparisons of the same encodings on several tasks into one folder, as `posenc.lab.compare.compare` does one; returns
    what results.json holds: "tasks" has the results of each, "table" their scores side by side. options: of
    `posenc.lab.study.run`.

    Raises:
        InputError: as `compare`; comparisons of different encodings, or two of one task.
    """
    return run(Leaderboard(comparisons), directory, engine=engine or ProcessPool(), **options)
