# SPDX-License-Identifier: Apache-2.0
"""Peak memory of a call, above what is there before it."""

import contextlib
import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measurable(device: torch.device) -> bool:
    """Linux tells a process its peak, and lets it be reset; a GPU's allocator counts for itself."""
    return device.type == "cuda" or CLEAR.exists()


def peak(work: Callable[[], object], device: torch.device, *, collect: bool = True) -> int:
    """Bytes that a call takes above what was taken before it, its result included. collect: look for unused objects
    first, which takes a while."""
    trim(collect)
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


def keep_freed() -> None:
    """Have the C library keep the memory that this process frees, up to 256 MiB and in pieces of up to 32 MiB, for what it
    takes next. glibc else gives it back to the system and gets it again, page by page, at every step of a training: a tenth
    of its time, and a quarter of a test's. For processes of ours alone: it lasts as long as they do."""
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # of glibc's malloc.h
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library, which has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, 2**25)
        mallopt(trim_threshold, 2**28)
        mallopt(top_pad, 2**26)


def trim(collect: bool = True) -> None:
    """Give freed memory back to the system, where the C library can. collect: after looking for unused objects."""
    if collect:
        gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _status(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name + ":"))
    return 1024 * int(line.split()[1])
