# SPDX-License-Identifier: Apache-2.0
"""The machine that numbers are measured on: what it is, how much of its memory is free, and the peak memory of a call."""

import contextlib
import ctypes
import gc
import os
import platform
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from posenc.errors import InputError


def cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Inside, this thread takes numbers below the smallest normal one for zero, as far as the processor can. Steep biases
    underflow to such numbers, which are slow and mean nothing."""
    tiny = torch.tensor(5e-324, dtype=torch.float64, device="cpu")
    before = not bool(tiny * 1 > 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_present(name: str) -> None:
    """Refuse a device that is not there.

    Raises:
        InputError: naming it.
    """
    if name != "cpu" and not (name.split(":")[0] == "cuda" and torch.cuda.is_available()):
        raise InputError(f"device={name}: not here; pass cpu{' or cuda' if torch.cuda.is_available() else ''}")


def describe(device: torch.device) -> dict[str, Any]:
    """What a measurement on a device depends on, as plain values."""
    found: dict[str, Any] = {
        "cpu": cpu(),
        "cores": cores(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(_meminfo("MemTotal") / 2**30, 1),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def free_bytes(device: torch.device) -> int:
    """Memory that can be had now: the GPU's, or what the system and the process's own limit leave."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = _meminfo("MemAvailable") or 2**40
    try:
        most = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, most - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):  # no limit, or not that kind of system
        pass
    return free


def _meminfo(name: str) -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name + ":"))
    except (OSError, StopIteration):
        return 0


# -------------------------------------------------------------------- peak memory

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


def keep_freed_memory() -> None:
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


PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the system end this process when the one that started it is gone, where it can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
