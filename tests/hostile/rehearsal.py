"""A tiny comparison in this process, under faults of the disk and with damaged files; and what must hold."""

import json
import random
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hostile.faults import Calls, damages, scratch, snapshot
from hostile.runs import Tally, _plain
from posenc.errors import InputError
from posenc.lab import data
from posenc.lab.compare import Comparison, Progress, compare
from posenc.lab.config import Settings
from posenc.lab.data import Corpus
from posenc.lab.engines import Here

TEXT = b"".join(b"line %d says that %d follows.\n" % (n, n + 1) for n in range(400))
SIZES = Settings(
    length=8, factors=(1, 2), steps=3, batch_size=2, dim=4, num_layers=1, num_heads=1, head_dim=4, windows=2, targets=4
)


SILENT = Progress()


class Stopped(BaseException):
    """As a kill, in this process."""


class Rehearsal:
    """A comparison of two encodings that takes a moment. reference: what it measures where nothing disturbs it."""

    def __init__(self, place: Path) -> None:
        self.place, self.comparison = place, Comparison(("none", "alibi"), 1, SIZES)
        self.corpus: Corpus = data.corpus(TEXT, "numbered lines")
        self.run(place / "undisturbed")
        self.reference = measured(place / "undisturbed")

    def run(self, folder: Path, progress: Progress = SILENT) -> dict[str, Any]:
        """Run it, or go on with it, with a checkpoint at every step."""
        return compare(
            self.comparison,
            self.corpus,
            folder,
            engine=Here(),
            checkpoint_minutes=1e-9,
            progress=progress,
            command="it",
        )

    def half_done(self, folder: Path) -> None:
        """A folder as a kill leaves it, with one finished run and two checkpoints of the other."""
        reports: list[int] = []

        def stop(run: Any, work: int) -> None:
            reports.append(work)
            if run.encoding == "alibi" and len(list(folder.glob("checkpoints/*"))) == 2:
                raise Stopped

        try:
            self.run(folder, Progress(advanced=stop))
        except Stopped:
            return
        raise AssertionError("it was not stopped")


def measured(folder: Path) -> dict[str, Any]:
    """Every number in a finished folder, but for times."""
    found = {path.name: _plain(json.loads(path.read_bytes())) for path in (folder / "cells").iterdir()}
    return found | {"results.json": _plain(json.loads((folder / "results.json").read_bytes()))}


def fail(rehearsal: Rehearsal, error: int, stays: bool, which: Iterable[int] | None = None) -> Tally:
    """Have every n-th system call on the folder fail (or those in `which`), and then go on undisturbed."""
    tally = Tally()
    folder = rehearsal.place / "failing"
    shutil.rmtree(folder, ignore_errors=True)
    with Calls(folder).failing() as counted:
        rehearsal.run(folder)
    for at in which or range(1, len(counted.names) + 1):
        shutil.rmtree(folder, ignore_errors=True)
        tally.injected += 1
        try:
            with Calls(folder, at, error, stays=stays).failing() as calls:
                rehearsal.run(folder)
        except InputError as refusal:
            tally.refused += 1
            tally.check(len(str(refusal).splitlines()) == 1 and "--out" in str(refusal), f"call {at}: {refusal}")
        except Exception as other:
            tally.check(False, f"call {at}, {calls.names[-1]}: {other!r}")
        tally.check(not folder.exists() or not scratch(folder), f"call {at}: {scratch(folder)} left")
        before = snapshot(folder / "cells")
        tally.resumed += bool(before)
        tally.kept += len(before)
        again(rehearsal, folder, before, f"call {at}", tally)
    return tally


def damage(rehearsal: Rehearsal, kind: str, times: int, chosen: random.Random) -> dict[str, Tally]:
    """Damage a file of one kind (cells, checkpoints, results.json) in many ways and go on: what came of each damage."""
    tallies: dict[str, Tally] = {}
    whole = rehearsal.place / "half done"
    if not whole.exists():
        rehearsal.half_done(whole)
        shutil.copy(rehearsal.place / "undisturbed" / "results.json", whole)
    paths = [path for path in whole.rglob("*") if path.is_file() and kind in str(path.relative_to(whole))]
    paths.sort(key=lambda path: len(path.name), reverse=True)  # the last checkpoint after the one before it
    name = str(paths[-1].relative_to(whole))
    folder = rehearsal.place / "damaged"
    for what, content in damages(paths[-1].read_bytes(), chosen, times):
        tally = tallies.setdefault(what, Tally())
        tally.injected += 1
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        (folder / name).write_bytes(content)
        before = {at: found for at, found in snapshot(folder / "cells").items() if f"cells/{at}" != name}
        tally.kept += len(before)
        result = again(rehearsal, folder, before, f"{name}, {what}", tally)
        aside = [entry["file"] for entry in result.get("set_aside", [])]
        tally.aside += aside == [name]
        missed = not aside and kind != "results.json"
        tally.check(not missed and set(aside) <= {name}, f"{name}, {what}: set aside {aside}")
        kept = folder / "set-aside" / f"{Path(name).name}.1"
        tally.check(not aside or kept.read_bytes() == content, f"{name}, {what}: not kept as it was")
    return tallies


def again(
    rehearsal: Rehearsal, folder: Path, before: dict[str, tuple[bytes, int]], when: str, tally: Tally
) -> dict[str, Any]:
    """Go on undisturbed, and check that all is as if nothing had happened."""
    result: dict[str, Any] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = rehearsal.run(folder)
    except Exception as error:
        tally.check(False, f"{when}: {error!r}")
        return result
    after = snapshot(folder / "cells")
    lost = [name for name, found in before.items() if after.get(name) != found]
    tally.lost += len(lost)
    tally.check(not lost, f"{when}: lost {lost}")
    tally.check(measured(folder) == rehearsal.reference, f"{when}: other numbers")
    tally.check(not scratch(folder) and not (folder / "checkpoints").exists(), f"{when}: something is left")
    return result
