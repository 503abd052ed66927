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
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from posenc.errors import InputError, listed
from posenc.lab.behaviour import disagreement
from posenc.lab.engines import Engine, InProcess, Tick
from posenc.lab.store import Store, Stored, identity
from posenc.pretrained.scratch import scratch
from posenc_version import version

__all__ = ["Interrupted", "Pace", "Progress", "Results", "Stored", "Study", "run"]

C = TypeVar("C", bound=Hashable)
M = TypeVar("M")

Results = Mapping[str, Any]
"""The content of results.json."""
Pages = Callable[[Results], Mapping[str, str | bytes]]
"""What makes files of the results: the content of each by its name, the page first."""


RESERVED = frozenset(("schema", "kind", "complete", "created", "seconds", "estimated_seconds", "command", "set_aside"))
"""Keys of results.json that `run` sets."""


FORETOLD = 60.0
"""Seconds: a run that is forecast to take longer is announced before its first cell."""


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
    """What cells are called, in the plural; the key of their counts in results.json, unless `results` has one of that name."""

    @abstractmethod
    def cells(self) -> list[C]:
        """Every cell, in the order in which they are measured and reported."""

    @abstractmethod
    def facts(self, cell: C) -> Mapping[str, Any]:
        """The settings and data that the numbers of a cell depend on, as JSON's types: the hash of them names the cell's file."""

    @abstractmethod
    def measure(self, job: Sequence[C], tick: Tick) -> dict[C, M]:
        """Measure the cells of a job, here and now; tick(size, what) after each piece of `work`. Engines call it in other
        processes, on a copy of what `remote` returns."""

    @abstractmethod
    def results(self, done: Mapping[C, M]) -> dict[str, Any]:
        """Every number of the report, from the cells that have finished; among them "settings"."""

    @abstractmethod
    def record(self, cell: C) -> type[Any]:
        """What a cell measures: a dataclass of plain numbers, strings, lists and dicts."""

    # ---------------------------------------------------------------- with defaults

    def behaviour(self, cell: C) -> Mapping[str, float]:
        """What the program that measures a cell computes in a small fixed case, by name: a stored cell whose numbers differ by
        more than rounding is of another program, and is measured again. Computed where the cell is measured, in a fraction of a
        second. By default nothing is compared."""
        return {}

    def kind(self, cell: C) -> C:
        """The cell whose behaviour is that of this one, too: it is computed once for all of a kind."""
        return cell

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

    def remote(self) -> Any:
        """What other processes get: anything picklable with `measure`."""
        return self

    def known(self) -> Mapping[C, Stored[M]]:
        """Cells that were measured elsewhere: they are reported, and neither measured nor stored here."""
        return {}

    def forecast(self) -> float | None:
        """Seconds that a unit of `work` takes here at least, measured in a moment before the first cell, where one may take minutes;
        None: the first cells tell."""
        return None

    def check_record(self, cell: C, record: M) -> None:
        """Raises:
        ValueError: a stored record is not one that the cell could have.
        """

    def sentences(self, results: Results) -> dict[str, Any]:
        """What follows from the results so far, such as the answer in words."""
        return {}


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


LONGEST_VALUE = 40
"""Characters of a setting that a difference spells out."""


def difference(facts: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> str:
    """In which settings and data a cell differs from the one of others that is most like it, in words."""
    cell = _flat(_plain(facts))

    def changed(other: dict[str, Any]) -> list[str]:
        return [name for name in {**cell, **other} if cell.get(name) != other.get(name)]

    nearest = min((_flat(_plain(other)) for other in others), key=lambda other: len(changed(other)))
    pairs = [(name, str(cell.get(name)), str(nearest.get(name))) for name in changed(nearest)]
    if not pairs:
        return "values of another form"
    return listed(
        [f"{name}={a}, not {b}" if max(len(a), len(b)) <= LONGEST_VALUE else f"other {name}" for name, a, b in pairs]
    )


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

    def started(self, study: Study[Any, Any], cells: int, before: int, pace: "Pace") -> None:
        """There are so many cells, of which some were measured before; called before the first measurement."""

    def advanced(self, size: float, what: str) -> None:
        """So much more work is done; what: is done now."""

    def finished(self, what: str, measured: Mapping[Any, Any], done: int) -> None:
        """A job has finished. what: in a few words. measured: by cell. done: cells that are done."""

    def estimated(self, seconds: float, cells: int) -> None:
        """How long the run will take, with the first measurements as evidence. cells: that are left."""

    def say(self, sentence: str) -> None:
        """Show a sentence to the user."""


class Pace:
    """How fast work goes. total: the size of all of it.

    What a job reports first does not count: it may have resumed, and its process had to start.
    """

    LEAST_SECONDS, LEAST_TICKS = 3.0, 8

    def __init__(self, total: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.clock = clock
        self.done: float = 0
        self._start: float | None = None
        self._counted: list[float] = []
        self._begun: set[Hashable] = set()

    def tick(self, job: Hashable, size: float) -> None:
        """A job has done some more."""
        self.done += size
        if self._start is None:
            self._start = self.clock()
        if job in self._begun:
            self._counted.append(size)
        self._begun.add(job)

    def left(self) -> float | None:
        """Seconds until all is done, at the pace so far; None: it is too early."""
        counted = sum(self._counted)  # 0 where jobs have named only what they do
        if self._start is None or not counted or len(self._counted) < self.LEAST_TICKS:
            return None
        seconds = self.clock() - self._start
        return None if seconds < self.LEAST_SECONDS else seconds * (self.total - self.done) / counted


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

    A stored cell is used if its settings and data are those of a cell here, and its behaviour is that of this program, see
    `Study.behaviour`; else it is measured again. directory: every new cell is stored at once; None: nothing is written.
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
            cells = {id: cell for cell, id in ids.items()}
            planned = set(cells)

            def check(id: str, stored: Stored[M]) -> None:
                if id not in cells:
                    raise InputError(f"has {difference(stored.facts, facts.values())}")
                study.check_record(cells[id], stored.record)

            if merge:
                store.merge(merge, study.record(next(iter(ids))), check, planned)
            begin()
            others = Counter(difference(stored.facts, facts.values()) for stored in store.others(planned))
            for why, count in others.items():
                progress.say(
                    f"Settings and data: {count} of the {study.unit} in the folder are not used: they have {why}"
                )
            ids = dict(list(ids.items())[part - 1 :: parts])
            return _run(study, ids, facts, store, engine, progress, command, pages or (lambda _: {}))


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
    started, estimate = time.perf_counter(), None
    shared: Shared[C, M] = Shared(study if isinstance(engine, InProcess) else study.remote())
    known = {cell: stored for cell, stored in study.known().items() if cell in ids}
    here: dict[C, Stored[M]] = {}
    done: dict[C, M] = {}

    def read() -> None:
        for cell, id in ids.items():
            if cell not in here and (stored := store.load(id, study.record(cell))) is not None:
                try:
                    study.check_record(cell, stored.record)
                    here[cell] = stored
                except ValueError as error:
                    store.set_aside(id, str(error))

    def accept() -> None:
        done.update({cell: stored.record for cell, stored in {**here, **known}.items() if cell not in done})

    def ticked(index: int, size: float, what: str) -> None:
        nonlocal estimate
        pace.tick(index, size)
        progress.advanced(size, what or study.describe(jobs[index]))
        if estimate is None and (left := pace.left()) is not None:
            estimate = time.perf_counter() - started + left
            progress.estimated(estimate, len(ids) - before)

    def write(part: Mapping[C, M]) -> dict[str, Any]:
        results: dict[str, Any] = {
            "schema": 1,
            "kind": study.name,
            "complete": len(part) == len(ids),
            study.unit: {"planned": len(ids), "finished": len(part), "kept_from_before": before},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - started, 1),
            "estimated_seconds": None if estimate is None else round(estimate, 1),
            "command": command,
            "set_aside": store.damaged,
        }
        numbers = study.results(part)
        if "settings" not in numbers:
            raise InputError(f"{type(study).__name__}.results: has no 'settings'; add them, {{}} if there are none")
        results |= _checked(study, "results", numbers)
        ran_on = {"posenc": version(), "engine": engine.name, "workers": engine.workers}
        results["machine"] = results.get("machine", {}) | ran_on
        results |= _checked(study, "sentences", study.sentences(results))
        store.write("results.json", json.dumps(results, indent=1, allow_nan=False))
        for name, content in pages(results).items():
            store.write(name, content)
        return results

    read()
    try:
        wrong = _of_other_programs(study, shared, engine, here, known)
    except KeyboardInterrupt:
        raise Interrupted from None
    for cell, why in wrong.items():
        if known.pop(cell, None) is None:
            del here[cell]
            store.set_aside(ids[cell], why)
    for (kind, why), times in Counter((study.kind(cell), why) for cell, why in wrong.items()).items():
        progress.say(f"Behaviour: {study.describe([kind])} ({times} of the {study.unit}) is measured again: {why}")
    accept()
    before = len(done)
    jobs = study.jobs([cell for cell in ids if cell not in done])
    pace = Pace(sum(map(study.work, jobs)))
    progress.started(study, len(ids), before, pace)
    if (
        jobs
        and isinstance(engine, InProcess)
        and (unit := study.forecast()) is not None
        and unit * pace.total >= FORETOLD
    ):
        try:
            progress.estimated(unit * pace.total, len(ids) - before)
        except KeyboardInterrupt:
            if not done:
                raise Interrupted from None
            jobs = []
    try:
        with closing(engine.run(_measure, shared, jobs, ticked)) as outcomes:
            for job, (measured, behaviours) in outcomes:
                for cell in (cell for cell in job if cell not in measured):
                    raise InputError(f"{type(study).__name__}.measure: returned no record of the cell {cell}")
                for cell in job:
                    here[cell] = Stored(measured[cell], facts[cell], behaviours[study.kind(cell)], in_words(versions()))
                    store.save(ids[cell], here[cell])
                accept()
                progress.finished(study.describe(job), measured, len(done))
                for line in filter(None, (study.found(cell, measured[cell]) for cell in job)):
                    progress.say(line)
    except KeyboardInterrupt:
        read()  # it may have come between storing a cell and counting it
        accept()
        if not done:
            raise Interrupted from None
    return write({cell: done[cell] for cell in ids if cell in done})


@dataclass
class Shared(Generic[C, M]):
    """What the jobs of a run share in a process: the study, or what it sends to other processes, and the behaviours so far."""

    study: Any
    behaviours: dict[C, dict[str, float]] = field(default_factory=dict)

    def behaviour(self, kind: C) -> dict[str, float]:
        if kind not in self.behaviours:
            self.behaviours[kind] = dict(self.study.behaviour(kind))
        return self.behaviours[kind]


def _measure(shared: Shared[C, M], job: Sequence[C], tick: Tick) -> tuple[dict[C, M], dict[C, dict[str, float]]]:
    """The records of a job's cells, and the behaviours of their kinds."""
    kinds = dict.fromkeys(shared.study.kind(cell) for cell in job)
    behaviours = {kind: shared.behaviour(kind) for kind in kinds}
    return shared.study.measure(job, tick), behaviours


def _behave(shared: Shared[C, M], kind: C, tick: Tick) -> dict[str, float]:
    return shared.behaviour(kind)


def _of_other_programs(
    study: Study[C, M], shared: Shared[C, M], engine: Engine, here: Mapping[C, Stored[M]], known: Mapping[C, Stored[M]]
) -> dict[C, str]:
    """The cells whose behaviour is not that of this program, and where it differs. A known cell without a behaviour is taken as
    it is."""
    stored = {**here, **{cell: each for cell, each in known.items() if each.behaviour}}
    kinds: dict[C, list[C]] = {}
    for cell in stored:
        kinds.setdefault(study.kind(cell), []).append(cell)
    wrong: dict[C, str] = {}
    with closing(engine.run(_behave, shared, list(kinds))) as outcomes:
        for kind, behaviour in outcomes:
            shared.behaviours[kind] = behaviour
            for cell in kinds[kind]:
                if why := disagreement(behaviour, stored[cell].behaviour):
                    wrong[cell] = f"{why}; stored by {stored[cell].program or 'an unknown program'}"
    return {cell: wrong[cell] for cell in stored if cell in wrong}


def _checked(study: Study[Any, Any], method: str, made: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises:
    InputError: what a method has made has a key of `run`."""
    if taken := sorted(RESERVED & made.keys()):
        raise InputError(f"{type(study).__name__}.{method}: {taken[0]!r} is set by `run`; give it another name")
    return made


def _identities(facts: Mapping[C, Mapping[str, Any]]) -> dict[C, str]:
    """Raises:
    InputError: two cells have equal facts."""
    cells: dict[str, C] = {}
    for cell, of_cell in facts.items():
        other = cells.setdefault(identity(of_cell), cell)
        if other != cell:
            raise InputError(
                f"the same for the cells {other} and {cell}, which would share a file",
                "return what distinguishes them",
                argument="facts",
            )
    return {cell: id for id, cell in cells.items()}
