# SPDX-License-Identifier: Apache-2.0
"""The main job: train every encoding on the same data, test past the training length or size, write what was measured."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from posenc.composites import PerLayer
from posenc.errors import InputError, first_line
from posenc.lab.checkpoint import Checkpoints
from posenc.lab.config import Recipe, Run
from posenc.lab.engines import Engine, Tick, create
from posenc.lab.launcher import Together, follow
from posenc.lab.machine import describe, flushed_denormals
from posenc.lab.measure import measure, work
from posenc.lab.parallel import Processes, processes
from posenc.lab.results import Cell
from posenc.lab.study import Progress, Results, Study, run
from posenc.lab.task import Corpus
from posenc.lab.tasks import task_of
from posenc.lab.train import build

__all__ = ["Compare", "Comparison", "Progress", "compare"]

MOST_SEEDS = 1000


@dataclass(frozen=True)
class Comparison:
    """A comparison to be made: encodings (names as `posenc.create` takes them), number of seeds, shared settings.

    The arm without positions is always among the encodings.
    """

    encodings: tuple[str, ...]
    seeds: int
    settings: Recipe

    def __post_init__(self) -> None:
        if self.encodings and "none" not in self.encodings:
            object.__setattr__(self, "encodings", ("none", *self.encodings))

    def runs(self, corpus: Corpus) -> list[Run]:
        """Every run, seed by seed, so that an interrupted comparison has whole seeds first."""
        return [Run.of(e, seed, self.settings, corpus.digest) for seed in range(self.seeds) for e in self.encodings]

    def seeds_in(self, runs: Iterable[Run]) -> int:
        """How many seeds, from the first on, every encoding has finished."""
        finished = {(run.encoding, run.seed) for run in runs}
        whole = takewhile(lambda seed: all((e, seed) in finished for e in self.encodings), range(self.seeds))
        return len(list(whole))

    def check(self, corpus: Corpus) -> None:
        """Refuse, before any training, what could not be run to its end.

        Raises:
            InputError: unknown encodings or ones that do not fit the model, no seed, data that do not serve.
        """
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise InputError(f"seeds={self.seeds}: must lie between 1 and {MOST_SEEDS}")
        if not self.encodings:
            raise InputError("encodings: name at least one")
        twice = {e for e in self.encodings if self.encodings.count(e) > 1}
        if twice:
            raise InputError(f"encodings: {', '.join(sorted(twice))} is named twice")
        task_of(self.settings).check(corpus, self.settings)
        for encoding in self.encodings:
            try:
                _try(Run.of(encoding, 0, self.settings, corpus.digest))
            except (ValueError, TypeError, RuntimeError, IndexError) as error:
                raise InputError(f"encodings={encoding}: {first_line(error)}") from None


@torch.no_grad()
def _try(run: Run) -> None:
    """One pass of every arm over an example of every condition, so that nothing fails after an hour of training."""
    task, model = task_of(run.settings), build(run)
    parts, layers = model.encoding, run.settings.num_layers
    if isinstance(parts, PerLayer) and len(list(parts)) > layers:
        raise InputError(f"names {len(list(parts))} layers, the model has {layers}: pass num_layers={len(list(parts))}")
    for arm in task.arms(run.encoding, model.encoding, run.settings):
        for condition in run.settings.conditions:
            model.encoding = arm.at(condition)
            with torch.random.fork_rng(devices=[]):
                model(task.example(run.settings, condition), arm.positions(condition))


class Compare(Study[Run, Cell]):
    """A comparison as a study: a cell is a run."""

    name = "compare"
    unit = "runs"

    def __init__(self, comparison: Comparison, corpus: Corpus, checkpoints: Checkpoints) -> None:
        self.comparison = comparison
        self.corpus = corpus
        self.checkpoints = checkpoints

    def check(self) -> None:
        self.comparison.check(self.corpus)

    def cells(self) -> list[Run]:
        return self.comparison.runs(self.corpus)

    def record(self, cell: object) -> type[Any]:
        return Cell

    def facts(self, cell: Run) -> Mapping[str, Any]:
        return cell.facts()

    def work(self, job: Sequence[Run]) -> float:
        return sum(map(work, job))

    def describe(self, job: Sequence[Run]) -> str:
        return f"{job[0].encoding}, seed {job[0].seed}"

    def measure(self, job: Sequence[Run], tick: Tick) -> dict[Run, Cell]:
        with flushed_denormals():
            return {run: measure(run, self.corpus, tick, self.checkpoints) for run in job}

    def stored(self, cell: Run, measured: Cell) -> None:
        self.checkpoints.remove(cell)

    def presentable(self, done: Mapping[Run, Cell]) -> list[Run]:
        seeds = self.comparison.seeds_in(done)
        return [run for run in done if run.seed < seeds]

    def results(self, done: Mapping[Run, Cell]) -> dict[str, Any]:
        settings, corpus = self.comparison.settings, self.corpus
        task = task_of(settings)
        rows = task.ranked(done, settings)
        return {
            "task": task.name,
            "settings": settings.said() | {"encodings": list(self.comparison.encodings)},
            "seeds": list(range(self.comparison.seeds)),
            "seeds_finished": self.comparison.seeds_in(done),
            "data": corpus.facts(),
            "machine": describe(torch.device("cpu")),
            "answer": task.answer(rows, corpus, settings),
            **task.numbers(rows, corpus, settings),
            "limits": task.limits(rows, corpus, settings),
            "cells": {run.id: {"encoding": run.encoding, "seed": run.seed} for run in done},
        }


def compare(
    comparison: Comparison,
    corpus: Corpus,
    directory: str | Path,
    *,
    workers: int | None = None,
    engine: Engine | None = None,
    checkpoint_minutes: float = 0,
    progress: Progress | None = None,
    command: str = "",
    render: Callable[[Results], str] | None = None,
    begin: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Run a comparison into a folder, see `posenc.lab.study.run`; runs that are there already are not trained again. Returns
    what results.json holds; `render`, such as `posenc.report.page.page`, makes report.html of it. Both are written as soon
    as every encoding has a seed in common, with "running": true, and again with every further one. engine: where runs are
    trained, see `posenc.lab.engines`; by default in `workers` processes of this machine, one a core. Inside
    `posenc.lab.launcher.together` all processes call this alike, and they are the engine. A training is saved every
    `checkpoint_minutes`, 0 is never, and goes on from there.

    Raises:
        InputError: settings, data or a folder that do not serve, another run in the folder, or a loss that diverged.
        Interrupted: Ctrl-C before a single run had finished.
    """
    group = processes()
    if isinstance(group, Processes):
        comparison.check(corpus)
        if group.rank:
            return follow(group, corpus)
        engine = Together()
    study = Compare(comparison, corpus, Checkpoints(Path(directory).absolute(), checkpoint_minutes))
    pages = {"report.html": render} if render is not None else {}
    engine = engine or create("local", workers=workers)
    results = run(study, directory, engine=engine, progress=progress, command=command, pages=pages, begin=begin)
    if results["complete"]:  # else the others were stopped as well
        group.tell(results)
    return results


def names(texts: Sequence[str]) -> tuple[str, ...]:
    """Encodings from the command line: separated by spaces or commas. What follows a comma as a number does goes on with
    an option's list, as in m_rope:sections=16,8,8."""
    found: list[str] = []
    for text in texts:
        listing = False
        for piece in text.split(","):
            if listing and (not piece or re.match(r"[-+]?(\.?\d|inf|nan)", piece)):
                found[-1] += f",{piece}"
            elif piece:
                found.append(piece)
            listing = bool(found) and bool(re.search(r"=[^:+@/]*\d,?$", found[-1]))
    return tuple(found)
