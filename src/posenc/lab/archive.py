# SPDX-License-Identifier: Apache-2.0
"""Finished runs of comparisons in a few small files: to commit, to add more seeds to, and to compare a new encoding with.

DIR/<task>-<seed>.json.gz     the runs of one task and seed, of the same settings, data and execution: a file of cells, see `posenc.lab.store`

Losses are rounded to 0.001 nats, shares to 0.000001; training losses are means over pieces, at most 50 of them.
"""

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posenc.errors import InputError, unknown
from posenc.lab.experiment import Run
from posenc.lab.files import Folder
from posenc.lab.records import BUDGET, CONTEXT, LOSS, RunRecord
from posenc.lab.results import CURVE_POINTS
from posenc.lab.store import ARCHIVE, Stored, decoded, encoded
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
