# SPDX-License-Identifier: Apache-2.0
"""The processes that measure: jobs go in and rows come out through a pipe, one line of JSON each.

glibc reads how it should treat freed memory when a process starts, so a fair setting needs a process of its own; the
user's is left alone. A candidate that takes the process down costs that candidate, not the benchmark.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import IO, Any, Self

import torch

from posenc.lab.bench.cases import CASES
from posenc.lab.bench.measure import measure
from posenc.lab.bench.study import FAILED, MEMORY, Row, Settings, Trial
from posenc.lab.bench.timing import Effort
from posenc.lab.machine import die_with_parent

Announce = Callable[[str], None]

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

    def __init__(self, settings: Settings) -> None:
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

    def __init__(self, what: str, settings: Settings) -> None:
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
        settings, trial = Settings(**job["settings"], effort=effort), Trial(**job["trial"])
        torch.set_num_threads(settings.threads)
        torch.set_flush_denormal(settings.flush_denormal)
        rows = measure(trial, settings, job["dead"], job["expected"], lambda name: answer({"now": name}))
        answer({"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
