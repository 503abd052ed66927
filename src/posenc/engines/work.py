# SPDX-License-Identifier: Apache-2.0
"""What is to be done, as data: a function, what its tasks share, and the tasks; and how fast that goes."""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")
_Told = TypeVar("_Told", contravariant=True)


class Interrupted(Exception):
    """Stopped from the keyboard; what had finished is stored."""


class Tick(Protocol):
    """Tells how much of a task has been done since the last call, and of what."""

    def __call__(self, size: int, what: str = "") -> None: ...


class Ticks(Protocol[_Told]):
    """The same for every task."""

    def __call__(self, task: _Told, size: int, what: str, /) -> None: ...


def silent(task: object, size: int, what: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Work(Generic[Shared, Task, Result]):
    """function(shared, task, tick) for every task.

    Other processes get pickles: the function is one of a module, or a `functools.partial` of one. What tasks share
    travels once; to processes of this machine it goes through a folder if it has `write(folder)` and `read(folder)`.
    name: what to call a task in an error. gpu: a task computes on a GPU. memory: bytes that a task takes, 0: unknown.
    """

    function: Callable[[Shared, Task, Tick], Result]
    shared: Shared
    tasks: Sequence[Task]
    name: Callable[[Task], str] = str
    gpu: bool = False
    memory: int = 0


class Pace:
    """How fast work goes, from the ticks of its tasks.

    total: the size of all of it. What a task tells first does not count: it may have gone on from where it was stopped
    before, and its process had to get ready.
    """

    LEAST_SECONDS, LEAST_TICKS = 3.0, 8

    def __init__(self, total: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.clock = clock
        self.done: float = 0
        self._begun: float | None = None
        self._counted: list[float] = []
        self._seen: set[Hashable] = set()

    def tick(self, task: Hashable, size: float) -> None:
        """A task has done some more."""
        self.done += size
        if self._begun is None:
            self._begun = self.clock()
        if task in self._seen:
            self._counted.append(size)
        self._seen.add(task)

    def left(self) -> float | None:
        """Seconds until all is done, at the pace so far; None: it is too early to tell."""
        if self._begun is None or len(self._counted) < self.LEAST_TICKS:
            return None
        seconds = self.clock() - self._begun
        return None if seconds < self.LEAST_SECONDS else seconds * (self.total - self.done) / sum(self._counted)
