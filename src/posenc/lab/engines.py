# SPDX-License-Identifier: Apache-2.0
"""Where jobs are computed: in this process, or in worker processes of this machine."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import torch
import torch.multiprocessing  # tensors in shared memory, between processes

from posenc.errors import InputError
from posenc.lab.machine import cores, keep_freed_memory
from posenc.pretrained.scratch import scratch

__all__ = ["Engine", "InProcess", "ProcessPool", "Tick"]

Shared = TypeVar("Shared")
Job = TypeVar("Job")
Result = TypeVar("Result")
Results = Generator[tuple[Job, Result], None, None]


class Tick(Protocol):
    """Reports the work done since the last call, and what is done now."""

    def __call__(self, size: float, what: str = "") -> None: ...


def _silent(size: float, what: str = "") -> None:
    """No report."""


@dataclass(frozen=True)
class InProcess:
    """One job after the other, in this process."""

    name: ClassVar[str] = "here"
    workers: ClassVar[int] = 1

    def run(
        self, function: Callable[[Shared, Job, Tick], Result], shared: Shared, jobs: Sequence[Job], tick: Tick = _silent
    ) -> Results[Job, Result]:
        """Yields every job with `function(shared, job, tick)`, as soon as it is there.

        Raises:
            InputError: a job raised it.
        """
        for job in jobs:
            yield job, function(shared, job, tick)


@dataclass(frozen=True)
class ProcessPool:
    """Worker processes of one thread each: two threads of one process wait for each other at every small operation, while
    two processes use both cores fully. workers: how many; by default one per core."""

    name: ClassVar[str] = "local"
    workers: int = field(default_factory=cores)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError("must be at least 1", workers=self.workers)

    def run(
        self, function: Callable[[Shared, Job, Tick], Result], shared: Shared, jobs: Sequence[Job], tick: Tick = _silent
    ) -> Results[Job, Result]:
        """See `InProcess.run`; results come in no particular order, and without ticks. Workers unpickle all of it: the function is one of a
        module. What is closed, or meets an error or Ctrl-C, drops unfinished jobs and ends its workers:
        `with contextlib.closing(engine.run(...)) as results: for job, result in results: ...`.

        Raises:
            RuntimeError: a worker died.
        """
        if not jobs:
            return
        context = multiprocessing.get_context("spawn")
        with scratch() as folder:
            path = str(folder / "shared.pt")
            torch.save(shared, path)  # which workers map into their memory
            pool = ProcessPoolExecutor(min(self.workers, len(jobs)), context, _start, (path,))
            try:
                with _shielded():  # the first call starts all processes
                    pending = {pool.submit(_perform, function, job): job for job in jobs}
                while pending:
                    finished, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    # results first: none is lost to another job's error
                    for future in sorted(finished, key=lambda future: future.exception() is not None):
                        yield pending.pop(future), future.result()
            except BrokenProcessPool:
                raise RuntimeError(
                    "a worker process died (out of memory, or called from a script without the guard "
                    "if __name__ == '__main__'); what had finished is stored; the same command continues"
                ) from None
            finally:
                for process in list((pool._processes or {}).values()):  # Python 3.14 has terminate_workers
                    process.kill()
                pool.shutdown(cancel_futures=True)


Engine = InProcess | ProcessPool
"""Where the jobs of a study are computed."""

_shared: Any


def _start(shared: str) -> None:
    """In a new worker."""
    global _shared
    threading.Thread(target=_end_with_parent, args=(shared,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Windows, where nothing is `_shielded`
    torch.set_num_threads(1)
    keep_freed_memory()
    _shared = torch.load(shared, mmap=True, weights_only=False)


def _perform(function: Callable[[Any, Any, Tick], Any], job: Any) -> Any:
    return function(_shared, job, _silent)


def _end_with_parent(shared: str) -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        shutil.rmtree(os.path.dirname(shared), ignore_errors=True)  # which a killed parent leaves
        os._exit(1)


@contextlib.contextmanager
def _shielded() -> Iterator[None]:
    """A process that is started inside never receives Ctrl-C or SIGTERM, which shells, Slurm and `timeout` send to all
    processes of a job at once: the parent ends it. A signal to this process is delivered at the end."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # which processes inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
