# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster: one that runs already, or one on this machine that is started for the work and stopped after it."""

import contextlib
import importlib.util
import os
import platform
import re
import socket
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

import posenc
from posenc.engines.work import Result, Shared, Task, Tick, Ticks, Work, silent
from posenc.errors import InputError
from posenc.measuring.machine import cores

RETRIES = 3
"""How often a task is begun anew whose worker died. Ray's own max_retries is not used: it does not count the deaths by
lack of memory, which have a limit of the cluster's (task_oom_retries), and that can be none."""
ANSWER_SECONDS = 10
"""How long a cluster may take to answer at its address; Ray itself goes on asking for minutes."""
TICK_SECONDS = 0.5


@dataclass(frozen=True)
class Ray:
    """Tasks of Ray, each with the resources that it asks for.

    address: HOST:PORT of a cluster, or "auto" for the one that runs on this machine; None: what RAY_ADDRESS says, or
    a cluster of this process's own. workers: CPUs of such an own cluster; one a core unless said otherwise.
    cpus_per_cell: a task's CPUs, and its threads. gpus_per_cell: a task's share of a GPU, where it computes on one.
    A program that has called ray.init() keeps its connection: it is used as it is.

    Raises:
        InputError: Ray is not installed, or a value that does not serve.
    """

    name: ClassVar[str] = "ray"
    in_process: ClassVar[bool] = False
    address: str | None = None
    workers: int | None = None
    cpus_per_cell: int = 1
    gpus_per_cell: float = 1.0
    _own: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise InputError("--engine ray: needs Ray, which is not installed: pip install 'posenc[ray]'")
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        object.__setattr__(self, "_own", address == "local")
        object.__setattr__(self, "address", address)
        if address.startswith("ray://"):
            raise InputError(
                f"--address {address}: posenc does not run through Ray Client; start it on a machine of the cluster "
                "with --address auto"
            )
        host, _, port = address.rpartition(":")
        if address not in ("local", "auto") and not (host and port.isdigit() and 0 < int(port) < 65536):
            raise InputError(f"--address {address}: write HOST:PORT, such as 10.0.0.1:6379, or auto")
        if self.workers is not None and not self._own:
            raise InputError(
                f"--workers {self.workers}: the cluster at {address} does as many cells at a time as it has room for; "
                "leave it out, or say --cpus-per-cell"
            )
        if self._own:
            object.__setattr__(self, "workers", cores() if self.workers is None else self.workers)
        if self.workers is not None and self.workers < 1:
            raise InputError(f"--workers {self.workers}: must be at least 1")
        if self.cpus_per_cell < 1:
            raise InputError(f"--cpus-per-cell {self.cpus_per_cell}: must be at least 1")
        if not (
            0 < self.gpus_per_cell <= 1 or (self.gpus_per_cell > 1 and self.gpus_per_cell == int(self.gpus_per_cell))
        ):
            raise InputError(f"--gpus-per-cell {self.gpus_per_cell}: must be a share such as 0.25, or a whole number")

    def run(
        self, work: Work[Shared, Task, Result], on_tick: Ticks[Task] = silent
    ) -> Generator[tuple[Task, Result], None, None]:
        """See `posenc.engines.Engine`. A task whose worker dies is begun anew on another, at most RETRIES times; then
        the others go on to their end, and the error names it."""
        if not work.tasks:
            return
        with self._connected():
            yield from _Driver(work, self._resources(work), self.cpus_per_cell, on_tick).results()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        import ray

        if ray.is_initialized():
            yield
            return
        if self.address not in ("local", "auto"):
            _check_answers(str(self.address))
        quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        try:
            if self._own:
                with _environment(RAY_USAGE_STATS_ENABLED="0"):
                    ray.init(address="local", num_cpus=self.workers, include_dashboard=False, **quiet)
            else:
                shipped = {"py_modules": [str(Path(posenc.__file__).parent)]}
                ray.init(address=self.address, runtime_env=shipped, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            ray.shutdown()
            reason = " ".join(str(error).split())
            raise InputError(f"--address {self.address}: no Ray cluster that this Ray can use: {reason}") from None
        except BaseException:
            ray.shutdown()
            raise
        try:
            yield
        finally:
            ray.shutdown()  # of what runs elsewhere this ends our connection alone

    def _resources(self, work: Work[Shared, Task, Result]) -> dict[str, float]:
        """What a task asks for.

        Raises:
            InputError: no machine of the cluster has that much, so that it would wait for ever.
        """
        asked = {"CPU": float(self.cpus_per_cell), "GPU": self.gpus_per_cell * work.gpu, "memory": float(work.memory)}
        nodes = [node["Resources"] for node in _nodes() if node["Alive"]]
        if not any(all(node.get(what, 0) >= amount for what, amount in asked.items()) for node in nodes):
            most = {what: max((node.get(what, 0) for node in nodes), default=0) for what in asked}
            raise InputError(
                f"--engine ray: a cell asks for {_amounts(asked)}, and no machine of the cluster has that much (the "
                f"most there is of each: {_amounts(most)}); add machines, or ask for less with --cpus-per-cell, "
                "--gpus-per-cell or shorter texts"
            )
        return asked


def _nodes() -> list[dict[str, Any]]:
    import ray

    nodes: Any = ray.nodes  # untyped
    return nodes()


def _amounts(resources: dict[str, float]) -> str:
    memory = resources["memory"] / 2**30
    return f"{resources['CPU']:g} CPU, {resources['GPU']:g} GPU, {memory:.1f} GiB of memory"


def _check_answers(address: str) -> None:
    """Greet the server at an address as gRPC does, and wait for its greeting.

    Raises:
        InputError: nothing answers in time, or not in that way.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            # the preface of HTTP/2 with empty settings (RFC 9113, 3.4); the fourth byte of the answer is its kind, 4
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            if connection.recv(9)[3:4] == b"\x04":
                return
            reason = "what answers there is not Ray"
    except TimeoutError:
        reason = f"no answer within {ANSWER_SECONDS} s"
    except OSError as error:
        reason = error.strerror or str(error)
    raise InputError(f"--address {address}: {reason}; is the cluster up (ray start --head), and this its port?")


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Driver:
    """Some work on its way, seen from the process that wants it."""

    def __init__(self, work: Work[Any, Any, Any], asked: dict[str, float], threads: int, on_tick: Ticks[Any]) -> None:
        import ray

        self.work, self.on_tick = work, on_tick
        options: dict[str, Any] = {"num_cpus": asked["CPU"], "num_gpus": asked["GPU"], "max_retries": 0}
        if asked["memory"]:
            options["memory"] = int(asked["memory"])
        self.perform = ray.remote(**options)(_perform)
        self.order = ray.put(_Order(work.function, work.shared, threads, versions()))
        self.board: Any = ray.remote(num_cpus=0)(_Board).remote()
        self.told = [0] * len(work.tasks)
        self.deaths = [0] * len(work.tasks)

    def results(self) -> Generator[tuple[Any, Any], None, None]:
        import ray

        pending = {self._submit(index): index for index in range(len(self.work.tasks))}
        try:
            while pending:
                finished, _ = ray.wait(list(pending), timeout=TICK_SECONDS)
                self._look_at_board()
                for reference in finished:
                    index = pending.pop(reference)
                    found = self._result(reference, index)
                    if found is not None:
                        self._tick(index, found[0])
                        yield self.work.tasks[index], found[1]
                    elif self.deaths[index] <= RETRIES:
                        pending[self._submit(index)] = index
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)
            ray.kill(self.board)
        lost = [
            self.work.name(task) for task, deaths in zip(self.work.tasks, self.deaths, strict=True) if deaths > RETRIES
        ]
        if lost:
            raise RuntimeError(
                f"the worker of {', '.join(lost)} died {RETRIES + 1} times (out of memory, or killed); everything else "
                "is kept, the same command goes on from there"
            )

    def _submit(self, index: int) -> Any:
        task = self.work.tasks[index]
        return self.perform.options(name=self.work.name(task)).remote(self.order, index, task, self.board)

    def _result(self, reference: Any, index: int) -> tuple[int, Any] | None:
        """How much a task did, and its result; None where its worker died."""
        import ray.exceptions

        try:
            done: tuple[int, Any] = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except ray.exceptions.RayError:  # the worker, its machine, or what it had to give is gone
            self.deaths[index] += 1
            return None
        return done

    def _look_at_board(self) -> None:
        import ray.exceptions

        with contextlib.suppress(
            ray.exceptions.RayError
        ):  # a board that is gone takes nothing but the progress with it
            for index, (total, what) in ray.get(self.board.new.remote(), timeout=ANSWER_SECONDS).items():
                self._tick(index, total, what)

    def _tick(self, index: int, total: int, what: str = "") -> None:
        """A task that is begun anew tells nothing until it is where it was."""
        if total > self.told[index]:
            self.on_tick(self.work.tasks[index], total - self.told[index], what)
            self.told[index] = total


def _cause(error: Any) -> BaseException:
    """What went wrong in a task, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, InputError):
        return cause
    said = " ".join(str(cause or error).split())
    missing = re.search(r"No module named '\S+'", said)
    if missing:
        return InputError(
            f"--engine ray: a worker cannot import what a cell needs; every machine needs "
            f"the packages of this one: {missing[0]}"
        )
    return cause if isinstance(cause, Exception) else RuntimeError(said)


class _Board:
    """Where workers write how far they are."""

    def __init__(self) -> None:
        self.written: dict[int, tuple[int, str]] = {}

    def write(self, index: int, total: int, what: str) -> None:
        self.written[index] = total, what

    def new(self) -> dict[int, tuple[int, str]]:
        """What has been written since this was called last."""
        new, self.written = self.written, {}
        return new


# -------------------------------------------------------------------- in the worker


@dataclass(frozen=True)
class _Order:
    """What every task of some work needs."""

    function: Callable[[Any, Any, Tick], Any]
    shared: Any
    threads: int
    versions: dict[str, str]


def versions() -> dict[str, str]:
    """What must be the same on every machine for the same numbers."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"posenc": posenc.__version__, "torch": str(torch.__version__), "python": python}


def check_versions(wanted: dict[str, str]) -> None:
    """Raises:
    InputError: this machine has others."""
    have = versions()
    others = [f"{name} {have[name]} instead of {wanted[name]}" for name in wanted if have[name] != wanted[name]]
    if others:
        raise InputError(
            f"--engine ray: the worker on {platform.node()} has {', '.join(others)}, and would measure something else; "
            "install the same versions on every machine"
        )


def _perform(order: _Order, index: int, task: Any, board: Any) -> tuple[int, Any]:
    check_versions(order.versions)
    torch.set_num_threads(order.threads)
    done, last = 0, time.monotonic()

    def tick(size: int, what: str = "") -> None:
        nonlocal done, last
        done += size
        if time.monotonic() - last >= TICK_SECONDS:
            last = time.monotonic()
            board.write.remote(index, done, what)

    result = order.function(order.shared, task, tick)
    return done, result
