# SPDX-License-Identifier: Apache-2.0
"""The machine that numbers are measured on, and how much of its memory is free."""

import os
import platform
from collections.abc import Iterator
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
        raise InputError(f"--device {name}: not here; pass cpu{' or cuda' if torch.cuda.is_available() else ''}")


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
