# SPDX-License-Identifier: Apache-2.0
"""Measuring one trial (build every candidate, compare it with the formula, time those that agree or take their memory), and the
processes that do it: jobs go in and rows come out through a pipe, one line of JSON each.

glibc reads how it should treat freed memory when a process starts, so a fair setting needs a process of its own; the
user's is left alone. A candidate that takes the process down costs that candidate, not the benchmark.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import IO, Any, Self

import torch

from posenc.lab.bench.case import DTYPES, Built, Candidate, Case, Missing, Refusal, Workload, difference
from posenc.lab.bench.cases import CASES
from posenc.lab.bench.study import DIFFERS, FAILED, LEFT_OUT, MEASURED, MEMORY, MISSING, BenchSettings, Row, Trial
from posenc.lab.bench.timing import CLOCKS, Effort, Work, interleaved
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
    settings: BenchSettings,
    dead: Mapping[str, str],
    expected: Mapping[str, float],
    announce: Announce = lambda name: None,
) -> list[Row]:
    """A row for every candidate of the trial's case, in its order.

    dead: candidates that took an earlier process down, and how. expected: seconds a call that candidates should take,
    judging by shorter sequences. announce: told which candidate comes next.
    """
    case = CASES[trial.case]
    problem = Workload(trial.length, trial.mode, DTYPES[trial.dtype], torch.device(settings.device))
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


def _check_patience(seconds: float, settings: BenchSettings) -> None:
    """Refuse what would take too long.

    Raises:
        Refusal: saying how long.
    """
    if seconds > settings.effort.patience:
        raise Refusal(f"expected to take {seconds:.1f} s a call, more than patience={settings.effort.patience:g}")


def _compared(name: str, built: Built, settings: BenchSettings, patient: bool) -> Row:
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


def _once(built: Built, settings: BenchSettings) -> tuple[tuple[torch.Tensor, ...], float]:
    found: list[tuple[torch.Tensor, ...]] = []
    seconds = CLOCKS[settings.clock](lambda: found.append(built.results()), 1)
    return found[0], seconds


def _memory(case: Case, candidate: Candidate, problem: Workload, settings: BenchSettings) -> int:
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


LONGEST = 900
"""Seconds after which a trial that says nothing is given up."""
KEEP_FREED = {
    "MALLOC_TRIM_THRESHOLD_": str(2**35),
    "MALLOC_MMAP_THRESHOLD_": str(2**35),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""glibc keeps freed memory, as the allocators of jemalloc and CUDA do: otherwise every fresh tensor of 32 MiB and more
is paid for by page faults, as much as a copy of it, which makes ratios bimodal."""


class Workers:
    """The processes of a benchmark, one for each kind of trial, started when first needed, and again when they have died."""

    def __init__(self, settings: BenchSettings) -> None:
        self.settings = settings
        self.running: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.running.values():
            worker.close()

    def measure(self, trial: Trial, expected: Mapping[str, float], announce: Announce) -> list[Row]:
        """A trial's rows; a candidate that takes the process down is named, and the trial repeated without it.

        Raises:
            RuntimeError: the process died before it could begin.
        """
        dead: dict[str, str] = {}
        while True:
            if trial.what not in self.running:
                self.running[trial.what] = Worker(trial.what, self.settings)
            try:
                return self.running[trial.what].measure(trial, dead, expected, announce)
            except Died as death:
                self.running.pop(trial.what).close()
                if death.candidate is None:
                    raise RuntimeError(f"{trial}: {death.how}; what was measured is stored") from None
                if not death.candidate or death.candidate in dead:
                    return [Row(CASES[trial.case].limit, FAILED, death.how)]
                dead[death.candidate] = death.how


class Died(Exception):
    """The process ended in the middle of a trial. candidate: whose turn it was, "" in the rounds of all; None: it had
    not come that far."""

    def __init__(self, candidate: str | None, how: str) -> None:
        super().__init__(how)
        self.candidate = candidate
        self.how = how


class Worker:
    """A process for the trials of a kind: timing, with KEEP_FREED; or memory, as the system has it."""

    def __init__(self, what: str, settings: BenchSettings) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(settings.threads), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        environment |= {} if what == MEMORY else KEEP_FREED
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "posenc.lab.bench.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=environment, text=True,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )  # fmt: skip
        self.settings = settings

    def measure(
        self,
        trial: Trial,
        dead: Mapping[str, str],
        expected: Mapping[str, float],
        announce: Announce,
    ) -> list[Row]:
        """`measure.measure`, over there.

        Raises:
            Died: the process ended, by itself or because it took too long.
        """
        job = {
            "trial": asdict(trial),
            "settings": asdict(self.settings),
            "dead": dict(dead),
            "expected": dict(expected),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        now: str | None = None
        timer = threading.Timer(LONGEST, self._kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            for line in self.process.stdout:
                answer = json.loads(line)
                if "rows" in answer:
                    return [Row(**row) for row in answer["rows"]]
                now = str(answer["now"])
                announce(now)
        except BrokenPipeError:
            pass
        finally:
            late = timer.finished.is_set()
            timer.cancel()
        code = self.process.wait()
        raise Died(now, f"gave no answer in {LONGEST} s" if late else f"the process died ({self._last_words(code)})")

    def _last_words(self, code: int) -> str:
        if code < 0:
            return f"{signal.Signals(-code).name}{', out of memory?' if code == -signal.SIGKILL else ''}"
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {code}"

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its session is its own

    def close(self) -> None:
        """End the process, whatever it is doing, and those that it started."""
        self._kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(BrokenPipeError):  # a job that was never read
                if stream is not None:
                    stream.close()


def main() -> None:
    """Over there: read jobs until the parent leaves."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    for line in sys.stdin:
        job = json.loads(line)
        effort = Effort(**job["settings"].pop("effort"))
        settings, trial = BenchSettings(**job["settings"], effort=effort), Trial(**job["trial"])
        torch.set_num_threads(settings.threads)
        torch.set_flush_denormal(settings.flush_denormal)
        rows = measure(trial, settings, job["dead"], job["expected"], lambda name: answer({"now": name}))
        answer({"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
