# SPDX-License-Identifier: Apache-2.0
"""The process that measures, and the pipe to it: jobs go in and rows come out, one line of JSON each.

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
from typing import IO, Any

import torch

from posenc.bench.harness import Effort
from posenc.bench.measure import Row, measure
from posenc.bench.memory import die_with_parent
from posenc.bench.plan import MEMORY, Settings, Trial

LONGEST = 900
"""Seconds after which a trial that says nothing is given up."""
KEEP_FREED = {
    "MALLOC_TRIM_THRESHOLD_": str(2**35),
    "MALLOC_MMAP_THRESHOLD_": str(2**35),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""glibc keeps freed memory, as the allocators of jemalloc and CUDA do: otherwise every fresh tensor of 32 MiB and more
is paid for by page faults, as much as a copy of it, which makes ratios bimodal."""


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
            [sys.executable, "-m", "posenc.bench.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=environment, text=True,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )  # fmt: skip
        self.settings = settings

    def measure(
        self,
        trial: Trial,
        dead: Mapping[str, str],
        expected: Mapping[str, float],
        announce: Callable[[str], None] = lambda name: None,
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
