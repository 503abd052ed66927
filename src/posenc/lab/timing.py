# SPDX-License-Identifier: Apache-2.0
"""Timing of several calls in rounds, so that a machine's drift hits all of them alike: `posenc bench`, and benchmarks/bench."""

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated

import torch

LEAST_ROUNDS = 3

Call = Callable[[], object]
Clock = Callable[[Call, int], float]
"""(call, repeats) -> seconds per call."""


@dataclass(frozen=True)
class Effort:
    """How long to measure. rounds: of each trial; block: least seconds of a timed block, short work is repeated to fill
    it; budget: seconds after which a trial stops, once it has three rounds."""

    rounds: Annotated[int, "rounds of each trial"] = 7
    block: float = 0.03
    budget: float = 3.0


def _timed(now: Callable[[], float], call: Call, repeats: int) -> float:
    started = now()
    for _ in range(repeats):
        call()
    return (now() - started) / repeats


def _cuda_timed(call: Call, repeats: int) -> float:
    """Time on the GPU, between two events of its stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / repeats


CLOCKS: dict[str, Clock] = {
    "cpu": partial(_timed, time.process_time),  # of this process: what others do on the machine does not count
    "wall": partial(_timed, time.perf_counter),
    "cuda": _cuda_timed,
}


def interleaved(
    calls: Mapping[str, Call],
    expected: Mapping[str, float],
    clock: Clock,
    effort: Effort,
    *,
    seed: int = 0,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call in each round. Every candidate runs once per round, in shuffled order, so that a machine's slow
    drift hits all of them alike. Calls are warm: each has run at least once.

    expected: seconds that a call takes, roughly. now: the clock of the budget.
    """
    repeats = {name: max(1, int(effort.block / max(expected[name], 1e-7))) for name in calls}
    shuffled, order = random.Random(seed), list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    started, collecting = now(), gc.isenabled()
    gc.disable()
    try:
        for done in range(effort.rounds):
            if done >= LEAST_ROUNDS and now() - started > effort.budget:
                break
            shuffled.shuffle(order)
            for name in order:
                seconds[name].append(clock(calls[name], repeats[name]))
    finally:
        if collecting:
            gc.enable()
    return seconds


def ratios(seconds: Sequence[float], limit: Sequence[float]) -> list[float]:
    """Each round's time over the limit's in the same round."""
    return [each / its for each, its in zip(seconds, limit, strict=True)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest of several rounds."""
    return {"median": median(values), "low": min(values), "high": max(values)}
