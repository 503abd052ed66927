# SPDX-License-Identifier: Apache-2.0
"""`posenc bench` as a study: a cell is a trial, one comparison of a case's candidates; a record holds a row for each."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch

import posenc
from posenc.errors import InputError, unknown
from posenc.lab.bench.case import DTYPES, MODES
from posenc.lab.bench.cases import CASES
from posenc.lab.bench.timing import CLOCKS, Effort, ratios, spread
from posenc.lab.engines import Tick
from posenc.lab.machine import check_present, cores, cpu, describe
from posenc.lab.study import Study

TIME, MEMORY = "time", "memory"
LONGEST = 2**24
"""Tokens of a sequence."""


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
class BenchSettings:
    """What all trials of a benchmark share. clock: a key of CLOCKS. peers: whether other packages take part."""

    device: str = "cpu"
    threads: Annotated[int, "threads of the measuring process (default: 1)"] = 1
    clock: str = "cpu"
    flush_denormal: Annotated[bool, "torch.set_flush_denormal(True) while measuring"] = False
    peers: Annotated[bool, "measure other packages too (default: True)"] = True
    effort: Effort = field(default_factory=Effort)

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= 4 * cores():
            raise InputError(f"threads={self.threads}: must lie between 1 and {4 * cores()}")
        if self.effort.rounds < 1:
            raise InputError(f"rounds={self.effort.rounds}: must be at least 1")
        if not self.effort.patience > 0:
            raise InputError(f"patience={self.effort.patience}: must be a number of seconds above 0")
        if self.clock not in CLOCKS:
            raise unknown("clock", self.clock, CLOCKS)


@dataclass(frozen=True)
class Series:
    """The trials of a family of cases in one mode and dtype, at several lengths."""

    family: str
    mode: str
    dtype: str
    lengths: tuple[int, ...]
    what: str = TIME


STANDARD = (
    Series("attention", "forward", "float32", (512, 2048, 4096, 8192)),
    Series("attention", "forward", "bfloat16", (2048,)),
    Series("attention", "train", "float32", (512, 2048)),
    Series("attention", "decode", "float32", (512, 4096, 16384)),
    Series("attention", "forward", "float32", (4096, 8192), MEMORY),
    Series("attention", "train", "float32", (2048,), MEMORY),
    *(Series("rotary", mode, dtype, (4096,)) for mode in MODES for dtype in DTYPES),
    Series("rotary", "forward", "float32", (16384,)),
    Series("call", "decode", "float32", (128, 1024, 4096)),
    Series("tables", "forward", "float32", (4096, 131072)),
)
QUICK = (
    Series("attention", "forward", "float32", (1024,)),
    Series("attention", "train", "float32", (512,)),
    Series("attention", "decode", "float32", (1024,)),
    Series("attention", "forward", "float32", (1024,), MEMORY),
    *(Series("rotary", mode, "float32", (1024,)) for mode in MODES),
    Series("call", "decode", "float32", (128,)),
    Series("tables", "forward", "float32", (4096,)),
)
QUICK_EFFORT = Effort(rounds=3, block=0.01, budget=3.0, patience=1.0)


def plan(
    cases: Sequence[str] = (),
    lengths: Sequence[int] = (),
    modes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    memory: bool = True,
    preset: Sequence[Series] = STANDARD,
) -> list[Trial]:
    """The trials, case by case, short ones first. What is not given is the preset's; modes or dtypes that are given are
    all combined.

    Raises:
        InputError: an unknown case, mode or dtype, a length below 2, or nothing to measure.
    """
    for what, given, known in (("case", cases, CASES), ("mode", modes, MODES), ("dtype", dtypes, DTYPES)):
        for name in given:
            if name not in known:
                raise unknown(what, name, known)
    for length in lengths:
        if length < 2:
            raise InputError(f"lengths={length}: a sequence needs at least 2 tokens")
        if length > LONGEST:
            raise InputError(f"lengths={length}: must be at most {LONGEST}")
    series = list(_combined(preset, modes, dtypes) if modes or dtypes else preset)
    trials: list[Trial] = []
    for name in dict.fromkeys(cases or CASES):
        case = CASES[name]
        for s in series:
            fits = s.family == case.family and s.mode in case.modes and s.dtype in case.dtypes
            if fits and (memory or s.what == TIME):
                trials += [Trial(s.what, name, s.mode, s.dtype, length) for length in sorted(lengths or s.lengths)]
    if not trials:
        raise InputError(f"nothing to measure: {', '.join(cases)} has no {' '.join([*modes, *dtypes])}")
    return list(dict.fromkeys(trials))


def _combined(preset: Sequence[Series], modes: Sequence[str], dtypes: Sequence[str]) -> Iterable[Series]:
    """Every family in the given modes and dtypes, at the preset's lengths of that mode."""
    for s in preset:
        if modes and s.mode not in modes:
            continue
        for dtype in dtypes or [s.dtype]:
            longest = [o.lengths for o in preset if (o.family, o.mode, o.what) == (s.family, s.mode, s.what)]
            yield Series(s.family, s.mode, dtype, max(longest, key=len) if dtypes else s.lengths, s.what)


def versions() -> dict[str, str]:
    """Of posenc, torch and every peer that is installed."""
    peers = {c.peer for case in CASES.values() for c in case.candidates if c.peer is not None}
    installed = {
        peer.package: peer.version for peer in sorted(peers, key=lambda p: p.package) if peer.version is not None
    }
    return {"posenc": posenc.__version__, "torch": str(torch.__version__), **installed}


@cache
def _code() -> str:
    """Of the files that a measurement runs through."""
    root, digest = Path(posenc.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        folder, *inner = path.relative_to(root).parts
        if folder not in ("report", "conformance", "cli", "analysis") and (folder != "lab" or inner[0] == "bench"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


MEASURED, DIFFERS, MISSING, FAILED, LEFT_OUT = "measured", "differs", "missing", "failed", "left out"


@dataclass(frozen=True)
class Row:
    """What a trial measured of one candidate. status: one of the words above; note: why, where it is not MEASURED.
    error, tolerance: its difference to the formula in float64, and what is allowed. seconds: per call, round by round.
    """

    name: str
    status: str
    note: str = ""
    error: float | None = None
    tolerance: float | None = None
    seconds: list[float] = field(default_factory=list)
    bytes: int | None = None


@dataclass(frozen=True)
class Rows:
    """What one trial measured."""

    rows: list[Row]


class BenchStudy(Study[Trial, Rows]):
    """Trials under shared settings, one after the other, in processes of their own."""

    name = "bench"
    unit = "trials"

    def __init__(self, trials: Sequence[Trial], settings: BenchSettings) -> None:
        self.trials = trials
        self.settings = settings
        self.measured: dict[Trial, list[Row]] = {}

    def check(self) -> None:
        check_present(self.settings.device)

    def cells(self) -> list[Trial]:
        return list(self.trials)

    def record(self, cell: object) -> type[Any]:
        return Rows

    def facts(self, cell: Trial) -> Mapping[str, Any]:
        return {
            "trial": asdict(cell), "settings": asdict(self.settings), "cpu": cpu(), "versions": versions(), "code": _code(),
        }  # fmt: skip

    def stored(self, cell: Trial, measured: Rows) -> None:
        self.measured[cell] = measured.rows

    def session(self) -> AbstractContextManager[object]:
        from posenc.lab.bench.worker import Workers  # which imports this module

        self.workers = Workers(self.settings)
        return self.workers

    def measure(self, job: Sequence[Trial], tick: Tick) -> dict[Trial, Rows]:
        (trial,) = job
        announce = lambda name: tick(0, f"{trial}: {name or 'rounds'}")  # noqa: E731
        rows = self.workers.measure(trial, self._expected(trial), announce)
        tick(1, str(trial))
        return {trial: Rows(rows)}

    def _expected(self, trial: Trial) -> dict[str, float]:
        """Seconds a call of each candidate, from the timing of the longest sequence of the same case, mode and dtype that
        is not longer."""
        kind = (TIME, trial.case, trial.mode, trial.dtype)
        same = [t for t in self.measured if (t.what, t.case, t.mode, t.dtype) == kind and t.length <= trial.length]
        expected: dict[str, float] = {}
        for earlier in sorted(same, key=lambda t: t.length):
            growth = (trial.length / earlier.length) ** CASES[trial.case].growth_in(trial.mode)
            timed = [row for row in self.measured[earlier] if row.seconds]
            expected |= {row.name: spread(row.seconds).median * growth for row in timed}
        return expected

    def results(self, done: Mapping[Trial, Rows]) -> dict[str, Any]:
        return {
            "machine": describe(torch.device(self.settings.device)),
            "versions": versions(),
            "settings": asdict(self.settings),
            "cases": {name: CASES[name].summary for name in dict.fromkeys(trial.case for trial in self.trials)},
            "trials": [summary(trial, measured.rows) for trial, measured in done.items()],
        }

    def counts(self, planned: int, finished: int, before: int) -> dict[str, Any]:
        return {"trials_planned": planned, "trials_finished": finished, "trials_kept_from_before": before}


def summary(trial: Trial, rows: Sequence[Row]) -> dict[str, Any]:
    """A trial as results.json has it: times and ratios as median, least and greatest of the rounds."""
    limit = CASES[trial.case].limit
    against = next((row for row in rows if row.name == limit and row.status == MEASURED), None)
    packages = {c.name: c.peer.package for c in CASES[trial.case].candidates if c.peer is not None}
    entries = []
    for row in rows:
        entry: dict[str, Any] = {key: value for key, value in asdict(row).items() if key != "seconds"}
        entry |= {"package": packages.get(row.name), "rounds": len(row.seconds)}
        entry |= {"seconds": None, "ratio": None, "bytes_above_limit": None}
        if row.seconds:
            entry["seconds"] = _rounded(row.seconds)
            if against is not None:
                entry["ratio"] = _rounded(ratios(row.seconds, against.seconds))
        if row.bytes is not None and against is not None and against.bytes is not None:
            entry["bytes_above_limit"] = row.bytes - against.bytes
        entries.append(entry)
    return {**asdict(trial), "family": CASES[trial.case].family, "limit": limit, "rows": entries}


def _rounded(values: Sequence[float]) -> dict[str, float]:
    """Their spread, to the digits that mean something."""
    return {key: float(f"{value:.4g}") for key, value in asdict(spread(values)).items()}
