# SPDX-License-Identifier: Apache-2.0
"""The benchmark as a study: a cell is a trial, one comparison of a case's candidates; a record holds a row for each."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from bench.case import DTYPES, MODES
from bench.cases import CASES
from bench.measure import (
    MEASURED,
    MEMORY,
    TIME,
    BenchSettings,
    PeerEffort,
    Row,
    Trial,
    measure,
)
from posenc.errors import InputError, unknown
from posenc.lab.engines import Tick
from posenc.lab.machine import check_present, cpu, describe
from posenc.lab.study import Study, code
from posenc.lab.study import versions as own_versions
from posenc.lab.timing import ratios, spread

LONGEST = 2**24
"""Tokens of a sequence."""


@dataclass(frozen=True)
class Series:
    """The trials of a family of cases in one mode and dtype, at several lengths. named: only of cases that a user names."""

    family: str
    mode: str
    dtype: str
    lengths: tuple[int, ...]
    what: str = TIME
    named: bool = False


STANDARD = (
    Series("attention", "forward", "float32", (64, 512, 2048)),
    Series("attention", "forward", "bfloat16", (2048,)),
    Series("attention", "train", "float32", (64, 512, 2048)),
    Series("attention", "decode", "float32", (512, 4096)),
    Series("attention", "forward", "float32", (4096,), MEMORY),
    Series("attention", "train", "float32", (2048,), MEMORY),
    *(Series("rotary", mode, dtype, (4096,)) for mode in MODES for dtype in DTYPES),
    Series("rotary", "forward", "float32", (16384,)),
    Series("call", "decode", "float32", (128, 1024, 4096)),
    Series("tables", "forward", "float32", (4096, 131072)),
    Series("frontier", "forward", "float32", (2048, 8192), named=True),
    Series("frontier", "train", "float32", (2048, 8192), named=True),
    Series("frontier", "forward", "float32", (4096,), MEMORY, named=True),
)
QUICK = (
    Series("attention", "forward", "float32", (1024,)),
    Series("attention", "train", "float32", (512,)),
    Series("attention", "decode", "float32", (1024,)),
    Series("attention", "forward", "float32", (1024,), MEMORY),
    *(Series("rotary", mode, "float32", (1024,)) for mode in MODES),
    Series("call", "decode", "float32", (128,)),
    Series("tables", "forward", "float32", (4096,)),
    Series("frontier", "forward", "float32", (1024,), named=True),
    Series("frontier", "train", "float32", (512,), named=True),
)
QUICK_EFFORT = PeerEffort(rounds=3, block=0.01, budget=3.0, patience=1.0)


def plan(
    cases: Sequence[str] = (),
    lengths: Sequence[int] = (),
    modes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    memory: bool = True,
    preset: Sequence[Series] = STANDARD,
) -> list[Trial]:
    """The trials, case by case, short ones first. Arguments that are empty are the preset's; dtypes are combined with every
    mode and length. cases: names of cases or of families.

    Raises:
        InputError: an unknown case, mode or dtype, a length below 2, or nothing to measure.
    """
    families = dict.fromkeys(case.family for case in CASES.values())
    for what, names, known in (("case", cases, CASES | families), ("mode", modes, MODES), ("dtype", dtypes, DTYPES)):
        for name in names:
            if name not in known:
                raise unknown(what, name, known)
    for length in lengths:
        if not 2 <= length <= LONGEST:
            raise InputError(f"must be at least 2 and at most {LONGEST} tokens", lengths=length)
    trials: list[Trial] = []
    for case in dict.fromkeys(c for name in cases or CASES for c in CASES.values() if name in (c.name, c.family)):
        for s in preset:
            if s.named and not cases:
                continue
            if s.family != case.family or s.mode not in (modes or MODES) or (s.what == MEMORY and not memory):
                continue
            for dtype in dtypes or [s.dtype]:
                if s.mode in case.modes and dtype in case.dtypes:
                    every = sorted(lengths or s.lengths)
                    trials += [Trial(s.what, case.name, s.mode, dtype, length) for length in every]
    if not trials:
        raise InputError(f"nothing to measure: {', '.join(cases)} has no {' '.join([*modes, *dtypes])}")
    return list(dict.fromkeys(trials))


def versions() -> dict[str, str]:
    """Of posenc, torch and every package among the candidates that is installed."""
    installed = own_versions()
    for package in sorted({c.package for case in CASES.values() for c in case.candidates if c.package is not None}):
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


@dataclass(frozen=True)
class Rows:
    """What one trial measured."""

    rows: list[Row]


class BenchStudy(Study[Trial, Rows]):
    """Trials under shared settings, one after the other, each in a new process."""

    name = "bench"
    unit = "trials"

    def __init__(self, trials: Sequence[Trial], settings: BenchSettings) -> None:
        self.trials = trials
        self.settings = settings
        self.measured: int = 0

    def check(self) -> None:
        check_present(self.settings.device)

    def cells(self) -> list[Trial]:
        return list(self.trials)

    def record(self, cell: object) -> type[Any]:
        return Rows

    def facts(self, cell: Trial) -> Mapping[str, Any]:
        """Times are those of a processor and of the versions of other packages, torch's among them."""
        others = {package: version for package, version in versions().items() if package != "posenc"}
        return {
            "trial": asdict(cell),
            "settings": asdict(self.settings),
            "cpu": cpu(),
            "versions": others,
            "code": code(),
        }

    def measure(self, job: Sequence[Trial], tick: Tick) -> dict[Trial, Rows]:
        (trial,) = job
        rows = measure(trial, self.settings, lambda name: tick(0, f"{trial}: {name or 'rounds'}"))
        self.measured += 1
        tick(1, str(trial))
        return {trial: Rows(rows)}

    def results(self, done: Mapping[Trial, Rows]) -> dict[str, Any]:
        return {
            "trials_planned": len(self.trials),
            "trials_finished": len(done),
            "trials_kept_from_before": len(done) - self.measured,
            "machine": describe(torch.device(self.settings.device)),
            "versions": versions(),
            "settings": asdict(self.settings),
            "cases": {name: CASES[name].summary for name in dict.fromkeys(trial.case for trial in self.trials)},
            "trials": [summary(trial, measured.rows) for trial, measured in done.items()],
        }


def summary(trial: Trial, rows: Sequence[Row]) -> dict[str, Any]:
    """A trial as results.json has it: times and ratios as median, least and greatest of the rounds."""
    case = CASES[trial.case]
    packages = {candidate.name: candidate.package for candidate in case.candidates}
    limit = next((row for row in rows if row.name == case.limit and row.status == MEASURED), None)
    entries = []
    for row in rows:
        entry = asdict(row) | {"package": packages.get(row.name), "rounds": len(row.seconds)}
        entry |= {"seconds": None, "ratio": None, "bytes_above_limit": None}
        if row.seconds:
            entry["seconds"] = _rounded(row.seconds)
            if limit is not None:
                entry["ratio"] = _rounded(ratios(row.seconds, limit.seconds))
        if row.bytes is not None and limit is not None and limit.bytes is not None:
            entry["bytes_above_limit"] = row.bytes - limit.bytes
        entries.append(entry)
    return {**asdict(trial), "family": case.family, "limit": case.limit, "rows": entries}


def _rounded(values: Sequence[float]) -> dict[str, float]:
    """Their spread, to four significant digits."""
    return {key: float(f"{value:.4g}") for key, value in spread(values).items()}
