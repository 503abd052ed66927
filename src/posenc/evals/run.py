# SPDX-License-Identifier: Apache-2.0
"""An evaluation from its settings to results.json: checked first, measured on an engine, every finished cell kept."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from posenc.checks import checked
from posenc.engines import Engine, Here, Interrupted, Work
from posenc.evals.config import NONE, Cell, planned, preset_of, settings_of
from posenc.evals.job import Job
from posenc.evals.recipe import Recipe, measured_elsewhere, measured_here
from posenc.evals.results import numbers
from posenc.evals.store import Measured, Store
from posenc.evals.wording import answer, finished, limits
from posenc.measuring.machine import describe
from posenc.pretrained.load import chosen_because
from posenc.pretrained.models import check_model, unwrap

__all__ = ["Interrupted", "Progress", "evaluate"]

SCHEMA = 1


@dataclass(frozen=True)
class Progress:
    """What an evaluation tells about its course: hooks that default to silence. Work is counted in tokens; `told` is given
    a sentence on the cells of one task, method, length and seed that have just finished, or on where the model looks."""

    planned: Callable[[int, int, int], None] = lambda cells, kept, work: None
    advanced: Callable[[str, int], None] = lambda what, work: None
    finished: Callable[[Cell], None] = lambda cell: None
    told: Callable[[str], None] = lambda found: None


@checked
def evaluate(
    model: Any,
    tokenizer: Any,
    *,
    preset: str | None = None,
    directory: str | Path | None = None,
    name: str = "",
    engine: Engine | None = None,
    attention: bool = True,
    progress: Progress = Progress(),
    command: str = "",
    render: Callable[[dict[str, Any]], str] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Measure what a model finds in long texts, as it is and under methods that extend it.

    Args:
        model: a causal language model of transformers.
        tokenizer: its own.
        preset: see `posenc.evals.config.PRESETS`; None: the settings say it all.
        directory: finished cells are kept there, and those that are there already are not measured again;
            results.json comes beside them, and report.html where `render` makes it. None: nothing is written.
        name: what to call the model; also what `posenc.load` takes where an engine's workers load it themselves.
        engine: where cells are measured, see `posenc.engines`; unless there is one, here, with the model as it is.
        attention: also say where the model looks, see `posenc.evals.attention`.
        settings: see `posenc.evals.config.Settings`.

    Returns:
        What results.json holds.

    Raises:
        InputError: settings that do not serve, or a model that workers elsewhere cannot load, before anything is
            measured.
        Interrupted: Ctrl-C before a single cell had finished; afterwards what was measured is reported, with
            "complete": false.

    The model is left as it was.
    """
    check_model(model)
    engine = engine or Here()
    chosen = settings_of(preset, **settings)
    job = Job(model, tokenizer, chosen, name or str(getattr(unwrap(model).config, "name_or_path", "")))
    job.check()
    store = None if directory is None else Store(directory, job.shared())
    with nullcontext() if store is None else store.writing(command or "an evaluation from Python", "eval", SCHEMA):
        return _run(job, engine, store, attention, progress, command, render)


def _run(
    job: Job,
    engine: Engine,
    store: Store | None,
    attention: bool,
    progress: Progress,
    command: str,
    render: Callable[[dict[str, Any]], str] | None,
) -> dict[str, Any]:
    """An evaluation in a folder that is ours."""
    chosen = job.settings
    groups = planned(chosen, job.tasks, job.trained_length, job.exact)
    cells = [cell for group in groups for cell in group]
    stored = {cell: None if store is None else store.load(cell) for cell in cells}
    done = {cell: measured for cell, measured in stored.items() if measured is not None}
    kept, started = len(done), time.perf_counter()
    todo = [[cell for cell in group if cell not in done] for group in groups]
    look_work = job.look_work() if attention else 0
    progress.planned(len(cells), kept, sum(map(job.work, todo)) + look_work)
    looks, refused = dict[str, Any](), dict[str, str]()
    work = _work(job, engine, [tuple(group) for group in todo if group])
    try:
        with closing(engine.run(work, lambda group, size, what: progress.advanced(what, size))) as results_of:
            for group, found in results_of:
                for cell, outcome in found.items():
                    if store is not None:
                        store.save(cell, outcome)
                    done[cell] = outcome
                    progress.finished(cell)
                progress.told(finished(job.tasks[group[0].task], found))
        if attention:
            job.look(store, looks, refused, lambda size, what="": progress.advanced(what, size), progress.told)
    except KeyboardInterrupt:
        if store is not None:  # it may have come after a cell was written and before it was counted
            late = {cell: store.load(cell) for cell in cells if cell not in done}
            done |= {cell: outcome for cell, outcome in late.items() if outcome is not None}
        if not done:
            raise Interrupted from None
    measured = {cell: done[cell] for cell in cells if cell in done}
    told = numbers(chosen, job.tasks, measured, job.trained_length, job.exact)
    for row in told["cost"]:
        row["cache_bytes_per_token"] = job.cache_bytes[row["method"]]
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "eval",
        "complete": len(done) == len(cells),
        "cells": {"planned": len(cells), "finished": len(done), "kept_from_before": kept},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - started, 1),
        "command": command,
        "model": job.model_facts() | {"precision": chosen_because(job.model)},
        "settings": {
            "preset": preset_of(chosen),
            **asdict(chosen),
            "tasks": list(job.tasks),
            "batch_size": job.batch_size,
        },
        "machine": describe(job.device) | job.versions() | {"engine": engine.name, "workers": engine.workers},
        "answer": [],
        "limits": [],
        **told,
        "exact_tokens": {method: job.exact.get(method, 0) for method in chosen.methods if method != NONE},
        "attention": looks or None,
        "attention_refused": refused,
        "set_aside": [] if store is None else store.set_aside(),
    }
    results |= {"answer": answer(results), "limits": limits(results)}
    if store is not None:
        store.write("results.json", json.dumps(results, indent=1, allow_nan=False))
        if render is not None:
            store.write("report.html", render(results))
    return results


def _work(
    job: Job, engine: Engine, groups: list[tuple[Cell, ...]]
) -> Work[Any, tuple[Cell, ...], dict[Cell, Measured]]:
    """Groups of cells as an engine takes them: with the model itself, or with how to load it."""
    if engine.in_process:
        return Work(measured_here, job, groups, named)
    gpu = job.device.type == "cuda"
    return Work(
        measured_elsewhere, Recipe.of(job), groups, named, gpu, 0 if gpu else job.weight_bytes() + job.reading_bytes()
    )


def named(group: Sequence[Cell]) -> str:
    """What a group is called: the cells of one task, method, length and seed."""
    return str(replace(group[0], depth=None))
