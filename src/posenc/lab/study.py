# SPDX-License-Identifier: Apache-2.0
"""One study engine. A study is settings, cells, how a cell is measured, and the results of all cells; `run` does the rest: it
locks the folder, resumes, computes on an engine, stores every cell, survives an interrupt, and reports.

A new study is a subclass of `Study` with a name, a unit, five methods, and a page: see docs/reliability.md and examples/new_study.py.
"""

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from posenc.errors import InputError, listed
from posenc.lab.engines import Engine, InProcess, Tick
from posenc.lab.store import Store, Stored, identity
from posenc.pretrained.scratch import scratch
from posenc_version import version

__all__ = ["Interrupted", "Progress", "Results", "Stored", "Study", "run"]

C = TypeVar("C", bound=Hashable)
M = TypeVar("M")

Results = Mapping[str, Any]
"""The content of results.json."""
Pages = Callable[[Results], Mapping[str, str | bytes]]
"""What makes files of the results: the content of each by its name, the page first."""


RESERVED = frozenset(("schema", "kind", "complete", "created", "seconds", "command", "set_aside", "programs"))
"""Keys of results.json that `run` sets."""


class Interrupted(Exception):
    """Stopped from the keyboard before a single cell had finished."""


class Study(ABC, Generic[C, M]):
    """What is measured, cell by cell.

    A cell is frozen data that describes what is measured; equal cells give equal numbers, if the program is the same. A job is
    one cell, or several that are measured in one go.
    """

    name: ClassVar[str]
    """Of the command; "kind" in results.json."""
    unit: ClassVar[str]
    """What cells are called, in the plural; the key of their counts in results.json, unless `results` has one of that name, which no command shows."""

    @abstractmethod
    def cells(self) -> list[C]:
        """Every cell, in the order in which they are measured and reported."""

    @abstractmethod
    def facts(self, cell: C) -> Mapping[str, Any]:
        """The settings and data that the numbers of a cell depend on, as JSON's types: the hash of them names the cell's file."""

    @abstractmethod
    def measure(self, job: Sequence[C], tick: Tick) -> dict[C, M]:
        """Measure the cells of a job, here and now; tick(size, what) after each piece of `work`. Engines call it in other
        processes, on a copy of the study."""

    @abstractmethod
    def results(self, done: Mapping[C, M]) -> dict[str, Any]:
        """Every number of the report, from the cells that have finished; among them "settings"."""

    @abstractmethod
    def record(self, cell: C) -> type[Any]:
        """What a cell measures: a dataclass of plain numbers, strings, lists and dicts."""

    # ---------------------------------------------------------------- with defaults

    def check(self) -> None:
        """Refuse, before anything is measured, what could not be measured to its end.

        Raises:
            InputError: names the argument.
        """

    def jobs(self, cells: Sequence[C]) -> list[list[C]]:
        """The cells that are still to be measured, in jobs."""
        return [[cell] for cell in cells]

    def describe(self, job: Sequence[C]) -> str:
        """A job in a few words, for a line of progress."""
        return str(job[0])

    def found(self, cell: C, record: M) -> str:
        """What a cell has measured in a line, which is shown at once; "": nothing is."""
        return ""

    def work(self, job: Sequence[C]) -> float:
        """The size of a job, in the unit of its ticks."""
        return len(job)

    def check_record(self, cell: C, record: M) -> None:
        """Raises:
        ValueError: a stored record is not one that the cell could have.
        """


def versions() -> dict[str, str]:
    """Of the libraries that measure here."""
    return {"posenc": version(), "torch": str(torch.__version__)}


@cache
def code() -> str:
    """A digest of posenc's source, for the facts of cells that a changed program measures anew."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def in_words(versions: Mapping[str, str]) -> str:
    """ "posenc 1.0.0, torch 2.9.0"."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def difference(facts: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> str:
    """In which settings and data a cell differs from the one of others that is most like it, in words."""
    cell = _flat(_plain(facts))

    def changed(other: dict[str, Any]) -> list[str]:
        return [name for name in {**cell, **other} if cell.get(name) != other.get(name)]

    nearest = min((_flat(_plain(other)) for other in others), key=lambda other: len(changed(other)))
    pairs = [f"{name}={cell.get(name)!s:.40}, not {nearest.get(name)!s:.40}" for name in changed(nearest)]
    return listed(pairs) or "values of another form"


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as a file has them, without tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(facts))
    return plain


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without nesting, by the last key."""
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return flat


class Progress:
    """What a run reports on its way; this one reports nothing."""

    def started(self, study: Study[Any, Any], cells: int, before: int, work: float) -> None:
        """So many cells, some measured before, and so much work that is left; called before the first measurement."""

    def advanced(self, size: float, what: str) -> None:
        """So much more work is done; what: is done now."""

    def finished(self, what: str, measured: Mapping[Any, Any], done: int) -> None:
        """A job has finished. what: in a few words. measured: by cell. done: cells that are done."""

    def say(self, sentence: str) -> None:
        """Show a sentence to the user."""


def run(
    study: Study[C, M],
    directory: str | Path | None = None,
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
    command: str = "",
    pages: Pages | None = None,
    begin: Callable[[], object] = lambda: None,
    share: tuple[int, int] = (1, 1),
    merge: Sequence[str | Path] = (),
) -> dict[str, Any]:
    """Measure the cells that the folder does not have yet, and write results.json; returns its content.

    A stored cell is used if its settings and data are those of a cell here; "programs" has the versions of the programs that
    measured, and a cell of another one than this is stated. directory: every new cell is stored at once; None: nothing is written.
    engine: where jobs are computed; by default one after the other in this process. pages: what makes files
    of the results. begin: is called after every check, before the first measurement. share: (1, 4) is the first of four
    shares of the cells, for one of four machines. merge: folders whose cells are copied first, or archives that the study
    reads. Ctrl-C ends the run: what was measured is reported, with "complete": false.

    Raises:
        InputError: invalid settings, a folder that cannot be written, or another run in the folder.
        Interrupted: Ctrl-C before a single cell had finished.
    """
    for name in ("name", "unit"):
        if not isinstance(getattr(study, name, None), str):
            raise InputError(f"{type(study).__name__}.{name}: is missing; set it to a text, as in docs/reliability.md")
    part, parts = share
    if not 1 <= part <= parts:
        raise InputError("write two numbers, as in 1/4 for the first of four shares", share=f"{part}/{parts}")
    study.check()
    engine, progress = engine or InProcess(), progress or Progress()
    with scratch() if directory is None else nullcontext(directory) as folder:
        store = Store(folder)
        with store.lock(command or f"posenc.{study.name}, from Python"):
            facts = {cell: _plain(study.facts(cell)) for cell in study.cells()}
            ids = _identities(facts)
            if not (here := dict(list(ids.items())[part - 1 :: parts])):
                raise InputError(f"has no {study.unit}", f"make at most {len(ids)} shares", share=f"{part}/{parts}")
            cells = {id: cell for cell, id in ids.items()}
            planned = set(cells)

            def check(id: str, stored: Stored[M]) -> None:
                if id not in cells:
                    raise InputError(f"has {difference(stored.facts, facts.values())}")
                study.check_record(cells[id], stored.record)

            if merge:
                store.merge(merge, study.record(next(iter(ids))), check, planned)
            begin()
            return _run(study, here, facts, store, engine, progress, command, pages or (lambda _: {}))


def _run(
    study: Study[C, M],
    ids: Mapping[C, str],
    facts: Mapping[C, dict[str, Any]],
    store: Store,
    engine: Engine,
    progress: Progress,
    command: str,
    pages: Pages,
) -> dict[str, Any]:
    started = time.perf_counter()
    program, here = in_words(versions()), dict[C, Stored[M]]()

    def read() -> None:
        for cell, id in ids.items():
            if cell not in here and (stored := store.load(id, study.record(cell))) is not None:
                try:
                    study.check_record(cell, stored.record)
                    here[cell] = stored
                except ValueError as error:
                    store.set_aside(id, str(error))

    ticked = 0.0

    def tick(size: float, what: str = "") -> None:
        nonlocal ticked
        ticked += size
        progress.advanced(size, what)

    def write() -> dict[str, Any]:
        part = {cell: here[cell].record for cell in ids if cell in here}
        results: dict[str, Any] = {
            "schema": 1,
            "kind": study.name,
            "complete": len(part) == len(ids),
            study.unit: {"planned": len(ids), "finished": len(part), "kept_from_before": before},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - started, 1),
            "command": command,
            "set_aside": store.damaged,
            "programs": sorted({stored.program or "unknown" for stored in here.values()}),
        }
        numbers = study.results(part)
        if "settings" not in numbers:
            raise InputError(f"{type(study).__name__}.results: has no 'settings'; add them, {{}} if there are none")
        if taken := sorted(RESERVED & numbers.keys()):
            raise InputError(f"{type(study).__name__}.results: {taken[0]!r} is set by `run`; give it another name")
        results |= numbers
        ran_on = {"posenc": version(), "engine": engine.name, "workers": engine.workers}
        results["machine"] = results.get("machine", {}) | ran_on
        store.write("results.json", json.dumps(results, indent=1, allow_nan=False))
        for name, content in pages(results).items():
            store.write(name, content)
        return results

    read()
    for other, count in Counter(stored.program for stored in here.values() if stored.program != program).items():
        progress.say(
            f"Program: {count} of the {study.unit} are of {other or 'an unknown program'}, not {program}; give another "
            "folder to measure them again"
        )
    before = len(here)
    jobs = study.jobs([cell for cell in ids if cell not in here])
    progress.started(study, len(ids), before, sum(map(study.work, jobs)))
    try:
        with closing(engine.run(_measure, study, jobs, tick)) as outcomes:
            for job, measured in outcomes:
                for cell in (cell for cell in job if cell not in measured):
                    raise InputError(f"{type(study).__name__}.measure: returned no record of the cell {cell}")
                for cell in job:
                    stored = Stored(measured[cell], facts[cell], program)
                    store.save(ids[cell], stored)  # before it counts: Ctrl-C may come between
                    here[cell] = stored
                progress.advanced(study.work(job) - ticked, study.describe(job))  # processes do not tick
                ticked = 0.0
                progress.finished(study.describe(job), measured, len(here))
                for line in filter(None, (study.found(cell, measured[cell]) for cell in job)):
                    progress.say(line)
    except KeyboardInterrupt:
        read()  # it may have come between storing a cell and counting it
        if not here:
            raise Interrupted from None
    return write()


def _measure(study: Study[C, M], job: Sequence[C], tick: Tick) -> dict[C, M]:
    return study.measure(job, tick)


def _identities(facts: Mapping[C, Mapping[str, Any]]) -> dict[C, str]:
    """Raises:
    InputError: two cells have equal facts."""
    cells: dict[str, C] = {}
    for cell, of_cell in facts.items():
        other = cells.setdefault(identity(of_cell), cell)
        if other != cell:
            why = f"the same for the cells {other} and {cell}, which would share a file"
            raise InputError(why, "return what distinguishes them", argument="facts")
    return {cell: id for id, cell in cells.items()}
