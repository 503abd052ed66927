# SPDX-License-Identifier: Apache-2.0
"""What is to be done, as data: a function, what its tasks share, and the tasks."""

from collections.abc import Callable, Sequence
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
