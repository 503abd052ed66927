# SPDX-License-Identifier: Apache-2.0
"""Measuring one trial: every candidate is built, compared with the formula, and timed if it agrees; or its memory is taken.

This happens in a new process, so that nothing that ran before counts, the user's allocator is unchanged, and a
candidate that takes the process down ends neither the benchmark nor the trial.
"""

import importlib.util
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Annotated, Any

import torch

from bench.case import DTYPES, Candidate, Case, Missing, Refusal, Tensors, Workload, difference
from bench.cases import CASES
from posenc.errors import InputError, described
from posenc.lab.machine import cores, free_bytes, keep_freed_memory, measurable, peak
from posenc.lab.timing import CLOCKS, Call, Effort, interleaved

TIME, MEMORY = "time", "memory"
MEASURED, DIFFERS, MISSING, FAILED, LEFT_OUT = "measured", "differs", "missing", "failed", "left out"
SHARE = 0.8
"""A candidate that needs more than this share of the free memory is left out."""
QUICK_CALL = 0.1
"""Seconds. If the first call takes longer, its time predicts that of the next; a quicker one mostly fills caches."""
WARM_LENGTH = 64
"""A candidate runs once at this length before its memory is taken, so that what libraries allocate once is there."""
EXIT_SECONDS = 5
"""How long a process that has sent its result may take to clean up."""
HUNG_SECONDS, HUNG_CALLS = 600, 100
"""A process that has been silent for so long, and so many times `patience`, hangs. The first candidates of a process may
compile for minutes, and the rounds of all candidates are silent."""

Announce = Callable[[str], None]
"""Is called with the name of the candidate that comes next."""


@dataclass(frozen=True)
class Trial:
    """One comparison of a case's candidates: what is measured, of which case, in which mode, dtype and length."""

    what: str
    case: str
    mode: str
    dtype: str
    length: int

    def __str__(self) -> str:
        memory = ", memory" if self.what == MEMORY else ""
        return f"{self.case} {self.mode} {self.dtype} n={self.length}{memory}"


@dataclass(frozen=True)
class PeerEffort(Effort):
    """patience: seconds of one call beyond which a candidate is left out."""

    patience: float = 3.0


@dataclass(frozen=True)
class BenchSettings:
    """What all trials of a benchmark share. clock: a key of CLOCKS. peers: whether to measure other packages too."""

    device: str = "cpu"
    threads: Annotated[int, "threads of the measuring process (default: 1)"] = 1
    clock: str = "cpu"
    flush_denormal: Annotated[bool, "torch.set_flush_denormal(True) while measuring"] = False
    peers: Annotated[bool, "measure other packages too (default: True)"] = True
    effort: PeerEffort = field(default_factory=PeerEffort)

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= 4 * cores():
            raise InputError(f"must lie between 1 and {4 * cores()}", threads=self.threads)
        if self.effort.rounds < 1:
            raise InputError("must be at least 1", rounds=self.effort.rounds)
        if not self.effort.patience > 0:
            raise InputError("must be a number of seconds above 0", patience=self.effort.patience)


@dataclass(frozen=True)
class Row:
    """What a trial measured of one candidate. status: "measured", "differs", "missing", "failed" or "left out"; note: why,
    where it is not "measured". error, tolerance: its difference to the formula in float64, and what is allowed. seconds:
    per call, round by round."""

    name: str
    status: str
    note: str = ""
    error: float | None = None
    tolerance: float | None = None
    seconds: list[float] = field(default_factory=list)
    bytes: int | None = None


def measure(trial: Trial, settings: BenchSettings, announce: Announce = lambda name: None) -> list[Row]:
    """A row for every candidate of the trial's case, in its order, measured in new processes: one for the times of all, or
    one for the memory of each. A candidate that takes the process down has failed; the others are measured without it."""
    case, hung = CASES[trial.case], HUNG_SECONDS + HUNG_CALLS * settings.effort.patience
    if trial.what == MEMORY:
        rows = []
        for candidate in _candidates(trial, settings):
            announce(candidate.name)
            try:
                rows.append(in_new_process(memory_row, trial, settings, candidate.name, seconds=hung))
            except RuntimeError as error:
                rows.append(Row(candidate.name, FAILED, str(error)))
        return rows
    current, failed = "", dict[str, str]()

    def listen(name: str) -> None:
        nonlocal current
        current = name
        announce(name)

    while True:
        try:
            return in_new_process(timed_rows, trial, settings, failed, announce=listen, seconds=hung)
        except RuntimeError as error:
            if current in ("", *failed):  # before the first candidate, or in the rounds of all
                return [Row(case.limit, FAILED, str(error))]
            failed[current], current = str(error), ""


def _candidates(trial: Trial, settings: BenchSettings) -> list[Candidate]:
    return [c for c in CASES[trial.case].candidates if trial.mode in c.modes and (settings.peers or not c.package)]


# -------------------------------------------------------------------- a new process

PROCESSES = get_context("forkserver")
"""Imports once, and forks a process that has computed nothing for each measurement."""
PRELOADED = (
    "posenc.pretrained.convert",
    "posenc.lab.study",
    "posenc.testing.oracles.attention",
    "transformers.modeling_utils",
)
"""What takes seconds to import."""


def in_new_process(
    function: Callable[..., Any], *args: object, announce: Announce = lambda name: None, seconds: float = HUNG_SECONDS
) -> Any:
    """function(*args, announce) in a new process. seconds: between two announcements, at most.

    Raises:
        RuntimeError: it raised an error, the process died, or it hangs and was stopped.
    """
    installed = [name for name in PRELOADED if importlib.util.find_spec(name.partition(".")[0])]
    PROCESSES.set_forkserver_preload(installed)
    receiving, sending = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_run, args=(sending, function, args), daemon=True)
    process.start()
    sending.close()
    try:
        while receiving.poll(seconds):
            kind, value = receiving.recv()
            if kind == "next":
                announce(value)
            elif kind == "error":
                raise RuntimeError(value)
            else:
                process.join(EXIT_SECONDS)
                return value
        raise RuntimeError(f"the process hangs: it was stopped after {seconds:g} s without a sign")
    except EOFError:
        process.join()
        code = process.exitcode or 0
        reason = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        raise RuntimeError(f"the process died ({reason}{', out of memory?' * (code == -signal.SIGKILL)})") from None
    finally:
        process.kill()
        process.join()


def _run(sending: Connection, function: Callable[..., Any], args: Sequence[object]) -> None:
    """In the new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a shell sends to all processes: the parent ends this one
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what libraries print is no result
        os.dup2(nowhere, stream)
    try:
        sending.send(("result", function(*args, lambda name: sending.send(("next", name)))))
    except Exception as error:
        sending.send(("error", described(error, 200)))


# -------------------------------------------------------------------- in that process


def _prepared(trial: Trial, settings: BenchSettings) -> tuple[Case, Workload]:
    torch.set_num_threads(settings.threads)
    torch.set_flush_denormal(settings.flush_denormal)
    return CASES[trial.case], Workload(trial.length, trial.mode, DTYPES[trial.dtype], torch.device(settings.device))


def _row(name: str, make: Callable[[], Row]) -> Row:
    """A candidate's row, or the reason why there is no measurement."""
    try:
        return make()
    except Missing as missing:
        return Row(name, MISSING, str(missing))
    except Refusal as refusal:
        return Row(name, LEFT_OUT, str(refusal))
    except Exception as error:
        return Row(name, FAILED, described(error, 200))


def memory_row(trial: Trial, settings: BenchSettings, name: str, announce: Announce) -> Row:
    """The peak memory of one candidate."""
    case, problem = _prepared(trial, settings)
    candidate = next(c for c in case.candidates if c.name == name)

    def make() -> Row:
        if not measurable(problem.device):
            raise Refusal("peak memory is measured on Linux and on CUDA")
        candidate.check_memory(problem, int(free_bytes(problem.device) * SHARE))
        candidate.build(case.prepare(replace(problem, length=min(WARM_LENGTH, problem.length)))).run()
        return Row(name, MEASURED, bytes=peak(candidate.build(case.prepare(problem)).run, problem.device))

    return _row(name, make)


def timed_rows(trial: Trial, settings: BenchSettings, failed: Mapping[str, str], announce: Announce) -> list[Row]:
    """The times of all candidates. failed: those that took an earlier process down, and how."""
    case, problem = _prepared(trial, settings)
    keep_freed_memory(2**31 - 1, 2**31 - 1)
    inputs = case.prepare(problem)
    rows: dict[str, Row] = {}
    calls: dict[str, Call] = {}

    def first_calls(candidate: Candidate) -> Row:
        """The first calls, compared with the formula; what they take is the row's seconds."""
        candidate.check_memory(problem, int(free_bytes(problem.device) * SHARE))
        built, patience = candidate.build(inputs), settings.effort.patience
        clock = CLOCKS[settings.clock]
        results: list[Tensors] = []
        seconds = clock(lambda: results.append(built.results()), 1)
        if seconds < QUICK_CALL or seconds > patience:  # it may have been compiling
            seconds = clock(lambda: results.append(built.results()), 1)
        row = Row(candidate.name, MEASURED, seconds=[seconds])
        if built.truth is not None:
            error = difference(results[-1], built.truth())
            row = replace(row, error=error if math.isfinite(error) else None, tolerance=built.tolerance)
            if not error <= built.tolerance:
                note = f"differs from the formula by {error:.1g}, {built.tolerance:.1g} is allowed"
                return replace(row, status=DIFFERS, note=note, seconds=[])
            if seconds > patience:
                note = f"takes {seconds:.1f} s a call, more than patience={patience:g}"
                return replace(row, status=LEFT_OUT, note=note, seconds=[])
        calls[candidate.name] = built.run
        return row

    for candidate in _candidates(trial, settings):
        name = candidate.name
        if name in failed:
            rows[name] = Row(name, FAILED, failed[name])
        else:
            announce(name)
            rows[name] = _row(name, partial(first_calls, candidate))
    announce("")
    if set(calls) <= {case.limit}:  # there is nothing to compare it with
        calls = {}
    expected = {name: rows[name].seconds[0] for name in calls}
    seconds = interleaved(calls, expected, CLOCKS[settings.clock], settings.effort)
    return [replace(row, seconds=seconds.get(name, [])) for name, row in rows.items()]
