# SPDX-License-Identifier: Apache-2.0
"""One trial: build every candidate, compare it with the formula, and time those that agree, or take their memory."""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from posenc.lab.bench.case import DTYPES, Built, Candidate, Case, Missing, Problem, Refusal, difference
from posenc.lab.bench.cases import CASES
from posenc.lab.bench.study import DIFFERS, FAILED, LEFT_OUT, MEASURED, MEMORY, MISSING, Row, Settings, Trial
from posenc.lab.bench.timing import CLOCKS, Work, interleaved
from posenc.lab.machine import die_with_parent, free_bytes, measurable, peak, trim

SHARE = 0.8
"""Of the free memory that a candidate may be expected to take."""
QUICK_CALL = 0.1
"""Seconds of a call from which on the first one, in which caches are filled, says enough about the next."""
WARM_LENGTH = 64
"""A candidate runs once at this length before its memory is taken, so that libraries have what they keep."""

Announce = Callable[[str], None]


def measure(
    trial: Trial,
    settings: Settings,
    dead: Mapping[str, str],
    expected: Mapping[str, float],
    announce: Announce = lambda name: None,
) -> list[Row]:
    """A row for every candidate of the trial's case, in its order.

    dead: candidates that took an earlier process down, and how. expected: seconds a call that candidates should take,
    judging by shorter sequences. announce: told which candidate comes next.
    """
    case = CASES[trial.case]
    problem = Problem(trial.length, trial.mode, DTYPES[trial.dtype], torch.device(settings.device))
    torch.compiler.reset()  # graphs of other trials count towards dynamo's limit
    trim()  # what other trials left counts as taken
    try:
        inputs = None if trial.what == MEMORY else case.prepare(problem)
    except (MemoryError, RuntimeError) as error:  # too large for this machine
        return [Row(case.limit, FAILED, one_line(error))]
    rows: dict[str, Row] = {}
    works: dict[str, Work] = {}
    for candidate in case.candidates:
        name = candidate.name
        if trial.mode not in candidate.modes or (candidate.peer is not None and not settings.peers):
            continue
        try:
            if name in dead:
                rows[name] = Row(name, FAILED, dead[name])
                continue
            if name != case.limit:
                candidate.check_size(problem, case.heads, int(free_bytes(problem.device) * SHARE))
                if trial.what != MEMORY or not candidate.ours:  # that is one call, and what one came for
                    _check_patience(expected.get(name, 0.0), settings)
            announce(name)
            if trial.what == MEMORY:
                rows[name] = Row(name, MEASURED, bytes=_memory(case, candidate, problem, settings))
                continue
            built = candidate.build(inputs)
            rows[name] = _compared(name, built, settings, patient=name == case.limit)
            if rows[name].status == MEASURED:
                works[name] = built.run
        except Missing as missing:
            rows[name] = Row(name, MISSING, str(missing))
        except Refusal as refusal:
            rows[name] = Row(name, LEFT_OUT, str(refusal))
        except Exception as error:
            if candidate.ours and not isinstance(error, (MemoryError, RuntimeError)):  # a fault, not a measurement
                raise
            rows[name] = Row(name, FAILED, one_line(error))
    announce("")
    if set(works) <= {case.limit}:  # nobody to compare it with
        works = {}
    first = {name: rows[name].seconds[0] for name in works}
    seconds = interleaved(works, first, CLOCKS[settings.clock], settings.effort) if works else {}
    return [replace(row, seconds=seconds.get(name, [])) for name, row in rows.items()]


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' + text[:200] if text else ''}"


def _check_patience(seconds: float, settings: Settings) -> None:
    """Refuse what would take too long.

    Raises:
        Refusal: saying how long.
    """
    if seconds > settings.effort.patience:
        raise Refusal(f"expected to take {seconds:.1f} s a call, more than patience={settings.effort.patience:g}")


def _compared(name: str, built: Built, settings: Settings, patient: bool) -> Row:
    """The first calls, compared with the formula; what they take is kept as the row's seconds."""
    found, seconds = _once(built, settings)
    if seconds < QUICK_CALL or seconds > settings.effort.patience:  # it may have been compiling
        found, seconds = _once(built, settings)
    row = Row(name, MEASURED, seconds=[seconds])
    if built.truth is None:
        return row
    error = difference(found, built.truth())
    row = replace(row, error=error if math.isfinite(error) else None, tolerance=built.tolerance)
    if not error <= built.tolerance:
        note = f"differs from the formula by {error:.1g}, {built.tolerance:.1g} is allowed"
        return replace(row, status=DIFFERS, note=note, seconds=[])
    if seconds > settings.effort.patience and not patient:
        note = f"takes {seconds:.1f} s a call, more than patience={settings.effort.patience:g}"
        return replace(row, status=LEFT_OUT, note=note, seconds=[])
    return row


def _once(built: Built, settings: Settings) -> tuple[tuple[torch.Tensor, ...], float]:
    found: list[tuple[torch.Tensor, ...]] = []
    seconds = CLOCKS[settings.clock](lambda: found.append(built.results()), 1)
    return found[0], seconds


def _memory(case: Case, candidate: Candidate, problem: Problem, settings: Settings) -> int:
    if not measurable(problem.device):
        raise Refusal("peak memory is measured on Linux and on CUDA")

    def built(length: int) -> Built:
        return candidate.build(case.prepare(replace(problem, length=length)))

    def work() -> int:
        torch.set_num_threads(settings.threads)
        built(min(WARM_LENGTH, problem.length)).run()
        return peak(built(problem.length).run, problem.device)

    if problem.device.type == "cuda":  # its allocator's count does not depend on what ran before
        return work()
    built(2)  # imports what it needs, here
    return apart(work)


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
