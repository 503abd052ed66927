# SPDX-License-Identifier: Apache-2.0
"""Processes that posenc starts: they leave signals to the process that started them, and end with it."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process, spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from types import FunctionType, SimpleNamespace
from typing import Any

LINUX = sys.platform == "linux"


@contextmanager
def shielded() -> Iterator[None]:
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


def die_with_parent() -> None:
    """Have this process, which multiprocessing started, end when its parent is gone."""
    if LINUX:
        _ask_the_system()
    if (parent := parent_process()) is not None:  # every other system; and Linux, if the parent was gone already
        threading.Thread(target=_wait_for, args=(parent,), daemon=True).start()


def _wait_for(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _ask_the_system() -> None:
    """Linux ends this process when the one that started it ends."""
    set_parent_death_signal = 1  # of Linux's prctl.h
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


# -------------------------------------------------------------------- while a worker imports


def _command_line(**handles: Any) -> list[str]:
    command = spawn.get_command_line(**handles)
    program, parent = command.index("-c") + 1, os.getpid()
    ask = f"import ctypes, os; ctypes.CDLL(None).prctl(1, {signal.SIGKILL:d}); os.getppid() == {parent} or os._exit(1)"
    command[program] = f"{ask}; {command[program]}"
    return command


class Worker(SpawnProcess):
    """A process of multiprocessing's context "spawn". On Linux its first statement asks the system to end it with its parent:
    it then imports torch for seconds, before it runs anything of ours."""

    @staticmethod
    def _Popen(process: BaseProcess) -> Any:
        if not LINUX:
            return SpawnProcess._Popen(process)
        from multiprocessing import popen_spawn_posix

        class Popen(popen_spawn_posix.Popen):
            """The library's, which has no setting for the command."""

            _launch = FunctionType(
                popen_spawn_posix.Popen._launch.__code__,  # type: ignore[attr-defined]
                vars(popen_spawn_posix)
                | {"spawn": SimpleNamespace(**vars(spawn) | {"get_command_line": _command_line})},
            )

        return Popen(process)


class Context(SpawnContext):
    """Starts workers."""

    Process = Worker


SPAWN = Context()
"""Starts worker processes: those of multiprocessing's context "spawn", which end with their parent from the first moment."""
