# SPDX-License-Identifier: Apache-2.0
"""Where cells are computed: here, in processes of this machine, or on a Ray cluster, behind one seam."""

from collections.abc import Generator
from dataclasses import fields
from typing import Any, ClassVar, Protocol

from posenc.engines.cluster import Ray
from posenc.engines.local import Here, Processes
from posenc.engines.work import Interrupted, Pace, Result, Shared, Task, Ticks, Work, silent
from posenc.errors import InputError, flag_of, unknown

__all__ = ["ENGINES", "Engine", "Here", "Interrupted", "Pace", "Processes", "Ray", "Work", "create", "silent"]


class Engine(Protocol):
    """Does work, task by task, and gives every result out as soon as it is there, in no particular order.

    An engine that is closed (or that meets an error, or Ctrl-C) drops what is still under way and leaves no process
    behind: `with contextlib.closing(engine.run(work)) as results: for task, result in results: ...`.
    """

    name: ClassVar[str]
    in_process: ClassVar[bool]
    """Tasks are done in the caller's own process: what they share need not be picklable."""

    @property
    def workers(self) -> int | None:
        """Tasks that are done at a time; None: the cluster decides."""

    def run(
        self, work: Work[Shared, Task, Result], on_tick: Ticks[Task] = silent
    ) -> Generator[tuple[Task, Result], None, None]:
        """Every task with its result. on_tick(task, size, what) is told the work done since the last call.

        Raises:
            InputError: a task's own, or an engine that cannot be reached.
            RuntimeError: a worker died.
        """


ENGINES: dict[str, type[Here] | type[Processes] | type[Ray]] = {"here": Here, "local": Processes, "ray": Ray}


def create(name: str, **options: Any) -> Engine:
    """An engine by name: "here", "local" (workers) or "ray" (address, workers, cpus_per_cell, gpus_per_cell).

    An option that is None is not given.

    Raises:
        InputError: an unknown engine, an option that another one takes, or a package that is missing.
    """
    if name not in ENGINES:
        raise unknown("--engine", name, ENGINES)
    given = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        takers = [known for known, engine in ENGINES.items() if option in {field.name for field in fields(engine)}]
        if name not in takers:
            raise InputError(
                f"{flag_of(option)} {value}: is an option of --engine {' and '.join(takers)}; say that, "
                "too, or leave it out"
            )
    return ENGINES[name](**given)
