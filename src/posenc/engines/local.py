# SPDX-License-Identifier: Apache-2.0
"""This process, or worker processes of this machine: one thread each, so that they do not wait for each other."""

import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeAlias, runtime_checkable

import torch

from posenc.engines.work import Result, Shared, Task, Tick, Ticks, Work, silent
from posenc.errors import InputError
from posenc.files import scratch_folder
from posenc.measuring.machine import cores
from posenc.measuring.memory import keep_freed


@dataclass(frozen=True)
class Here:
    """One task after the other, in this process."""

    name: ClassVar[str] = "here"
    in_process: ClassVar[bool] = True
    workers: ClassVar[int] = 1

    def run(
        self, work: Work[Shared, Task, Result], on_tick: Ticks[Task] = silent
    ) -> Generator[tuple[Task, Result], None, None]:
        """See `posenc.engines.Engine`."""
        for task in work.tasks:
            yield task, work.function(work.shared, task, _of(task, on_tick))


def _of(task: Task, on_tick: Ticks[Task]) -> Tick:
    return lambda size, what="": on_tick(task, size, what)


@dataclass(frozen=True)
class Processes:
    """Worker processes, one thread each: two threads in one process wait for each other at every small operation,
    while two processes use both cores fully. workers: how many; one a core unless said otherwise."""

    name: ClassVar[str] = "local"
    in_process: ClassVar[bool] = False
    workers: int = field(default_factory=cores)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"--workers {self.workers}: must be at least 1")

    def run(
        self, work: Work[Shared, Task, Result], on_tick: Ticks[Task] = silent
    ) -> Generator[tuple[Task, Result], None, None]:
        """See `posenc.engines.Engine`. A worker's death is the end of all: it takes their common queue with it."""
        if not work.tasks:
            return
        context = multiprocessing.get_context("spawn")
        ticks: _Queue = context.Queue()
        with scratch_folder() as scratch:
            read = _written(work.shared, scratch)
            count = min(self.workers, len(work.tasks))
            pool = ProcessPoolExecutor(count, context, _start, (read, str(scratch), ticks))
            try:
                pending: dict[Future[Result], Task] = {
                    pool.submit(_perform, work.function, index, task): task for index, task in enumerate(work.tasks)
                }
                while pending:
                    finished, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    for index, size, what in _drained(ticks):
                        on_tick(work.tasks[index], size, what)
                    # results first: none that is there is lost to another task's error
                    for future in sorted(finished, key=lambda future: future.exception() is not None):
                        yield pending.pop(future), future.result()
            except BrokenProcessPool:
                _kill(pool)
                raise RuntimeError(
                    "a worker process died (out of memory, or called from a script without the guard "
                    "if __name__ == '__main__'); what had finished is kept, the same command goes on from there"
                ) from None
            except BaseException:
                _kill(pool)
                raise
            pool.shutdown()


_Queue: TypeAlias = "Queue[tuple[int, int, str]]"


@runtime_checkable
class _InFolder(Protocol):
    """What is better mapped into the memory of every process than copied."""

    def write(self, folder: Path) -> None: ...

    @classmethod
    def read(cls, folder: Path) -> Self: ...


def _written(shared: object, folder: Path) -> Callable[[Path], Any]:
    """Put what tasks share into a folder; returns what reads it."""
    if isinstance(shared, _InFolder):
        shared.write(folder)
        return type(shared).read
    (folder / "shared").write_bytes(pickle.dumps(shared))
    return _unpickled


def _unpickled(folder: Path) -> Any:
    return pickle.loads((folder / "shared").read_bytes())


def _drained(ticks: _Queue) -> Iterator[tuple[int, int, str]]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield ticks.get_nowait()


def _kill(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


# -------------------------------------------------------------------- in the worker

_worker: tuple[Any, _Queue]


def _start(read: Callable[[Path], Any], folder: str, ticks: _Queue) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    keep_freed()
    _worker = read(Path(folder)), ticks


def _leave_with_parent() -> None:
    """A worker whose parent was killed, be it while this one was still starting, has nobody to work for."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _perform(function: Callable[[Any, Any, Tick], Result], index: int, task: Any) -> Result:
    shared, ticks = _worker
    return function(shared, task, lambda size, what="": ticks.put((index, size, what)))
