# SPDX-License-Identifier: Apache-2.0
"""Processes that posenc starts: they leave signals to the process that started them, and end with it."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process


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
    if sys.platform == "linux":
        set_parent_death_signal = 1  # of Linux's prctl.h
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if (parent := parent_process()) is not None:  # every other system; and Linux, if the parent was gone already

        def wait() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()
