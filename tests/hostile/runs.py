"""Real runs of posenc in processes of their own, to be killed: tiny ones that take seconds."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostile.faults import scratch, snapshot
from references import PATIENCE

SIZES = "--length 16 --factors 1 2 --batch-size 2 --dim 8 --num-layers 1 --num-heads 2 --windows 4 --targets 8"
COMPARE = f"--encodings none alibi --seeds 2 --steps 60 {SIZES} --workers 1 --checkpoint-every 0.0001".split()
METHODS = "--tasks copying:segment=8 --methods rerope:window=16"
EVAL = f"{METHODS} --lengths 80 96 --samples 2 --seeds 6 --no-attention".split()
TIMES = re.compile(r"seconds|per_second|created|command|kept_from_before|set_aside|sha256|peak|_bytes$|^fed$|^load$")
"""What two runs of the same differ in: when, how fast, how resumed, under what memory, and beside what else."""


class Subject:
    """A run that is started as often as it takes: its command, and the folder that it writes into."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.command, self.folder = [*command, "--out", str(folder)], folder

    def start(self, *more: str) -> "Started":
        """Begin, or go on with, the run."""
        arguments = [sys.executable, "-m", "posenc.cli", *self.command, *more]
        return Started(
            subprocess.Popen(
                arguments,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
                process_group=0,
                env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            ),
            self.folder,
        )

    def cells(self) -> dict[str, tuple[bytes, int]]:
        """Every finished cell: what its file holds, and when it was written (ns)."""
        return snapshot(self.folder / "cells")

    def measured(self) -> dict[str, Any]:
        """Every number of results.json and of the cells, but for times."""
        found = {name: _plain(json.loads(content)) for name, (content, _) in self.cells().items()}
        return found | {"results.json": _plain(json.loads((self.folder / "results.json").read_bytes()))}


@dataclass
class Started:
    """One attempt at a run, with all its processes."""

    process: subprocess.Popen
    folder: Path

    def group(self) -> list[int]:
        """The processes that live: the driver, its workers, and what they have started."""
        return [pid for pid, group, _, state in _processes() if group == self.process.pid and state not in "ZX"]

    def workers(self) -> list[int]:
        """The processes that train."""
        found = []
        for pid, _, parent, state in _processes():
            if parent == self.process.pid and state not in "ZX":
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
                if b"spawn_main" in words:
                    found.append(pid)
        return found

    def wait_for(self, there: Callable[[], object]) -> bool:
        """Wait until something is there; False if the run ended before."""
        end = time.monotonic() + PATIENCE
        while not there():
            if self.process.poll() is not None:
                return bool(there())
            assert time.monotonic() < end, "it takes too long"
            time.sleep(0.005)
        return True

    def begun(self) -> bool:
        """Whether the run has its folder, before it ends."""
        return self.wait_for((self.folder / ".lock").exists)

    def measures(self) -> bool:
        """Wait until it writes something down that it has measured; False if it ended before."""
        since = time.time_ns()

        def written() -> bool:
            found = (*self.folder.glob("cells/*"), *self.folder.glob("checkpoints/*"))
            with contextlib.suppress(FileNotFoundError):
                return any(path.stat().st_mtime_ns > since for path in found)
            return False

        return self.wait_for(written)

    def end(self) -> tuple[int, str]:
        """Wait for the run's end: its exit code, and what it said on the error stream."""
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said

    def orphans(self) -> list[int]:
        """The processes that are there 30 seconds after the driver has ended; they are killed."""
        end = time.monotonic() + 30
        while self.group() and time.monotonic() < end:
            time.sleep(0.02)
        left = self.group()
        if left:
            os.killpg(self.process.pid, signal.SIGKILL)
        return left


def kill_group(started: Started, chosen: random.Random) -> None:
    """The driver and all its workers at once."""
    os.killpg(started.process.pid, signal.SIGKILL)


def kill_driver(started: Started, chosen: random.Random) -> None:
    """The driver alone: its workers have to see to it themselves."""
    started.process.kill()


def kill_worker(started: Started, chosen: random.Random) -> None:
    """One worker, as the system does when memory runs out."""
    if started.wait_for(started.workers):
        os.kill(chosen.choice(started.workers() or [started.process.pid]), signal.SIGKILL)


KILLS = {"all processes": kill_group, "the driver alone": kill_driver, "one worker": kill_worker}


@dataclass
class Tally:
    """What came of faults. wrong: what should not have been."""

    injected: int = 0
    attempts: int = 0
    resumed: int = 0
    """attempts that found finished cells"""
    kept: int = 0
    """finished cells that were there when a fault came"""
    lost: int = 0
    """of these, gone or changed afterwards"""
    checkpoints: int = 0
    """checkpoints that were there when an attempt began"""
    refused: int = 0
    aside: int = 0
    wrong: list[str] = field(default_factory=list)

    def check(self, holds: object, what: str) -> None:
        if not holds:
            self.wrong.append(what)


def kill_until(
    subject: Subject,
    times: int,
    seconds: float,
    kill: Callable[[Started, random.Random], None],
    chosen: random.Random,
    tally: Tally,
) -> None:
    """Kill a run `times` times at random moments, then let it end.

    Moments are counted from when it has measured something first, in the `seconds` that it goes on from there; one in
    four from its very start.
    """
    before = subject.cells() if subject.folder.exists() else {}
    for attempt in range(times + 1):
        tally.attempts += 1
        tally.resumed += bool(before)
        tally.checkpoints += len(list(subject.folder.glob("checkpoints/*")))
        started = subject.start()
        if attempt < times:
            if chosen.randrange(4):
                started.measures()
            time.sleep(chosen.uniform(0, seconds))
            alive = started.process.poll() is None
            if alive:
                kill(started, chosen)
                tally.injected += 1
            code, said = started.end()
            done = alive and code in (-signal.SIGKILL, 1)
            tally.check(done or code == 0, f"exit code {code}: {said[-500:]}")
        else:
            code, said = started.end()
            tally.check(code == 0, f"it did not end well: {code}, {said[-500:]}")
        tally.check("Traceback" not in said, f"a traceback: {said[-2000:]}")
        left = started.orphans()
        tally.check(not left, f"{len(left)} processes left")
        after = subject.cells() if subject.folder.exists() else {}
        lost = [name for name, found in before.items() if name.endswith(".json") and after.get(name) != found]
        tally.lost += len(lost)
        tally.check(not lost, f"lost {lost}")
        before = {name: found for name, found in after.items() if not name.startswith(".posenc-")}
        tally.kept += len(before)
    tally.check(not scratch(subject.folder), f"left: {scratch(subject.folder)}")
    tally.check(not (subject.folder / "checkpoints").exists(), "checkpoints are left")
    tally.check(not (subject.folder / "set-aside").exists(), "something was set aside")


def _processes() -> list[tuple[int, int, int, str]]:
    """Every process: its number, group, parent and state."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    state, parent, group = file.read().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            found.append((int(entry), int(group), int(parent), state))
    return found


def _plain(found: Any) -> Any:
    """Without what is a time."""
    if isinstance(found, dict):
        return {key: _plain(value) for key, value in found.items() if not TIMES.search(key)}
    return [_plain(each) for each in found] if isinstance(found, list) else found
