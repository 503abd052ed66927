"""Time and memory of calls on a GPU; on a CPU, for dry runs, times that mean nothing."""

import math
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from posenc.lab.machine import measurable, peak
from posenc.lab.timing import CLOCKS, Effort, interleaved, ratios, spread

Call = Callable[[], object]
ROUNDS = 7
TARGET = 0.01
"""Seconds of a candidate in a round."""


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def machine() -> dict[str, Any]:
    try:
        import triton
    except ImportError:
        versions = {}
    else:
        versions = {"triton": triton.__version__}
    versions |= {"torch": str(torch.__version__), "python": platform.python_version()}
    if not torch.cuda.is_available():
        return {"device": "cpu (dry run)"} | versions
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30, 1),
    } | versions


def memory(call: Call) -> int:
    """Peak bytes above those allocated before the call; 0 where that cannot be measured."""
    where = torch.device(device())
    return peak(call, where, collect=False) if measurable(where) else 0


def kernels(call: Call) -> tuple[float, float]:
    """Milliseconds that the GPU computes during a call, without the gaps in which it waits for Python, and how many kernels."""
    repeats = 3
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(e.device_time for e in events) / 1e3 / repeats, len(events) / repeats


def issued(call: Call) -> float:
    """Milliseconds in which Python issues a call, while the GPU works or not."""
    repeats = 5
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    took = time.perf_counter() - begin
    torch.cuda.synchronize()
    return 1e3 * took / repeats


def measure(
    calls: dict[str, Call], baseline: str, rounds: int = ROUNDS, profiled: bool = True
) -> dict[str, dict[str, float]]:
    """Median milliseconds, ratio to the baseline within a round (median, smallest, largest), peak MiB and milliseconds in which
    Python issues each candidate, which run in shuffled rounds; and, profiled, of its kernels, which takes a second."""
    cuda = torch.cuda.is_available()
    clock = CLOCKS["cuda" if cuda else "wall"]
    for call in calls.values():
        for _ in range(3 if cuda else 1):
            call()
    expected = {name: clock(call, 2 if cuda else 1) for name, call in calls.items()}
    taken = {name: memory(call) for name, call in calls.items()}
    busy = {name: kernels(call) for name, call in calls.items()} if cuda and profiled else {}
    python = {name: issued(call) for name, call in calls.items()} if cuda else {}
    effort = (
        Effort(rounds=rounds, block=TARGET, budget=math.inf) if cuda else Effort(rounds=1, block=0.0, budget=math.inf)
    )
    seconds = interleaved(calls, expected, clock, effort)
    found = {}
    for name in calls:
        ratio = spread(ratios(seconds[name], seconds[baseline]))
        found[name] = {
            "ms": 1e3 * statistics.median(seconds[name]),
            "ratio": ratio["median"], "ratio_min": ratio["low"], "ratio_max": ratio["high"],
            "peak_mib": taken[name] / 2**20,
        }  # fmt: skip
        if name in python:
            found[name]["python_ms"] = python[name]
        if name in busy:
            found[name]["kernels_ms"], found[name]["kernels"] = busy[name]
    return found


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm; what is wanted may be on another device, in another dtype."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    if not bool(found.isfinite().all()):
        return float("inf")
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-12))


def markdown(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
