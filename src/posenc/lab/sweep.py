"""Running many runs: one-thread worker processes, one per core, each finished run stored at once."""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import Queue
from pathlib import Path

import torch

from posenc.files import scratch_folder
from posenc.lab.checkpoint import Checkpoints
from posenc.lab.config import Run
from posenc.lab.data import Corpus
from posenc.lab.measure import measure
from posenc.lab.store import Cell, Store

Ticks = Callable[[Run, int], None]


class Interrupted(Exception):
    """The sweep was stopped from the keyboard; what had finished is stored."""


def sweep(
    runs: Sequence[Run],
    corpus: Corpus,
    store: Store,
    workers: int,
    on_progress: Ticks = lambda run, done: None,
    on_finished: Callable[[Run, Cell], None] = lambda run, cell: None,
    checkpoints: Checkpoints | None = None,
) -> None:
    """Run what is not in the store yet. on_progress is told the work done since the last call.

    One thread per process: two threads in one process wait for each other at every small operation, while two
    processes use both cores fully.

    Raises:
        Interrupted: by Ctrl-C. InputError: a run's own (its loss diverged). RuntimeError: a worker died.
    """
    if not runs:
        return
    context = multiprocessing.get_context("spawn")
    ticks: Queue[tuple[int, int]] = context.Queue()
    with scratch_folder() as scratch:
        corpus.write(scratch)
        pool = ProcessPoolExecutor(min(workers, len(runs)), context, _start, (str(scratch), ticks))
        pending: dict[Future[Cell], Run] = {}
        try:
            pending = {pool.submit(_run, index, run, checkpoints): run for index, run in enumerate(runs)}
            while pending:
                finished, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                _drain(ticks, runs, on_progress)
                for future in finished:
                    run = pending.pop(future)
                    cell = future.result()
                    store.save(run, cell)
                    on_finished(run, cell)
        except KeyboardInterrupt:
            _kill(pool)
            raise Interrupted from None
        except BrokenProcessPool:
            _kill(pool)
            raise RuntimeError(
                "a worker process died (out of memory, or compare() called from a script without the guard "
                "if __name__ == '__main__'); finished runs are kept, the same command goes on from there"
            ) from None
        except BaseException:
            _kill(pool)
            raise
        pool.shutdown()


def _drain(ticks: "Queue[tuple[int, int]]", runs: Sequence[Run], on_progress: Ticks) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            index, done = ticks.get_nowait()
            on_progress(runs[index], done)


def _kill(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


# -------------------------------------------------------------------- in the worker

_worker: tuple[Corpus, "Queue[tuple[int, int]]"]


def _start(folder: str, ticks: "Queue[tuple[int, int]]") -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # steep biases underflow to denormals, which are slow and mean nothing here
    _worker = Corpus.read(Path(folder)), ticks


def _leave_with(parent: int) -> None:
    """A worker whose parent was killed has nobody to work for."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _run(index: int, run: Run, checkpoints: Checkpoints | None) -> Cell:
    corpus, ticks = _worker
    return measure(run, corpus, lambda done: ticks.put((index, done)), checkpoints)
