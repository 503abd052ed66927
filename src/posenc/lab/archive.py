# SPDX-License-Identifier: Apache-2.0
"""Finished runs of comparisons in a few small files: to commit, to add more seeds to, and to compare a new encoding with.

DIR/<task>-<seed>.json.gz     the runs of one task and seed; equal runs give equal bytes

A file is {"schema", "task", "seed", "settings", "data", "versions", "machines", "behaviours": {encoding: ...}, "runs": {encoding:
...}}, with "execution" where that is not float32 on a CPU, see `posenc.lab.experiment.Execution.facts`. Losses are rounded to 0.001 nats
and stored as integers, shares to 0.000001; of the training loss there are at most 50 means, one per `stride` steps.
"""

import gzip
import io
import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from posenc.errors import InputError, unknown
from posenc.lab.experiment import Execution, Run
from posenc.lab.files import Folder
from posenc.lab.records import CONTEXT, LOSS, RunRecord, VariantScores
from posenc.lab.results import CURVE_POINTS
from posenc.lab.store import Stored
from posenc.lab.study import difference, identity, in_words, versions
from posenc.lab.user_code import REFUSED, names_code
from posenc.spec import read_json

SUFFIX = ".json.gz"
SCHEMA = 2
"""Schema 1 had the loss by position of each passage, 82 % of its bytes."""
MOST_BYTES = 2**26
"""Of a file, unpacked."""
LOSSES, SHARES = 1000, 1000000
"""Units of a stored loss and of any other stored number."""


@dataclass(frozen=True)
class Part:
    """The runs of one task and seed, by encoding. settings, data: of all of them. versions: of the libraries that trained the last
    of them. machines: as `posenc.lab.machine.describe` has each. behaviours: by encoding, see
    `posenc.lab.measure.behaviour`. execution: of all of them, as `Execution.facts` has it."""

    task: str
    seed: int
    settings: Mapping[str, Any]
    data: str
    versions: Mapping[str, str]
    machines: Sequence[Mapping[str, Any]]
    runs: Mapping[str, RunRecord]
    behaviours: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    execution: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.task}-{self.seed}{SUFFIX}"

    @property
    def conditions(self) -> dict[str, Any]:
        """What parts have in common whose runs can be put together."""
        facts = {"task": self.task, "seed": self.seed, "settings": dict(self.settings), "data": self.data}
        return {**facts, **self.execution}

    @property
    def processors(self) -> list[str]:
        """What trained them: the GPUs, or the CPUs."""
        return list(dict.fromkeys(machine.get("gpu", machine["cpu"]) for machine in self.machines))

    def facts(self, encoding: str) -> dict[str, Any]:
        """See `Run.facts`."""
        return {"encoding": encoding, **self.conditions}

    def behaviour(self, encoding: str) -> dict[str, float]:
        """What the program computed that trained an encoding, as far as it is known."""
        return dict(self.behaviours.get(encoding, {}))

    def stored(self, encoding: str) -> Stored[RunRecord]:
        """The run of an encoding, and of what it is one."""
        facts = self.facts(encoding)
        return Stored(self.runs[encoding], facts, self.behaviour(encoding), in_words(self.versions))

    def to_bytes(self) -> bytes:
        """The file."""
        content = asdict(self) | {"schema": SCHEMA, "runs": {name: _packed(run) for name, run in self.runs.items()}}
        if not self.execution:
            del content["execution"]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return gzip.compress(text.encode(), 9, mtime=0)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The part in a file.

        Raises:
            InputError: a task or an encoding that names code.
            ValueError: another content, or one that unpacks to more than `MOST_BYTES`.
        """
        content = read_json(_unpacked_bytes(data))
        if content.pop("schema") != SCHEMA:
            raise ValueError("is of another schema")
        for what, names in (("task", [content["task"]]), ("encodings", content["runs"])):
            if code := next(filter(names_code, names), None):
                raise InputError(f"its {what} {code!r} {REFUSED}")
        Execution(**content.get("execution", {}))
        facts = {"task": content["task"], "seed": content["seed"], **content["versions"]}
        runs = {name: _unpacked(run, facts | {"encoding": name}) for name, run in content.pop("runs").items()}
        return cls(**content, runs=runs)


def _unpacked_bytes(data: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
    return content


def _packed(record: RunRecord) -> dict[str, Any]:
    stride = -(-len(record.losses) // CURVE_POINTS)
    curve = [record.losses[at : at + stride] for at in range(0, len(record.losses), stride)]
    variants = {
        variant.name: {
            "trained": variant.trained,
            "scores": {
                measure: {at: _integers(values, _unit(measure)) for at, values in measured.items()}
                for measure, measured in {LOSS: variant.paired, **variant.extra}.items()
            },
            "tokens_per_second": variant.tokens_per_second,
        }
        for variant in record.variants
    }
    sizes = ("parameters", "position_parameters", "training_seconds", "tokens_per_second", "memory_bytes")
    return {name: getattr(record, name) for name in sizes} | {
        "variants": variants,
        "steps": len(record.losses),
        "stride": stride,
        "losses": _integers([sum(part) / len(part) for part in curve], LOSSES),
    }


def _unpacked(packed: Mapping[str, Any], facts: Mapping[str, Any]) -> RunRecord:
    content = dict(packed)
    stride, steps = content.pop("stride"), content.pop("steps")
    losses = [value for value in _numbers(content.pop("losses"), LOSSES) for _ in range(stride)][:steps]
    variants = []
    for name, variant in content.pop("variants").items():
        scores = {
            measure: {at: _numbers(values, _unit(measure)) for at, values in measured.items()}
            for measure, measured in variant["scores"].items()
        }
        rate = variant["tokens_per_second"]
        variants.append(VariantScores(name, variant["trained"], scores.pop(LOSS), rate, scores))
    return RunRecord(run=dict(facts), variants=variants, losses=losses, **content)


def _unit(measure: str) -> int:
    return LOSSES if measure in (LOSS, CONTEXT) else SHARES


def _integers(values: Sequence[float], unit: int) -> list[int]:
    return [round(value * unit) for value in values]


def _numbers(values: Sequence[int], unit: int) -> list[float]:
    return [value / unit for value in values]


def write(directory: str | Path, done: Mapping[Run, Stored[RunRecord]], machine: Mapping[str, Any]) -> list[Path]:
    """Add finished runs to a folder of archives; returns the files written. machine: that trained them. Runs of one task and seed
    are of one execution: seconds of a GPU and of a CPU do not stand in one file.

    Raises:
        InputError: runs of an encoding or a task in a file, whose code an archive does not have; a file of other settings, data or
            execution.
    """
    parts: dict[tuple[str, int], dict[Run, Stored[RunRecord]]] = {}
    for run, stored in done.items():
        if run.code:
            raise InputError("an archive has no code", "archive the runs of posenc's encodings", encodings=run.encoding)
        parts.setdefault((run.settings.name, run.seed), {})[run] = stored
    here, folder, paths = {part.name: part for part in _parts(directory)}, Folder(directory), []
    for (task, seed), runs in parts.items():
        first = next(iter(runs))
        records = {run.encoding: stored.record for run, stored in runs.items()}
        computed = {run.encoding: stored.behaviour for run, stored in runs.items()}
        settings, execution = first.settings.to_dict(), first.execution.facts()
        new = Part(task, seed, settings, first.data, versions(), [machine], records, computed, execution)
        old = here.get(new.name, new)
        if old.conditions != new.conditions:
            raise InputError(
                f"{new.name} has {difference(old.conditions, [new.conditions])}",
                "give another folder, or remove it",
                directory=str(directory),
            )
        before = {encoding: old.behaviour(encoding) for encoding in old.runs}
        machines = [*(each for each in old.machines if each != machine), machine]
        new = replace(new, machines=machines, runs={**old.runs, **records}, behaviours={**before, **computed})
        paths.append(folder.write(new.name, new.to_bytes()))
    return paths


def read(directory: str | Path, tasks: Sequence[str] = ()) -> list[Part]:
    """The parts in a folder of archives, by task and seed; of some tasks alone where they are named.

    Raises:
        InputError: a folder without archives, without a task, or with a file that is damaged.
    """
    parts = sorted(_parts(directory), key=lambda part: part.seed)
    if not parts:
        raise InputError(f"has no files TASK-SEED{SUFFIX}", "name a folder that has", directory=str(directory))
    known = list(dict.fromkeys(part.task for part in parts))
    for task in tasks:
        if task not in known:
            raise unknown("task", task, known)
    return [part for task in tasks or known for part in parts if part.task == task]


def _parts(directory: str | Path) -> Iterator[Part]:
    for path in sorted(Path(directory).glob(f"*{SUFFIX}")):
        try:
            part = Part.from_bytes(path.read_bytes())
            if part.name != path.name:
                raise ValueError(f"it is {part.name}")
        except InputError as error:
            raise InputError(f"{path.name}: {error}", directory=str(directory)) from None
        except (AttributeError, OSError, EOFError, ValueError, TypeError, KeyError, zlib.error) as error:
            raise InputError(f"{path.name} is damaged ({error})", "restore it", directory=str(directory)) from None
        yield part


def archived(
    directory: str | Path, wanted: Collection[tuple[str, str, int]] | None = None
) -> dict[str, Stored[RunRecord]]:
    """The runs in a folder of archives, by `Run.id`; none where it has no archives. wanted: task, encoding and seed of those that
    are looked for, if not all.

    Raises:
        InputError: archives without any of these, or damaged ones.
    """
    parts = list(_parts(directory))
    found = [
        part.stored(encoding)
        for part in parts
        for encoding in part.runs
        if wanted is None or (part.task, encoding, part.seed) in wanted
    ]
    if parts and not found:
        raise InputError("has no runs of these tasks, encodings and seeds", directory=str(directory))
    named = {identity(each.facts): each for each in found}
    return {
        id: replace(each, record=replace(each.record, run={**each.record.run, "id": id})) for id, each in named.items()
    }
