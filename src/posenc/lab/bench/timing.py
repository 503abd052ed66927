# SPDX-License-Identifier: Apache-2.0
"""Timing: every candidate once per round, in shuffled order, so that a machine's slow drift hits all of them alike."""

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import torch

Work = Callable[[], object]
Clock = Callable[[Work, int], float]
"""(work, repeats) -> seconds per call."""
LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Effort:
    """How long to measure. rounds: of each trial; block: least seconds of a timed block, short work is repeated to fill
    it; budget: seconds after which a trial stops, once it has three rounds; patience: seconds of one call beyond which
    a candidate is left out."""

    rounds: Annotated[int, "rounds of each trial"] = 7
    block: float = 0.03
    budget: float = 3.0
    patience: Annotated[float, "leave out what takes longer for one call, in seconds"] = 3.0


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of several rounds."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def cpu_clock(work: Work, repeats: int) -> float:
    """Processor time of this process: what others do on the machine does not count."""
    return _timed(time.process_time, work, repeats)


def wall_clock(work: Work, repeats: int) -> float:
    """What a clock on the wall shows."""
    return _timed(time.perf_counter, work, repeats)


def cuda_clock(work: Work, repeats: int) -> float:
    """Time on the GPU, between two events of its stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / repeats


def _timed(now: Callable[[], float], work: Work, repeats: int) -> float:
    started = now()
    for _ in range(repeats):
        work()
    return (now() - started) / repeats


CLOCKS: dict[str, Clock] = {"cpu": cpu_clock, "wall": wall_clock, "cuda": cuda_clock}


def interleaved(
    works: Mapping[str, Work],
    expected: Mapping[str, float],
    clock: Clock,
    effort: Effort,
    *,
    seed: int = 0,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per call of each work in each round. Works are warm: each has run at least once.

    expected: seconds that a call takes, roughly. now: tells how much of the budget is used.
    """
    repeats = {name: max(1, int(effort.block / max(expected[name], 1e-7))) for name in works}
    shuffled, order = random.Random(seed), list(works)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    started, collecting = now(), gc.isenabled()
    gc.disable()
    try:
        for done in range(effort.rounds):
            if done >= LEAST_ROUNDS and now() - started > effort.budget:
                break
            shuffled.shuffle(order)
            for name in order:
                seconds[name].append(clock(works[name], repeats[name]))
    finally:
        if collecting:
            gc.enable()
    return seconds


def ratios(seconds: Sequence[float], limit: Sequence[float]) -> list[float]:
    """Each round's time over the limit's in the same round."""
    return [each / its for each, its in zip(seconds, limit, strict=True)]
