# SPDX-License-Identifier: Apache-2.0
"""Each measurement of peak memory in a process of its own."""

import contextlib
import ctypes
import json
import os
import signal
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the system end this process when the one that started it is gone, where it can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def apart(work: Callable[[], int]) -> int:
    """Run work in a process forked from this one, which has imported what is needed and computed next to nothing.

    Raises:
        RuntimeError: it failed, or the process died.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        die_with_parent()
        try:
            answer = json.dumps({"bytes": work()})
        except BaseException as error:
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        raise RuntimeError(f"the process died (exit {os.waitstatus_to_exitcode(status)}; out of memory?)")
    answer = json.loads(text)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return int(answer["bytes"])
