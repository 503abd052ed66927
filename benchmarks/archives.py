# SPDX-License-Identifier: Apache-2.0
"""Finished runs of comparisons in a few small files: to commit, and to add more seeds to. `posenc compare --merge` reads them, too.

DIR/<task>-<seed>.json.gz     the runs of one task and seed, of the same settings, data and execution: a file of cells, see `posenc.lab.store`

Losses are rounded to 0.001 nats, shares to 0.000001; training losses are means over pieces, at most 50 of them.
"""

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from posenc.errors import InputError, listed, unknown
from posenc.lab.compare import Comparison, experiment
from posenc.lab.experiment import Dataset, Execution, Run
from posenc.lab.files import Folder
from posenc.lab.leaderboard import TASKS
from posenc.lab.machine import describe
from posenc.lab.measure import check_record
from posenc.lab.records import BUDGET, CONTEXT, LOSS, RunRecord
from posenc.lab.results import CURVE_POINTS
from posenc.lab.store import ARCHIVE, Store, Stored, decoded, encoded
from posenc.lab.study import difference
from posenc.lab.user_code import REFUSED, names_code

FACTS = {"task": str, "seed": int, "encoding": str, "data": str, "settings": dict}


def conditions(cell: Stored[RunRecord]) -> dict[str, Any]:
    """What the runs of one task have in common."""
    return {name: value for name, value in cell.facts.items() if name not in ("encoding", "seed")}


def file_of(facts: Mapping[str, Any]) -> str:
    """The name of the file that a run stands in."""
    return f"{facts['task']}-{facts['seed']}{ARCHIVE}"


def write(directory: str | Path, done: Mapping[Run, Stored[RunRecord]], machine: Mapping[str, Any]) -> list[Path]:
    """Add finished runs to a folder of archives; returns the files written. machine: that trained them.

    Raises:
        InputError: runs of an encoding or a task in a file, whose code an archive does not have; a file of other settings, data or
            execution.
    """
    new: dict[str, list[Stored[RunRecord]]] = {}
    for run, stored in done.items():
        if run.code:
            raise InputError("an archive has no code", "archive the runs of posenc's encodings", encodings=run.encoding)
        known = stored.machine or dict(machine)
        rounded = replace(stored, record=_rounded(stored.record), facts=run.facts(), machine=known)
        new.setdefault(file_of(rounded.facts), []).append(rounded)
    folder, paths = Folder(directory), []
    for name, cells in new.items():
        old = _read(path) if (path := Path(directory) / name).exists() else []
        for before in old[:1]:
            if conditions(before) != conditions(cells[0]):
                raise InputError(
                    f"{name} has {difference(conditions(before), [conditions(cells[0])])}",
                    "give another folder, or remove it",
                    directory=str(directory),
                )
        runs = {cell.facts["encoding"]: cell for cell in (*old, *cells)}
        paths.append(folder.write(name, gzip.compress(encoded(runs[each] for each in sorted(runs)), 9, mtime=0)))
    return paths


def read(directory: str | Path, tasks: Sequence[str] = ()) -> list[Stored[RunRecord]]:
    """The runs in a folder of archives, by task and seed; of some tasks alone where they are named.

    Raises:
        InputError: a folder without archives, without a task, or with a file that is damaged.
    """
    cells = [cell for path in sorted(Path(directory).glob(f"*{ARCHIVE}")) for cell in _read(path)]
    if not cells:
        raise InputError(f"has no files TASK-SEED{ARCHIVE}", "name a folder that has", directory=str(directory))
    known = list(dict.fromkeys(cell.facts["task"] for cell in cells))
    for task in tasks:
        if task not in known:
            raise unknown("task", task, known)
    cells.sort(key=lambda cell: cell.facts["seed"])
    return [cell for task in tasks or known for cell in cells if cell.facts["task"] == task]


def archive(comparisons: Sequence[tuple[Comparison, Dataset]], directory: str | Path, to: str | Path) -> list[Path]:
    """Add the finished runs of a folder to a folder of archives; returns the files written.

    Raises:
        InputError: none is finished; what `write` refuses.
    """
    store = Store(directory)
    runs = [run for comparison, corpus in comparisons for run in comparison.runs(corpus)]
    done = {run: stored for run in runs if (stored := store.load(run.id, RunRecord)) is not None}
    if not done:
        raise InputError("has no finished run of these comparisons", directory=str(directory))
    machine = {name: value for name, value in describe(torch.device("cpu")).items() if name != "load"}
    return write(to, done, machine)


def compared(
    directory: str | Path, data: str | None = None
) -> tuple[list[tuple[Comparison, Dataset]], dict[Run, RunRecord], dict[str, str]]:
    """The comparisons in a folder of archives, a task each; their runs, of the encodings that every task has; and by task what
    trained them. data: as of
    `posenc compare`; None: the tasks' default. Seeds are those from 0 on that every task has. A task whose data are others here, as the text of another Python is, is left out.

    Raises:
        InputError: no such archives, runs of several settings, or none whose data are the same here.
    """
    cells: dict[str, list[Stored[RunRecord]]] = {}
    for cell in read(directory):
        cells.setdefault(cell.facts["task"], []).append(cell)
    known = [dict.fromkeys(cell.facts["encoding"] for cell in of_task) for of_task in cells.values()]
    names = tuple(name for name in known[0] if all(name in each for each in known))
    seeds = [{cell.facts["seed"] for cell in of_task} for of_task in cells.values()]
    most = min(next(n for n in count() if n not in there) for there in seeds)
    comparisons: list[tuple[Comparison, Dataset]] = []
    runs: dict[Run, RunRecord] = {}
    notes: dict[str, str] = {}
    for task in [*filter(cells.__contains__, TASKS), *(task for task in cells if task not in TASKS)]:
        facts = cells[task][0].facts
        used = [c for c in cells[task] if c.facts["encoding"] in names and c.facts["seed"] < most]
        try:
            execution = Execution(**{n: facts[n] for n in ("device", "precision", "compiled") if n in facts})
            settings = experiment(task)().changed(**facts["settings"])
            for cell in used:
                if conditions(cell) != conditions(cells[task][0]):
                    raise InputError(f"has {difference(conditions(cell), [conditions(cells[task][0])])}")
                check_record(cell.facts["encoding"], settings, cell.record)
        except (TypeError, ValueError) as error:
            raise InputError(f"{file_of(facts)}: {error}", directory=str(directory)) from None
        corpus, settings = settings.load(data or settings.data)
        if corpus.digest == facts["data"]:
            of = {Run.of(c.facts["encoding"], c.facts["seed"], settings, corpus.digest, execution): c for c in used}
            runs |= {run: cell.record for run, cell in of.items()}
            processors = dict.fromkeys(str(cell.machine.get("gpu", cell.machine.get("cpu"))) for cell in used)
            programs = dict.fromkeys(cell.program for cell in used)
            where = f"{listed([*processors])} by {listed([*programs])}"
            notes[task] = f"The encodings are those of a table of finished runs, trained on {where}."
            comparisons.append((Comparison(names, len({run.seed for run in of}), settings, execution), corpus))
    if not comparisons:
        raise InputError("no task has the same data here", directory=str(directory))
    return comparisons, runs, notes


def _read(path: Path) -> list[Stored[RunRecord]]:
    import msgspec

    try:
        cells = decoded(path.read_bytes(), RunRecord)
        for cell in cells:
            for name, kind in FACTS.items():
                if type(cell.facts.get(name)) is not kind:
                    raise InputError(f"its {name} is no {kind.__name__}")
            for name in ("task", "encoding"):
                if names_code(cell.facts[name]):
                    raise InputError(f"its {name} {cell.facts[name]!r} {REFUSED}")
            if file_of(cell.facts) != path.name:
                raise InputError(f"it is {file_of(cell.facts)}")
    except (InputError, OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path.name} is damaged ({error})", "restore it", directory=str(path.parent)) from None
    return cells


def _rounded(record: RunRecord) -> RunRecord:
    stride = -(-len(record.losses) // CURVE_POINTS)
    pieces = [record.losses[at : at + stride] for at in range(0, len(record.losses), stride)]
    return replace(
        record,
        losses=[round(sum(piece) / len(piece), 3) for piece in pieces for _ in piece],
        variants=[
            replace(
                variant, paired=_to_digits(variant.paired, LOSS),
                extra={measure: _to_digits(of, measure) for measure, of in variant.extra.items()},
            )
            for variant in record.variants
        ],
    )  # fmt: skip


def _to_digits(scores: Mapping[str, Sequence[float]], measure: str) -> dict[str, list[float]]:
    digits = 3 if measure in (LOSS, CONTEXT, BUDGET) else 6
    return {at: [round(value, digits) for value in values] for at, values in scores.items()}
