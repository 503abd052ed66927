# SPDX-License-Identifier: Apache-2.0
"""The machine that numbers are measured on: what it is, how much of its memory is free, and the peak memory of a call."""

import contextlib
import ctypes
import gc
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from posenc.errors import InputError

MEMORY, STATUS, CLEAR = Path("/proc/meminfo"), Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
    """Raises:
    InputError: this machine has no such device.
    """
    if name != "cpu" and not (name.split(":")[0] == "cuda" and torch.cuda.is_available()):
        raise InputError("not here", f"pass cpu{' or cuda' if torch.cuda.is_available() else ''}", device=name)


def describe(device: torch.device) -> dict[str, Any]:
    """What a measurement on a device depends on, as plain values."""
    facts: dict[str, Any] = {
        "cpu": cpu(),
        "cores": cores(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(_bytes(MEMORY, "MemTotal") / 2**30, 1),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if device.type == "cuda" and torch.cuda.is_available():  # it may be another machine's, of a cluster
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def free_bytes(device: torch.device) -> int:
    """Memory that is free now: the GPU's, or what the system and the process's limit leave."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = _bytes(MEMORY, "MemAvailable") or 2**40
    try:
        most = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, most - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):  # no limit, or not that kind of system
        pass
    return free


def _bytes(file: Path, name: str) -> int:
    """An entry of a file of /proc, in bytes; 0: there is none."""
    try:
        lines = file.read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name + ":"))
    except (OSError, StopIteration):
        return 0


# -------------------------------------------------------------------- peak memory


def measurable(device: torch.device) -> bool:
    """Whether `peak` works: Linux counts a process's peak, and lets it be reset; a GPU's allocator counts for itself."""
    return device.type == "cuda" or CLEAR.exists()


def peak(work: Callable[[], object], device: torch.device, *, collect: bool = True) -> int:
    """Bytes that a call takes above what was taken before it, its result included. collect: look for unused objects
    first, which takes a while."""
    if collect:
        gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _c_library() as library:
        library.malloc_trim(0)  # freed memory goes back to the system
    CLEAR.write_text("5")  # the peak starts again from what is resident now
    before = _bytes(STATUS, "VmRSS")
    work()
    return max(0, _bytes(STATUS, "VmHWM") - before)


def keep_freed_memory(most: int = 2**28, piece: int = 2**25) -> None:
    """Have the C library reuse memory that this process frees, up to `most` bytes and in pieces of up to `piece` (at most
    2^31 - 1). By default glibc gives it back to the system and gets it again, page by page, at every step of a training: a
    tenth of its time, and a quarter of a test's. It lasts as long as the process: for processes that posenc started."""
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # of glibc's malloc.h
    with _c_library() as library:
        library.mallopt(mmap_threshold, piece)
        library.mallopt(trim_threshold, most)
        library.mallopt(top_pad, 2**26)


@contextmanager
def _c_library() -> Iterator[ctypes.CDLL]:
    """Functions that the system's C library lacks are not called."""
    with contextlib.suppress(OSError, AttributeError):
        yield ctypes.CDLL(None)
