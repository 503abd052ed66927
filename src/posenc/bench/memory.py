"""Peak memory above what is there before a call, each measurement in a process of its own."""

import contextlib
import ctypes
import gc
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import torch

PR_SET_PDEATHSIG = 1
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measurable(device: torch.device) -> bool:
    """Linux tells a process its peak, and lets it be reset; a GPU's allocator counts for itself."""
    return device.type == "cuda" or CLEAR.exists()


def peak(work: Callable[[], object], device: torch.device) -> int:
    """Bytes that a call takes above what was taken before it, its result included."""
    trim()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    CLEAR.write_text("5")  # the peak starts again from what is resident now
    before = _status("VmRSS")
    work()
    return max(0, _status("VmHWM") - before)


def die_with_parent() -> None:
    """Have the system end this process when the one that started it is gone, where it can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def trim() -> None:
    """Give freed memory back to the system, where the C library can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _status(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name + ":"))
    return 1024 * int(line.split()[1])


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
