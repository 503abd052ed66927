# SPDX-License-Identifier: Apache-2.0
"""Comparisons of the same encodings on several tasks, as one study: all cells in one folder, one table of all tasks."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import torch

from posenc.errors import InputError, listed
from posenc.lab.archive import conditions, file_of, read, write
from posenc.lab.compare import Comparison, ComparisonStudy, Table, experiment
from posenc.lab.engines import Engine, ProcessPool
from posenc.lab.experiment import Dataset, Execution, Experiment, Run
from posenc.lab.machine import describe
from posenc.lab.measure import check_record
from posenc.lab.records import RunRecord
from posenc.lab.results import Ranking, collect
from posenc.lab.statistics import average
from posenc.lab.store import Store, Stored
from posenc.lab.study import difference, run

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
        InputError: what a comparison refuses, or comparisons of different encodings.
        """
        if len({(comparison.encodings, comparison.seeds) for comparison, _ in self.comparisons}) > 1:
            raise InputError("the tasks of one table compare the same encodings and seeds", argument="encodings")
        super().check()

    def describe(self, job: Sequence[Run]) -> str:
        return f"{job[0].settings.name}, {super().describe(job)}"

    def results(self, done: Mapping[Run, RunRecord]) -> dict[str, Any]:
        tasks, rankings = {}, {}
        for comparison, corpus in self.comparisons:
            name = comparison.settings.name
            if part := {run: record for run, record in done.items() if run.settings.name == name}:
                tasks[name] = self.of_comparison(comparison, corpus, part)
                best = comparison.at_best_rate(part) if comparison.rates else part
                rankings[name] = Ranking(collect(best), comparison.settings, corpus)
        if not tasks:
            raise InputError("no run is finished: run the same command again, or a share with runs in it")
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
            "answer": self._table_places(rows),
        }

    def _table_places(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Where the encodings that are not of a table of finished runs are among all, by mean score."""
        known, lines = self.in_table, []
        for row in rows:
            if known and row["encoding"] not in known:
                places = []
                for at, where in zip(ENDS, ("the training length", "the longest"), strict=True):
                    if row[at] is not None:
                        better = sum(each[at]["mean"] > row[at]["mean"] for each in rows)
                        half = (row[at]["high"] - row[at]["low"]) / 2
                        score = f"{100 * row[at]['mean']:.0f} ± {100 * half:.0f}"
                        places.append(f"{score} at {where}, place {better + 1} of {len(rows)}")
                lines.append(f"{row['encoding']} has the mean score {'; '.join(places)}.")
        return lines


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
    table: Table | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run comparisons of the same encodings on several tasks into one folder, as `posenc.lab.compare.compare` does one; returns
    what results.json holds: "tasks" has the results of each, "table" their scores side by side. options: of
    `posenc.lab.study.run`.

    Raises:
        InputError: as `compare`; comparisons of different encodings.
    """
    return run(Leaderboard(comparisons, table), directory, engine=engine or ProcessPool(), **options)


def archive(comparisons: Sequence[tuple[Comparison, Dataset]], directory: str | Path, to: str | Path) -> list[Path]:
    """Add the finished runs of a folder to a folder of `posenc.lab.archive`; returns the files written.

    Raises:
        InputError: none is finished; what `posenc.lab.archive.write` refuses.
    """
    store = Store(directory)
    runs = [run for comparison, corpus in comparisons for run in comparison.runs(corpus)]
    done = {run: stored for run in runs if (stored := store.load(run.id, RunRecord)) is not None}
    if not done:
        raise InputError("has no finished run of these comparisons", directory=str(directory))
    machine = {name: value for name, value in describe(torch.device("cpu")).items() if name != "load"}
    return write(to, done, machine)


def against(
    directory: str | Path,
    encodings: Sequence[str],
    tasks: Sequence[str] = (),
    seeds: int | None = None,
    *,
    data: str | None = None,
) -> tuple[list[tuple[Comparison, Dataset]], Table]:
    """The comparisons that put encodings into a table of finished runs, a folder of `posenc.lab.archive` ("leaderboard": that of
    posenc's repository), and the table. Settings, data and encodings are the table's; tasks and seeds too, unless fewer are
    asked for. A row of the table has the seeds that it was trained with, also where others have more. A task whose data are
    others here, such as the text of another version of Python, is left out if it was not named. data: as of `posenc
    compare`, which a table does not have; None: the task's default.

    Raises:
        InputError: encodings, tasks or seeds that do not fit the table; no such table; no task whose data are the same here.
    """
    cells: dict[str, list[Stored[RunRecord]]] = {}
    for cell in read(_found(directory), tasks):
        cells.setdefault(cell.facts["task"], []).append(cell)
    order = [*filter(cells.__contains__, TASKS), *(task for task in cells if task not in TASKS)]
    cells = {task: cells[task] for task in order}
    names = _in_every_task(cells.values())
    if taken := [name for name in encodings if name in names]:
        raise InputError("is in the table", "name encodings that are not", encodings=taken[0])
    most = min(map(_seeds_of, cells.values()))
    if seeds is not None and not 1 <= seeds <= most:
        raise InputError(f"the table has {most}", "ask for at most so many", seeds=seeds)
    comparisons: list[tuple[Comparison, Dataset]] = []
    runs: dict[Run, Stored[RunRecord]] = {}
    notes: dict[str, str] = {}
    for task, of_task in cells.items():
        first = of_task[0]
        settings, execution = _settings(first)
        used = [cell for cell in of_task if cell.facts["seed"] < (seeds or most) and cell.facts["encoding"] in names]
        for cell in used:
            try:
                if conditions(cell) != conditions(first):
                    raise InputError(f"has {difference(conditions(cell), [conditions(first)])}, as the others have")
                check_record(cell.facts["encoding"], settings, cell.record)
            except ValueError as error:
                raise InputError(f"{file_of(cell.facts)} {error}", against=str(directory)) from None
        corpus, settings = settings.load(data or settings.data)
        if corpus.digest != first.facts["data"]:
            why = f"the data of {task} are others here than those of the table"
            if task in tasks:
                raise InputError(why, task=task)
            warnings.warn(f"posenc: {task} is left out: {why}", stacklevel=2)
            continue
        for cell in used:
            runs[Run.of(cell.facts["encoding"], cell.facts["seed"], settings, corpus.digest, execution)] = cell
        processors = dict.fromkeys(str(cell.machine.get("gpu", cell.machine.get("cpu"))) for cell in used)
        where = f"{listed([*processors])} by {first.program}"
        notes[task] = f"The other encodings are those of a table of finished runs, trained on {where}."
        count = len({cell.facts["seed"] for cell in used})
        comparisons.append((Comparison((*encodings, *names), count, settings, execution), corpus))
    if len({comparison.execution for comparison, _ in comparisons}) > 1:
        raise InputError(
            "its tasks are of a GPU and of a CPU, or in two precisions", "take a folder each", against=str(directory)
        )
    if not comparisons:
        raise InputError("no task has the same data here", against=str(directory))
    return comparisons, Table(runs, notes)


def _in_every_task(cells: Collection[Sequence[Stored[RunRecord]]]) -> list[str]:
    """The encodings that have a run in every task, in the order of the archives."""
    of_tasks = [dict.fromkeys(cell.facts["encoding"] for cell in of_task) for of_task in cells]
    return [name for name in of_tasks[0] if all(name in each for each in of_tasks)]


def _seeds_of(cells: Sequence[Stored[RunRecord]]) -> int:
    """How many seeds, from 0 on, there are; not each encoding needs to have them all."""
    there = {cell.facts["seed"] for cell in cells}
    return len(list(takewhile(there.__contains__, range(len(there)))))


def _settings(cell: Stored[RunRecord]) -> tuple[Experiment, Execution]:
    facts = cell.facts
    try:
        execution = {name: facts[name] for name in ("device", "precision", "compiled") if name in facts}
        return experiment(facts["task"])().changed(**facts["settings"]), Execution(**execution)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{file_of(facts)} is by {cell.program} and has other settings: {error}", argument="against"
        ) from None


def _found(directory: str | Path) -> Path:
    """The folder of a table."""
    if str(directory) != "leaderboard":
        return Path(directory)
    folder = Path(__file__).parents[3] / "benchmarks/leaderboard"
    if not folder.exists():
        raise InputError(
            "is in posenc's repository alone", "name a copy of its folder benchmarks/leaderboard", against="leaderboard"
        )
    return folder
