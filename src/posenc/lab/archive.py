# SPDX-License-Identifier: Apache-2.0
"""Finished runs of comparisons in a few small files: to commit, to add more seeds to, and to compare a new encoding with.

DIR/<task>-<seed>.json.gz     the runs of one task and seed; equal runs give equal bytes

A file is {"schema", "task", "seed", "settings", "data", "versions", "machines", "runs": {encoding: ...}}. Losses are rounded to
0.001 nats and stored as integers, shares to 0.000001; of the training loss there are at most 50 means, one per `stride` steps.
"""

import gzip
import io
import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from posenc.errors import InputError, unknown
from posenc.lab.experiment import Run, versions
from posenc.lab.files import Folder
from posenc.lab.results import CURVE_POINTS, LOSS, RunRecord, VariantScores
from posenc.lab.study import identity
from posenc.spec import REFUSED, names_code, read_json

__all__ = ["Part", "read", "write"]

SUFFIX = ".json.gz"
SCHEMA = 1
MOST_BYTES = 2**26
"""Of a file, unpacked."""
LOSSES, SHARES = 1000, 1000000
"""Units of a stored loss and of any other stored number."""


@dataclass(frozen=True)
class Part:
    """The runs of one task and seed, by encoding. settings, data, versions: all that their numbers depend on, beside the
    machines that trained them, each as `posenc.lab.machine.describe` has it."""

    task: str
    seed: int
    settings: Mapping[str, Any]
    data: str
    versions: Mapping[str, str]
    machines: Sequence[Mapping[str, Any]]
    runs: Mapping[str, RunRecord]

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.task}-{self.seed}{SUFFIX}"

    @property
    def conditions(self) -> tuple[Any, ...]:
        """What parts have in common whose runs can be put together."""
        return self.task, self.seed, dict(self.settings), self.data, dict(self.versions)

    def ids(self) -> dict[str, RunRecord]:
        """The runs by `Run.id`."""
        facts = {"seed": self.seed, "data": self.data, "task": self.task, "settings": self.settings, **self.versions}
        records = {encoding: (identity(facts | {"encoding": encoding}), run) for encoding, run in self.runs.items()}
        return {id: replace(run, run={**run.run, "id": id}) for id, run in records.values()}

    def to_bytes(self) -> bytes:
        """The file."""
        content = asdict(self) | {"schema": SCHEMA, "runs": {name: _packed(run) for name, run in self.runs.items()}}
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
                measure: {
                    at: _integers(values, LOSSES if measure == LOSS else SHARES) for at, values in measured.items()
                }
                for measure, measured in {LOSS: variant.paired, **variant.extra}.items()
            },
            "by_position": [_integers(row, LOSSES) for row in variant.by_position],
            "tokens_per_second": variant.tokens_per_second,
        }
        for variant in record.arms
    }
    sizes = ("parameters", "position_parameters", "training_seconds", "tokens_per_second", "memory_bytes")
    return {name: getattr(record, name) for name in sizes} | {
        "arms": variants,
        "steps": len(record.losses),
        "stride": stride,
        "losses": _integers([sum(part) / len(part) for part in curve], LOSSES),
    }


def _unpacked(packed: Mapping[str, Any], facts: Mapping[str, Any]) -> RunRecord:
    content = dict(packed)
    stride, steps = content.pop("stride"), content.pop("steps")
    losses = [value for value in _numbers(content.pop("losses"), LOSSES) for _ in range(stride)][:steps]
    variants = []
    for name, variant in content.pop("arms").items():
        scores = {
            measure: {at: _numbers(values, LOSSES if measure == LOSS else SHARES) for at, values in measured.items()}
            for measure, measured in variant["scores"].items()
        }
        by_position = [_numbers(row, LOSSES) for row in variant["by_position"]]
        rate = variant["tokens_per_second"]
        variants.append(VariantScores(name, variant["trained"], scores.pop(LOSS), by_position, rate, scores))
    return RunRecord(run=dict(facts), arms=variants, losses=losses, **content)


def _integers(values: Sequence[float], unit: int) -> list[int]:
    return [round(value * unit) for value in values]


def _numbers(values: Sequence[int], unit: int) -> list[float]:
    return [value / unit for value in values]


def write(directory: str | Path, done: Mapping[Run, RunRecord], machine: Mapping[str, Any]) -> list[Path]:
    """Add finished runs to a folder of archives; returns the files written. machine: that trained them.

    Raises:
        InputError: runs of an encoding or a task in a file, whose code an archive does not have, or not in float32 on a CPU; a file
            of other settings, data or versions.
    """
    parts: dict[tuple[str, int], dict[Run, RunRecord]] = {}
    for run, record in done.items():
        if run.code:
            raise InputError(
                f"encodings={run.encoding}: an archive has no code; archive the runs of posenc's encodings"
            )
        if facts := run.execution.facts():
            raise InputError(f"execution={facts}: archives are of runs in float32 on a CPU")
        parts.setdefault((run.settings.name, run.seed), {})[run] = record
    here, folder, paths = {part.name: part for part in _parts(directory)}, Folder(directory), []
    for (task, seed), runs in parts.items():
        first = next(iter(runs))
        records = {run.encoding: record for run, record in runs.items()}
        new = Part(task, seed, first.settings.to_dict(), first.data, versions(), [machine], records)
        old = here.get(new.name, new)
        if old.conditions != new.conditions:
            raise InputError(
                f"directory={str(directory)!r}: {new.name} was made {difference(old, new)}; give another folder, or remove it"
            )
        machines = [*(each for each in old.machines if each != machine), machine]
        paths.append(folder.write(new.name, replace(new, machines=machines, runs={**old.runs, **records}).to_bytes()))
    return paths


def difference(old: Part, new: Part) -> str:
    """What differs between two parts of a task and seed, in words."""
    if old.versions != new.versions:
        return f"by {in_words(old.versions)}, not {in_words(new.versions)}"
    if old.data != new.data:
        return "on other data"
    changed = [name for name in {*old.settings, *new.settings} if old.settings.get(name) != new.settings.get(name)]
    name = min(changed)
    return f"with {name}={old.settings.get(name)}, not {new.settings.get(name)}"


def in_words(versions: Mapping[str, str]) -> str:
    """ "posenc 1.0.0, torch 2.9.0"."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def read(directory: str | Path, tasks: Sequence[str] = ()) -> list[Part]:
    """The parts in a folder of archives, by task and seed; of some tasks alone where they are named.

    Raises:
        InputError: a folder without archives, without a task, or with a file that is damaged.
    """
    parts = sorted(_parts(directory), key=lambda part: part.seed)
    if not parts:
        raise InputError(f"directory={str(directory)!r}: has no files TASK-SEED{SUFFIX}; name a folder that has")
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
            raise InputError(f"directory={str(directory)!r}: {path.name}: {error}") from None
        except (AttributeError, OSError, EOFError, ValueError, TypeError, KeyError, zlib.error) as error:
            raise InputError(f"directory={str(directory)!r}: {path.name} is damaged ({error}); restore it") from None
        yield part


def archived(directory: str | Path, wanted: Collection[tuple[str, str, int]] | None = None) -> dict[str, RunRecord]:
    """The runs in a folder of archives, by `Run.id`; none where it has no archives. wanted: task, encoding and seed of those that
    are looked for, if not all.

    Raises:
        InputError: archives without any of these, or damaged ones.
    """
    parts = list(_parts(directory))
    found = {
        id: record
        for part in parts
        for id, record in part.ids().items()
        if wanted is None or (part.task, record.run["encoding"], part.seed) in wanted
    }
    if parts and not found:
        raise InputError(f"directory={str(directory)!r}: has no runs of these tasks, encodings and seeds")
    return found
