# SPDX-License-Identifier: Apache-2.0
"""A whole benchmark: trial after trial, each stored when it is done, and results.json from what there is.

DIR/cells/<id>.json     one finished trial; a trial whose file is there is not run again
DIR/results.json        every number of the report
DIR/set-aside/          files that could not be used, see `posenc.measuring.records`
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from posenc.bench.cases import CASES
from posenc.bench.harness import ratios, spread
from posenc.bench.measure import FAILED, MEASURED, Row
from posenc.bench.plan import TIME, Settings, Trial, identity, versions
from posenc.bench.worker import Died, Worker
from posenc.measuring.machine import check_present, describe
from posenc.measuring.records import Records, typed

SCHEMA = 1


@dataclass(frozen=True)
class Progress:
    """Callbacks of a benchmark on its way."""

    planned: Callable[[int, int], None] = lambda trials, kept: None
    now: Callable[[Trial, str], None] = lambda trial, candidate: None
    finished: Callable[[Trial, Sequence[Row]], None] = lambda trial, rows: None


def bench(
    trials: Sequence[Trial],
    settings: Settings,
    directory: str | Path,
    *,
    progress: Progress | None = None,
    command: str = "",
    render: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = None,
) -> dict[str, Any]:
    """Measure the trials that the folder does not hold yet, and write results.json; interrupted, with what there is.

    render: file name -> what makes it from the results.

    Raises:
        InputError: a folder that cannot be written, or that another run is writing into, or a device that is not there.
    """
    check_present(settings.device)
    folder = Records(directory)
    with folder.lock(command or "a benchmark from Python"):
        return _run(trials, settings, folder, progress or Progress(), command, render or {})


def _run(
    trials: Sequence[Trial],
    settings: Settings,
    folder: Records,
    progress: Progress,
    command: str,
    render: Mapping[str, Callable[[Mapping[str, Any]], str]],
) -> dict[str, Any]:
    """A benchmark in a folder that is ours."""
    started = time.perf_counter()
    stored = {trial: load(folder, trial, settings) for trial in trials}
    rows = {trial: found for trial, found in stored.items() if found is not None}
    progress.planned(len(trials), len(rows))
    kept = len(rows)
    with contextlib.suppress(KeyboardInterrupt), Workers(settings) as workers:
        for trial in trials:
            if trial in rows:
                continue
            rows[trial] = workers.measure(trial, expectations(trial, rows), progress)
            save(folder, trial, settings, rows[trial])
            progress.finished(trial, rows[trial])
    results = {
        "schema": SCHEMA,
        "complete": len(rows) == len(trials),
        "trials_planned": len(trials),
        "trials_finished": len(rows),
        "trials_kept_from_before": kept,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - started, 1),
        "command": command,
        "machine": describe(torch.device(settings.device)),
        "versions": versions(),
        "settings": asdict(settings),
        "cases": {name: CASES[name].summary for name in dict.fromkeys(trial.case for trial in trials)},
        "set_aside": folder.set_aside(),
        "trials": [told(trial, rows[trial]) for trial in trials if trial in rows],
    }
    folder.write("results.json", json.dumps(results, indent=1))
    for name, make in render.items():
        folder.write(name, make(results))
    return results


class Workers:
    """The processes of a benchmark, started when they are first needed, and again when they have died."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.running: dict[str, Worker] = {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.running.values():
            worker.close()

    def measure(self, trial: Trial, expected: Mapping[str, float], progress: Progress) -> list[Row]:
        """A trial's rows; a candidate that takes the process down is named, and the trial repeated without it.

        Raises:
            RuntimeError: the process died before it could begin.
        """
        dead: dict[str, str] = {}
        while True:
            if trial.what not in self.running:
                self.running[trial.what] = Worker(trial.what, self.settings)
            try:
                return self.running[trial.what].measure(trial, dead, expected, lambda name: progress.now(trial, name))
            except Died as death:
                self.running.pop(trial.what).close()
                if death.candidate is None:
                    raise RuntimeError(f"{trial}: {death.how}; what was measured is kept") from None
                if not death.candidate or death.candidate in dead:
                    return [Row(CASES[trial.case].limit, FAILED, death.how)]
                dead[death.candidate] = death.how


def expectations(trial: Trial, rows: Mapping[Trial, Sequence[Row]]) -> dict[str, float]:
    """Seconds a call of each candidate, from the timing of the longest sequence of the same case, mode and dtype that
    is not longer."""
    same = [t for t in rows if (t.what, t.case, t.mode, t.dtype) == (TIME, trial.case, trial.mode, trial.dtype)]
    found: dict[str, float] = {}
    for earlier in sorted((t for t in same if t.length <= trial.length), key=lambda t: t.length):
        grown = (trial.length / earlier.length) ** CASES[trial.case].growth_in(trial.mode)
        found |= {row.name: spread(row.seconds).median * grown for row in rows[earlier] if row.seconds}
    return found


def told(trial: Trial, rows: Sequence[Row]) -> dict[str, Any]:
    """A trial as results.json has it: times and ratios as median, least and greatest of the rounds."""
    limit = CASES[trial.case].limit
    against = next((row for row in rows if row.name == limit and row.status == MEASURED), None)
    packages = {c.name: c.peer.package for c in CASES[trial.case].candidates if c.peer is not None}
    found = []
    for row in rows:
        entry: dict[str, Any] = {key: value for key, value in asdict(row).items() if key != "seconds"}
        entry |= {
            "package": packages.get(row.name),
            "rounds": len(row.seconds),
            "seconds": None,
            "ratio": None,
            "bytes_above_limit": None,
        }
        if row.seconds:
            entry["seconds"] = _rounded(row.seconds)
            if against is not None:
                entry["ratio"] = _rounded(ratios(row.seconds, against.seconds))
        if row.bytes is not None and against is not None and against.bytes is not None:
            entry["bytes_above_limit"] = row.bytes - against.bytes
        found.append(entry)
    return {**asdict(trial), "family": CASES[trial.case].family, "limit": limit, "rows": found}


def _rounded(values: Sequence[float]) -> dict[str, float]:
    """Their spread, to the digits that mean something."""
    return {key: float(f"{value:.4g}") for key, value in asdict(spread(values)).items()}


def save(folder: Records, trial: Trial, settings: Settings, rows: Sequence[Row]) -> None:
    """Keep a finished trial."""
    kept = {"trial": asdict(trial), "rows": [asdict(row) for row in rows]}
    folder.keep(f"cells/{identity(trial, settings)}.json", kept)


def load(folder: Records, trial: Trial, settings: Settings) -> list[Row] | None:
    """A finished trial, or None; a damaged file is set aside."""
    return folder.kept(f"cells/{identity(trial, settings)}.json", lambda raw: [typed(Row, row) for row in raw["rows"]])
