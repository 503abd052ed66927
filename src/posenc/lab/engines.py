# SPDX-License-Identifier: Apache-2.0
"""Where jobs are computed: in this process, in worker processes of this machine, or on a Ray cluster."""

import contextlib
import importlib.util
import multiprocessing
import os
import platform
import queue
import signal
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
import torch.multiprocessing  # tensors in shared memory, between processes

from posenc.errors import InputError, unknown
from posenc.lab.machine import cores, keep_freed_memory
from posenc.lab.processes import die_with_parent, shielded
from posenc.pretrained.scratch import scratch
from posenc_version import version

__all__ = ["ENGINES", "Engine", "InProcess", "ProcessPool", "Ray", "Tick", "Work", "create"]

Shared = TypeVar("Shared")
Job = TypeVar("Job")
Result = TypeVar("Result")
Results = Generator[tuple[Job, Result], None, None]


class Tick(Protocol):
    """Reports the work done since the last call, and what is done now."""

    def __call__(self, size: float, what: str = "") -> None: ...


Ticks = Callable[[int, float, str], None]
"""The same for the job of an index."""


@dataclass(frozen=True)
class Work(Generic[Shared, Job, Result]):
    """function(shared, job, tick) for every job.

    Other processes unpickle all of it: the function is one of a module. name: what to call a job in an error. gpu: a job
    computes on a GPU. memory: bytes that a job takes, 0: unknown.
    """

    function: Callable[[Shared, Job, Tick], Result]
    shared: Shared
    jobs: Sequence[Job]
    name: Callable[[Job], str] = str
    gpu: bool = False
    memory: int = 0


class Engine(Protocol):
    """Computes jobs, and yields every result as soon as it is available, in no particular order.

    An engine that is closed, or meets an error or Ctrl-C, drops unfinished jobs and ends all of its processes:
    `with contextlib.closing(engine.run(work, ticks)) as results: for job, result in results: ...`.
    """

    name: ClassVar[str]
    in_process: ClassVar[bool]
    """Jobs run in the caller's process: what they share need not be picklable."""

    @property
    def workers(self) -> int | None:
        """Jobs at a time; None: the cluster decides."""

    def run(self, work: Work[Shared, Job, Result], ticks: Ticks = lambda *_: None) -> Results[Job, Result]:
        """Every job with its result.

        Raises:
            InputError: a job raised it, or an engine that cannot be reached.
            RuntimeError: a worker died.
        """


@dataclass(frozen=True)
class InProcess:
    """One job after the other, in this process."""

    name: ClassVar[str] = "here"
    in_process: ClassVar[bool] = True
    workers: ClassVar[int] = 1

    def run(self, work: Work[Shared, Job, Result], ticks: Ticks = lambda *_: None) -> Results[Job, Result]:
        """See `Engine`."""
        for index, job in enumerate(work.jobs):
            yield job, work.function(work.shared, job, _tick(ticks, index))


def _tick(report: Ticks, index: int) -> Tick:
    return lambda size, what="": report(index, size, what)


# -------------------------------------------------------------------- processes of this machine


@dataclass(frozen=True)
class ProcessPool:
    """Worker processes of one thread each: two threads of one process wait for each other at every small operation, while
    two processes use both cores fully. workers: how many; by default one per core."""

    name: ClassVar[str] = "local"
    in_process: ClassVar[bool] = False
    workers: int = field(default_factory=cores)

    def __post_init__(self) -> None:
        _check_workers(self.workers)

    def run(self, work: Work[Shared, Job, Result], ticks: Ticks = lambda *_: None) -> Results[Job, Result]:
        """See `Engine`. The death of a worker ends the run."""
        if not work.jobs:
            return
        context = multiprocessing.get_context("spawn")
        reports = context.Queue()
        with scratch() as folder:
            shared = str(folder / "shared.pt")
            torch.save(work.shared, shared)  # which workers map into their memory
            pool = ProcessPoolExecutor(min(self.workers, len(work.jobs)), context, _start, (shared, reports))
            try:
                with shielded():  # the first call starts all processes
                    pending = {pool.submit(_perform, work.function, i, job): job for i, job in enumerate(work.jobs)}
                while pending:
                    finished, _ = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    with contextlib.suppress(queue.Empty):
                        while True:
                            ticks(*reports.get_nowait())
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


_worker: tuple[Any, Any]


def _start(shared: str, reports: Any) -> None:
    """In a new worker."""
    global _worker
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Windows, where nothing is `shielded`
    torch.set_num_threads(1)
    keep_freed_memory()
    _worker = torch.load(shared, mmap=True, weights_only=False), reports


def _perform(function: Callable[[Any, Any, Tick], Any], index: int, job: Any) -> Any:
    shared, reports = _worker
    return function(shared, job, _tick(lambda *report: reports.put(report), index))


# -------------------------------------------------------------------- a Ray cluster

RETRIES = 3
"""How often Ray restarts a job whose worker died."""


@dataclass(frozen=True)
class Ray:
    """Tasks of Ray, each with the same resources; work is reported when a job is done.

    address: HOST:PORT of a cluster, or "auto" for the one that runs on this machine; None: RAY_ADDRESS, or a cluster on
    this machine for the time of the run. workers: CPUs of such a cluster; by default one per core.
    cpus_per_cell: a job's CPUs, and its threads. gpus_per_cell: a job's share of a GPU, where it computes on one.
    If the program has called ray.init(), that connection is used.

    Raises:
        InputError: Ray is not installed, or an invalid argument.
    """

    name: ClassVar[str] = "ray"
    in_process: ClassVar[bool] = False
    address: str | None = None
    workers: int | None = None
    cpus_per_cell: int = 1
    gpus_per_cell: float = 1.0

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise InputError("needs Ray, which is not installed: pip install 'posenc[ray]'", engine="ray")
        object.__setattr__(self, "address", self.address or os.environ.get("RAY_ADDRESS") or "local")
        if self.address == "local":
            object.__setattr__(self, "workers", cores() if self.workers is None else self.workers)
        elif self.workers is not None:
            raise InputError(
                f"the cluster at {self.address} decides", "give cpus_per_cell instead", workers=self.workers
            )
        _check_workers(self.workers)
        if self.cpus_per_cell < 1:
            raise InputError("must be at least 1", cpus_per_cell=self.cpus_per_cell)
        if not (0 < self.gpus_per_cell <= 1 or (self.gpus_per_cell > 1 and self.gpus_per_cell % 1 == 0)):
            raise InputError("must be a share such as 0.25, or an integer", gpus_per_cell=self.gpus_per_cell)

    def run(self, work: Work[Shared, Job, Result], ticks: Ticks = lambda *_: None) -> Results[Job, Result]:
        """See `Engine`. A job whose worker dies restarts on another, at most RETRIES times; then the run ends."""
        if not work.jobs:
            return
        with self._connected():
            import ray

            perform: Any = ray.remote(**self._resources(work), max_retries=RETRIES)(_perform_on_ray)
            shared = ray.put((work.function, work.shared, self.cpus_per_cell, versions()))
            pending = {perform.remote(shared, job): index for index, job in enumerate(work.jobs)}
            try:
                while pending:
                    for reference in ray.wait(list(pending), timeout=0.5)[0]:
                        index = pending.pop(reference)
                        try:
                            size, result = ray.get(reference)
                        except ray.exceptions.RayTaskError as error:
                            cause = getattr(error, "cause", None)  # the job's error without Ray's wrapping
                            if isinstance(cause, Exception) and not isinstance(cause, ray.exceptions.RayError):
                                raise cause from None
                            raise RuntimeError(str(error)) from None  # such as what a worker cannot import
                        except ray.exceptions.RayError as error:
                            raise RuntimeError(
                                f"{work.name(work.jobs[index])}: its worker died {RETRIES + 1} times, or the cluster "
                                f"failed ({type(error).__name__}); what had finished is stored; the same command continues"
                            ) from None
                        ticks(index, size, "")
                        yield work.jobs[index], result
            finally:
                with contextlib.suppress(ray.exceptions.RayError):
                    for reference in pending:
                        ray.cancel(reference, force=True)

    @contextlib.contextmanager
    def _connected(self) -> Generator[None, None, None]:
        import ray

        if ray.is_initialized():
            yield
            return
        options: dict[str, Any] = {"address": self.address, "logging_level": "ERROR", "log_to_driver": False}
        if self.address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options |= {"num_cpus": self.workers, "include_dashboard": False}
        else:
            options |= {"runtime_env": {"py_modules": [str(Path(__file__).parents[1])]}}
        terminate = signal.getsignal(signal.SIGTERM)
        try:
            if self.address not in ("local", "auto"):
                host, _, port = str(self.address).rpartition(":")
                # Ray itself retries for minutes, and then ends the process
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            ray.init(**options)
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(
                f"no Ray cluster answers there: {error}",
                "write HOST:PORT of one that is up (ray start --head), or auto",
                address=self.address,
            ) from error
        try:
            if terminate is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, terminate)  # Ray's own ends the process without a report
            yield
        finally:
            ray.shutdown()  # of a cluster that runs elsewhere this ends our connection alone

    def _resources(self, work: Work[Any, Any, Any]) -> dict[str, Any]:
        """What a job needs; refused where no machine of the cluster has that much, since it would wait for ever."""
        import ray

        needed = {"CPU": float(self.cpus_per_cell), "GPU": self.gpus_per_cell * work.gpu, "memory": float(work.memory)}
        nodes: list[Any] = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        if not any(all(node.get(what, 0) >= amount for what, amount in needed.items()) for node in nodes):
            raise InputError(
                f"no machine of the cluster has what a job needs: {needed}",
                "add machines, or give a smaller cpus_per_cell or gpus_per_cell, or shorter inputs",
                engine="ray",
            )
        options = {"num_cpus": needed["CPU"], "num_gpus": needed["GPU"]}
        return options | ({"memory": work.memory} if work.memory else {})


def versions() -> str:
    """What must be the same on every machine for the same numbers."""
    python = ".".join(platform.python_version_tuple()[:2])
    return f"posenc {version()}, torch {torch.__version__}, Python {python}"


def _perform_on_ray(shared: Any, job: Any) -> tuple[float, Any]:
    function, common, threads, expected = shared
    if versions() != expected:
        raise InputError(
            f"the worker on {platform.node()} has {versions()} instead of {expected}, and would measure something else",
            "install the same versions on every machine",
            engine="ray",
        )
    torch.set_num_threads(threads)
    sizes: list[float] = []
    result = function(common, job, lambda size, what="": sizes.append(size))
    return sum(sizes), result


# -------------------------------------------------------------------- by name

ENGINES: dict[str, type[InProcess | ProcessPool | Ray]] = {"here": InProcess, "local": ProcessPool, "ray": Ray}


def create(name: str, **options: Any) -> Engine:
    """An engine by name: "here", "local" (workers) or "ray" (address, workers, cpus_per_cell, gpus_per_cell).

    Options that are None are ignored.

    Raises:
        InputError: an unknown engine, an option that another one takes, or a package that is missing.
    """
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    options = {option: value for option, value in options.items() if value is not None}
    for option, value in options.items():
        takers = [known for known, engine in ENGINES.items() if option in {field.name for field in fields(engine)}]
        if name not in takers:
            raise InputError(
                f"is an option of engine {' and '.join(takers)}",
                f"give it with engine={takers[0]}",
                argument=option,
                value=value,
            )
    return ENGINES[name](**options)


def _check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise InputError("must be at least 1", workers=workers)
