# SPDX-License-Identifier: Apache-2.0
"""The main job: train every encoding on the same data, test past the training length or size, write what was measured."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

import posenc
from posenc.encoding import PerLayer
from posenc.engines import Engine, Interrupted, Pace, create
from posenc.errors import InputError, first_line
from posenc.lab.checkpoint import Checkpoints
from posenc.lab.config import Recipe, Run
from posenc.lab.launcher import Together, follow
from posenc.lab.measure import work
from posenc.lab.parallel import Processes, processes
from posenc.lab.store import Cell, Store
from posenc.lab.sweep import sweep
from posenc.lab.task import Corpus
from posenc.lab.tasks import task_of
from posenc.lab.train import build
from posenc.measuring.machine import cpu
from posenc.spec import split_list

__all__ = ["Comparison", "Progress", "compare"]

SCHEMA = 1
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
            raise InputError(f"--seeds {self.seeds}: must lie between 1 and {MOST_SEEDS}")
        if not self.encodings:
            raise InputError("--encodings: name at least one")
        twice = {e for e in self.encodings if self.encodings.count(e) > 1}
        if twice:
            raise InputError(f"--encodings: {', '.join(sorted(twice))} is named twice")
        task_of(self.settings).check(corpus, self.settings)
        for encoding in self.encodings:
            try:
                _try(Run.of(encoding, 0, self.settings, corpus.digest))
            except (ValueError, TypeError, RuntimeError, IndexError) as error:
                raise InputError(f"--encodings {encoding}: {first_line(error)}") from None


@torch.no_grad()
def _try(run: Run) -> None:
    """One pass of every arm over an example of every condition, so that nothing fails after an hour of training."""
    task, model = task_of(run.settings), build(run)
    parts, layers = model.encoding, run.settings.num_layers
    if isinstance(parts, PerLayer) and len(list(parts)) > layers:
        raise InputError(
            f"names {len(list(parts))} layers, the model has {layers}: pass --num-layers {len(list(parts))}"
        )
    for arm in task.arms(run.encoding, model.encoding, run.settings):
        for condition in run.settings.conditions:
            model.encoding = arm.at(condition)
            with torch.random.fork_rng(devices=[]):
                model(task.example(run.settings, condition), arm.positions(condition))


@dataclass(frozen=True)
class Progress:
    """What a comparison tells about its course: hooks that default to silence.

    estimated: how many seconds it will take, once a few steps have shown it. reported: results of some seeds, of how
    many, are written.
    """

    planned: Callable[[int, int, int], None] = lambda runs, kept, work: None
    advanced: Callable[[Run, int], None] = lambda run, work: None
    finished: Callable[[Run, Cell], None] = lambda run, cell: None
    estimated: Callable[[float], None] = lambda seconds: None
    reported: Callable[[int, int], None] = lambda seeds, planned: None


def compare(
    comparison: Comparison,
    corpus: Corpus,
    directory: str | Path,
    *,
    workers: int | None = None,
    engine: Engine | None = None,
    checkpoint_minutes: float = 0,
    progress: Progress = Progress(),
    command: str = "",
    render: Callable[[dict[str, Any]], str] | None = None,
) -> dict[str, Any]:
    """Run a comparison into a folder; finished runs that are there already are kept. Returns what results.json holds;
    `render`, such as `posenc.report.page.page`, makes report.html of it; both are written as soon as every encoding has a
    seed in common, with "running": true, and again with every further one. engine: where runs are trained, see
    `posenc.engines`; unless there is one, in `workers` processes of this machine, one a core. Inside
    `posenc.lab.launcher.together` all processes call this alike, and they are the engine. Trainings are kept on their
    way every `checkpoint_minutes`, 0 is never. Files that are there and cannot be used are set aside with a warning.

    Raises:
        InputError: settings, data or folder that cannot serve, another run in the folder, or a loss that diverged.
        Interrupted: Ctrl-C before a single run had finished; afterwards what was measured is reported, with
        "complete": false.
    """
    comparison.check(corpus)
    group = processes()
    if isinstance(group, Processes):
        if group.rank:
            return follow(group, corpus)
        engine = Together()
    engine = engine or create("local", workers=workers)
    store, checkpoints = Store(directory), Checkpoints(Path(directory).absolute(), checkpoint_minutes)
    with store.writing(command or "a comparison from Python", "compare", SCHEMA):
        results = _run(comparison, corpus, store, engine, checkpoints, progress, command, render)
    if results["complete"]:  # else the others were stopped as well
        group.tell(results)
    return results


def _run(
    comparison: Comparison,
    corpus: Corpus,
    store: Store,
    engine: Engine,
    checkpoints: Checkpoints,
    progress: Progress,
    command: str,
    render: Callable[[dict[str, Any]], str] | None,
) -> dict[str, Any]:
    """A comparison in a folder that is ours."""
    runs, settings = comparison.runs(corpus), comparison.settings
    task = task_of(settings)
    cells = {run: cell for run in runs if (cell := store.load(run)) is not None}
    todo = [run for run in runs if run not in cells]
    for run in cells:
        checkpoints.remove(run)  # of a run that was killed after its cell was written
    total = sum(map(work, todo))
    pace, estimated = Pace(total), None
    progress.planned(len(runs), len(cells), total)

    def advanced(run: Run, size: int) -> None:
        nonlocal estimated
        pace.tick(run, size)
        progress.advanced(run, size)
        if estimated is None and (left := pace.left()) is not None:
            estimated = time.perf_counter() - started + left
            progress.estimated(estimated)

    def write(cells: dict[Run, Cell], running: bool) -> dict[str, Any]:
        rows = task.ranked(cells, settings)
        results = {
            "schema": SCHEMA,
            "kind": "compare",
            "task": task.name,
            "complete": len(cells) == len(runs),
            "running": running,
            "runs": {"planned": len(runs), "finished": len(cells), "kept_from_before": len(runs) - len(todo)},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - started, 1),
            "estimated_seconds": None if estimated is None else round(estimated, 1),
            "command": command,
            "settings": settings.said() | {"encodings": list(comparison.encodings)},
            "seeds": list(range(comparison.seeds)),
            "seeds_finished": comparison.seeds_in(cells),
            "data": corpus.facts(),
            "machine": machine(engine),
            "answer": task.answer(rows, corpus, settings),
            **task.numbers(rows, corpus, settings),
            "limits": task.limits(rows, corpus, settings),
            "cells": {run.id: {"encoding": run.encoding, "seed": run.seed} for run in cells},
            "set_aside": store.set_aside(),
        }
        store.write("results.json", json.dumps(results, indent=1))
        if render is not None:
            store.write("report.html", render(results))
        return results

    reported = comparison.seeds_in(cells)

    def keep(run: Run, cell: Cell) -> None:
        nonlocal reported
        cells[run] = cell
        checkpoints.remove(run)
        store.warn()
        progress.finished(run, cell)
        if reported < (seeds := comparison.seeds_in(cells)) < comparison.seeds:
            reported = seeds
            write({run: cells[run] for run in runs if run.seed < seeds}, running=True)
            progress.reported(seeds, comparison.seeds)

    started = time.perf_counter()
    try:
        sweep(todo, corpus, store, engine, advanced, keep, checkpoints)
    except Interrupted:  # it may have come after a cell was written and before it was counted
        cells |= {run: cell for run in todo if run not in cells and (cell := store.load(run)) is not None}
        if not cells:
            raise
    return write({run: cells[run] for run in runs if run in cells}, running=False)


def machine(engine: Engine) -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "posenc": posenc.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "engine": engine.name,
        "workers": engine.workers,
    }


def names(texts: Sequence[str]) -> tuple[str, ...]:
    """Encodings from the command line: separated by spaces or commas."""
    return tuple(name for text in texts for name in split_list(text))
