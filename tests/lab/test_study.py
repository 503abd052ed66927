"""The study engine, on a study that squares numbers: what is stored, resumed, interrupted, refused and reported."""

import contextlib
import json
import math
import os
import warnings
from dataclasses import dataclass

import pytest

from posenc import InputError
from posenc.lab.engines import ProcessPool
from posenc.lab.files import write_atomically
from posenc.lab.store import LOCK, Store
from posenc.lab.study import Interrupted, Progress, Study, run
from posenc.report.terminal import Display


@dataclass(frozen=True)
class Square:
    value: float


@dataclass(frozen=True)
class Curve:
    losses: dict[str, tuple[float, ...]]


class Squares(Study[int, Square]):
    name = "squares"
    unit = "numbers"

    def __init__(self, numbers, fails_at=None):
        self.numbers = numbers
        self.fails_at = fails_at
        self.measured = []

    def check(self):
        if min(self.numbers) < 0:
            raise InputError(f"numbers={self.numbers}: must not be negative")

    def cells(self):
        return list(self.numbers)

    def record(self, cell):
        return Square

    def facts(self, cell):
        return {"number": cell}

    def measure(self, job, tick):
        self.measured += job
        tick(len(job), f"squaring {job[0]}")
        if self.fails_at in job:
            raise InputError(f"numbers={self.fails_at}: has no square today")
        return {cell: Square(float(cell**2)) for cell in job}

    def results(self, done):
        squares = {str(cell): square.value for cell, square in done.items()}
        return {"settings": {}, "squares": squares, "answer": f"{len(squares)} of {len(self.numbers)}"}


class Listening(Progress):
    def __init__(self, stop_at=None):
        self.heard, self.stop_at = [], stop_at

    def started(self, study, cells, before, work):
        self.heard.append((cells, before, work))

    def advanced(self, size, what):
        self.heard.append(what)

    def finished(self, what, measured, done):
        self.heard.append((what, done))
        if done == self.stop_at:
            raise KeyboardInterrupt

    def say(self, sentence):
        self.heard.append(sentence.partition(":")[0])


@pytest.mark.parametrize("engine", [None, ProcessPool(2)], ids=["here", "processes"])
def test_every_number_is_in_the_results_and_in_the_folder(engine, tmp_path):
    results = run(Squares([1, 3, 5]), tmp_path, engine=engine, command="it", pages=lambda r: {"page.txt": r["answer"]})
    assert results["squares"] == {"1": 1.0, "3": 9.0, "5": 25.0}
    assert (results["schema"], results["kind"], results["complete"]) == (1, "squares", True)
    assert results["numbers"] == {"planned": 3, "finished": 3, "kept_from_before": 0}
    assert (results["answer"], results["command"]) == ("3 of 3", "it")
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert (tmp_path / "page.txt").read_text() == "3 of 3"
    assert {path.name for path in tmp_path.iterdir()} - {LOCK} == {"cells", "page.txt", "results.json"}
    assert len(list((tmp_path / "cells").iterdir())) == 3


def test_what_is_stored_is_not_measured_again_and_what_is_damaged_is(tmp_path):
    run(Squares([1, 3, 5]), tmp_path)
    first, second, _ = sorted((tmp_path / "cells").iterdir())
    first.write_text(first.read_text()[:-3])
    second.write_text(second.read_text().replace(".0", ".5"))
    study, progress = Squares([1, 3, 5, 7]), Listening()
    with pytest.warns(UserWarning, match=r"is damaged .* renamed to .*damaged and measured again"):
        results = run(study, tmp_path, progress=progress)
    assert len(study.measured) == 3
    assert progress.heard[0] == (4, 1, 3)
    assert results["numbers"] == {"planned": 4, "finished": 4, "kept_from_before": 1}
    assert {entry["file"] for entry in results["set_aside"]} == {f"cells/{first.name}", f"cells/{second.name}"}
    assert first.with_name(f"{first.name}.damaged").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(Squares([1, 3, 5, 7]), tmp_path)["numbers"]["kept_from_before"] == 4


def test_an_interrupt_reports_what_there_is(tmp_path):
    with pytest.raises(Interrupted):
        run(Squares([1, 3]), tmp_path / "early", progress=Raising())
    assert not (tmp_path / "early" / "results.json").exists()
    results = run(Squares([1, 3, 5]), tmp_path, progress=Listening(stop_at=2))
    assert (results["complete"], results["numbers"]["finished"]) == (False, 2)
    assert run(Squares([1, 3, 5]), tmp_path)["numbers"] == {"planned": 3, "finished": 3, "kept_from_before": 2}


class Raising(Progress):
    def advanced(self, size, what):
        raise KeyboardInterrupt


def test_an_error_leaves_what_was_stored(tmp_path):
    with pytest.raises(InputError, match=r"^numbers=3: has no square today$"):
        run(Squares([1, 3, 5], fails_at=3), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {LOCK, "cells"}
    assert run(Squares([1, 3, 5]), tmp_path)["numbers"]["kept_from_before"] == 1


def test_refusals_come_before_any_file(tmp_path):
    begun = []
    with pytest.raises(InputError, match="must not be negative"):
        run(Squares([-1]), tmp_path / "new", begin=lambda: begun.append(1))
    assert not begun
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"directory='.*file'.*give a folder that can be written"):
        run(Squares([1]), tmp_path / "file")
    with (
        Store(tmp_path).lock("posenc squares"),
        pytest.raises(InputError, match=rf"posenc squares \(process {os.getpid()} on .*is writing there; wait"),
    ):
        run(Squares([1]), tmp_path)
    assert run(Squares([1]), tmp_path, begin=lambda: begun.append(1))["complete"]
    assert begun


@pytest.mark.parametrize("empty", [True, False])
def test_two_runs_never_share_a_folder_whatever_the_order_of_their_steps(empty, tmp_path, monkeypatch):
    """The first run ends after the second has opened the lock file and before it locks it. If the first removed the file, the
    second would hold what has no name, and the third would make the file anew."""
    fcntl = pytest.importorskip("fcntl")
    if not empty:
        write_atomically(tmp_path / "cells" / "a.json", "")
    first, flock = Store(tmp_path).lock("first"), fcntl.flock
    first.__enter__()
    running, inode = [first], (tmp_path / LOCK).stat().st_ino

    def late(file, operation):
        if running and operation & fcntl.LOCK_EX:
            running.pop().__exit__(None, None, None)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    holding = 0
    with contextlib.ExitStack() as held:
        for name in ("second", "third"):
            with contextlib.suppress(InputError):
                held.enter_context(Store(tmp_path).lock(name))
                holding += 1
    assert not running
    assert holding == 1
    assert {path.name for path in tmp_path.iterdir()} == ({LOCK} if empty else {LOCK, "cells"})
    assert (tmp_path / LOCK).stat().st_ino == inode


def test_two_cells_with_equal_facts_are_refused(tmp_path):
    class Alike(Squares):
        def facts(self, cell):
            return {"number": cell % 4}

    with pytest.raises(InputError, match=r"^facts: .* 1 and 5"):
        run(Alike([1, 2, 5]), tmp_path)
    assert run(Alike([1, 2, 1]), tmp_path)["numbers"]["planned"] == 2


def test_numbers_that_json_cannot_hold_are_refused(tmp_path):
    class Curves(Squares):
        value = math.nan

        def measure(self, job, tick):
            return {cell: Curve({"loss": (0.5, self.value)}) for cell in job}

        def record(self, cell):
            return Curve

        def results(self, done):
            return {"settings": {}, "squares": {}}

    study = Curves([1])
    for study.value in (math.nan, -math.inf):
        with pytest.raises(InputError, match=r"^Curve: .*not finite"):
            run(study, tmp_path)
    study.value = 0.25
    assert run(study, tmp_path)["complete"]
    with pytest.warns(UserWarning, match="another record class than Square"):
        assert run(Squares([1]), tmp_path)["numbers"]["kept_from_before"] == 0
    assert run(Squares([1]), tmp_path)["numbers"]["kept_from_before"] == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": None}, "Wrong.name"),
        ({"unit": None}, "Wrong.unit"),
        ({"measure": lambda self, job, tick: {}}, "Wrong.measure: .* cell 1"),
        ({"results": lambda self, done: {}}, "Wrong.results: .*settings"),
        ({"results": lambda self, done: {"settings": {}, "created": 1}}, "Wrong.results: 'created'"),
    ],
)
def test_a_wrong_study_is_refused(changed, message, tmp_path):
    with pytest.raises(InputError, match=message):
        run(type("Wrong", (Squares,), changed)([1]), tmp_path)


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(Squares([1]))["squares"] == {"1": 1.0}
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_atomically(path, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_display_says_what_is_done(capsys):
    with Display() as display:
        for before in (4, 0):
            display.started(Squares([1]), 24, before, 1000)
        display.finished("rope, seed 0", {}, 24)
    assert capsys.readouterr().err.splitlines() == ["4 of 24 numbers are here already", "[24/24] rope, seed 0"]


def test_a_share_without_a_cell_is_refused_before_anything_begins(tmp_path):
    with pytest.raises(InputError, match="share='4/4': has no numbers; make at most 3 shares"):
        run(Squares([1, 2, 3]), tmp_path, share=(4, 4), begin=lambda: pytest.fail("begun"))
