# SPDX-License-Identifier: Apache-2.0
"""What Ctrl-C and SIGTERM do: the latter is how Slurm, Docker, Kubernetes, systemd and `timeout` ask a process to end."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]

INTERRUPT = signal.default_int_handler
"""Raises KeyboardInterrupt."""


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt, as Ctrl-C does. A handler of the caller's stays, and in another thread than
    the first one nothing changes."""
    with _handled(signal.SIGTERM, INTERRUPT):
        yield


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """Inside, the first Ctrl-C or SIGTERM is appended to the list, so that what is under way can be completed; the second
    one raises KeyboardInterrupt. A handler of the caller's stays, and in another thread than the first one nothing changes."""
    stopped: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        stopped.append(number)
        for each in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(each) is note:
                signal.signal(each, INTERRUPT)

    with _handled(signal.SIGINT, note), _handled(signal.SIGTERM, note):
        yield stopped


@contextmanager
def _handled(number: signal.Signals, handler: Handler) -> Iterator[None]:
    """With a handler of a signal, if nobody has set another; the one before comes back."""
    before = signal.getsignal(number)
    default = before is INTERRUPT or (number == signal.SIGTERM and before == signal.SIG_DFL)
    with ExitStack() as restored:
        if default and threading.current_thread() is threading.main_thread():
            restored.callback(signal.signal, number, before)
            signal.signal(number, handler)
        yield
