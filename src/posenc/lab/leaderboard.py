# SPDX-License-Identifier: Apache-2.0
"""Comparisons of the same encodings on several tasks, as one study: all cells in one folder, one table of all tasks."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from posenc.errors import InputError
from posenc.lab.checkpoint import Checkpoints
from posenc.lab.compare import Comparison, ComparisonStudy, stranger
from posenc.lab.engines import Engine, Tick, create
from posenc.lab.experiment import Dataset, Experiment, Run
from posenc.lab.parallel import world
from posenc.lab.results import RunRecord
from posenc.lab.study import Progress, Results, Study, run

__all__ = ["TASKS", "Leaderboard", "compare_tasks"]

TASKS = ("text", "copy", "addition", "recall", "sort", "dyck", "induction")
"""Of the preset leaderboard."""


class Leaderboard(Study[Run, RunRecord]):
    """Several comparisons as one study: seed by seed, and within a seed task by task."""

    name = "compare"
    unit = "runs"

    def __init__(self, studies: Sequence[ComparisonStudy]) -> None:
        self.studies: dict[str, ComparisonStudy] = {study.comparison.settings.name: study for study in studies}

    def check(self) -> None:
        """Raises:
        InputError: what a comparison refuses, or comparisons of different encodings.
        """
        planned = {(study.comparison.encodings, study.comparison.seeds) for study in self.studies.values()}
        if len(planned) > 1:
            raise InputError("encodings: the tasks of one table compare the same encodings and seeds")
        for study in self.studies.values():
            study.check()

    def cells(self) -> list[Run]:
        runs = [run for study in self.studies.values() for run in study.cells()]
        return sorted(runs, key=lambda run: run.seed)

    def resources(self) -> dict[str, Any]:
        return next(iter(self.studies.values())).resources()

    def record(self, cell: object) -> type[Any]:
        return RunRecord

    def facts(self, cell: Run) -> Mapping[str, Any]:
        return cell.facts()

    def work(self, job: Sequence[Run]) -> float:
        return sum(self._of(cell).work([cell]) for cell in job)

    def describe(self, job: Sequence[Run]) -> str:
        return f"{job[0].settings.name}, {self._of(job[0]).describe(job)}"

    def measure(self, job: Sequence[Run], tick: Tick) -> dict[Run, RunRecord]:
        return {cell: record for each in job for cell, record in self._of(each).measure([each], tick).items()}

    def stored(self, cell: Run, measured: RunRecord) -> None:
        self._of(cell).stored(cell, measured)

    def stranger(self, measured: RunRecord) -> str:
        return stranger(measured, [study.comparison for study in self.studies.values()])

    def presentable(self, done: Mapping[Run, RunRecord]) -> list[Run]:
        parts = {name: study.presentable(self._part(name, done)) for name, study in self.studies.items()}
        seeds = min((len({run.seed for run in part}) for part in parts.values() if part), default=0)
        return [run for run in done if run.seed < seeds]

    def results(self, done: Mapping[Run, RunRecord]) -> dict[str, Any]:
        parts = {name: self._part(name, done) for name in self.studies}
        tasks = {name: self.studies[name].results(part) for name, part in parts.items() if part}
        if not tasks:
            raise InputError("no run is finished: run the same command again, or a share with runs in it")
        one = next(iter(tasks.values()))
        return {
            "settings": {"tasks": list(tasks), "encodings": one["settings"]["encodings"]},
            "seeds": one["seeds"],
            "machine": one["machine"],
            "tasks": tasks,
            "table": table({name: (self.studies[name].comparison.settings, tasks[name]) for name in tasks}),
        }

    def _of(self, cell: Run) -> ComparisonStudy:
        return self.studies[cell.settings.name]

    def _part(self, task: str, done: Mapping[Run, RunRecord]) -> dict[Run, RunRecord]:
        return {cell: record for cell, record in done.items() if cell.settings.name == task}


def table(tasks: Mapping[str, tuple[Experiment, Results]]) -> list[dict[str, Any]]:
    """A row for each trained encoding that has results in every task, the lowest mean group first: group, 1 is the best, at the
    training length and at the longest, by task and in the mean."""
    rows: dict[str, dict[str, dict[str, int]]] = {}
    for task, (s, results) in tasks.items():
        for arm in results["arms"]:
            groups = [point["group"] for point in arm[s.criterion.points]]
            if arm["trained"] and None not in groups:
                trained = groups[s.conditions.index(s.trained_at)]
                rows.setdefault(arm["name"], {})[task] = {"trained": trained, "longest": groups[-1]}
    complete = {name: of for name, of in rows.items() if len(of) == len(tasks)}
    means = {
        name: {f"mean_{at}": fmean(groups[at] for groups in of.values()) for at in ("trained", "longest")}
        for name, of in complete.items()
    }
    order = sorted(complete, key=lambda name: (means[name]["mean_longest"], means[name]["mean_trained"]))
    return [{"encoding": name, "groups": complete[name], **means[name]} for name in order]


def compare_tasks(
    comparisons: Sequence[tuple[Comparison, Dataset]],
    directory: str | Path,
    *,
    engine: Engine | None = None,
    checkpoint_minutes: float = 0,
    progress: Progress | None = None,
    command: str = "",
    pages: Mapping[str, Callable[[Results], str]] | None = None,
    begin: Callable[[], object] = lambda: None,
    share: tuple[int, int] = (1, 1),
    merge: Sequence[str | Path] = (),
) -> dict[str, Any]:
    """Run comparisons of the same encodings on several tasks into one folder, as `posenc.lab.compare.compare` does one; returns
    what results.json holds: "tasks" has the results of each, "table" their groups side by side.

    Raises:
        InputError: as `compare`; comparisons of different encodings; several processes that train together.
    """
    if world().size > 1:
        raise InputError(
            "parallel: processes that train together compare one task; start one process, or name one task"
        )
    checkpoints = Checkpoints(Path(directory).absolute(), checkpoint_minutes)
    study = Leaderboard([ComparisonStudy(comparison, corpus, checkpoints) for comparison, corpus in comparisons])
    return run(
        study, directory, engine=engine or create("local"), progress=progress, command=command, pages=pages, begin=begin,
        share=share, merge=merge,
    )  # fmt: skip
