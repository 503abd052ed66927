# SPDX-License-Identifier: Apache-2.0
"""Running many runs on an engine, each finished run stored at once."""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from posenc.engines import Engine, Interrupted, Work
from posenc.engines.work import Tick
from posenc.lab.checkpoint import Checkpoints
from posenc.lab.config import Run
from posenc.lab.measure import measure
from posenc.lab.store import Cell, Store
from posenc.lab.task import Corpus
from posenc.measuring.machine import flushed_denormals

Ticks = Callable[[Run, int], None]


def sweep(
    runs: Sequence[Run],
    corpus: Corpus,
    store: Store,
    engine: Engine,
    on_progress: Ticks = lambda run, done: None,
    on_finished: Callable[[Run, Cell], None] = lambda run, cell: None,
    checkpoints: Checkpoints | None = None,
) -> None:
    """Run what is not in the store yet. on_progress is told the work done since the last call.

    Raises:
        Interrupted: by Ctrl-C.
        InputError: a run's own (its loss diverged).
        RuntimeError: a worker died.
    """
    work = Work(partial(measured, checkpoints), corpus, runs, lambda run: f"{run.encoding}, seed {run.seed}")
    try:
        with closing(engine.run(work, lambda run, done, _: on_progress(run, done))) as results:
            for run, cell in results:
                store.save(run, cell)
                on_finished(run, cell)
    except KeyboardInterrupt:
        raise Interrupted from None


def measured(checkpoints: Checkpoints | None, corpus: Corpus, run: Run, tick: Tick) -> Cell:
    """One run, in a worker: `measure` with the settings of the processor that every worker has."""
    with flushed_denormals():
        return measure(run, corpus, tick, checkpoints)
