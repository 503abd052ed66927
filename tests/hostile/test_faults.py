"""Faults injected on purpose, see benchmarks/faults.py for all of them: nothing that was finished is lost."""

import errno
import os
import random
import signal
import sys

import pytest

from hostile import rehearsal
from hostile.runs import COMPARE, KILLS, Subject, Tally, kill_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def practice(tmp_path_factory):
    return rehearsal.Rehearsal(tmp_path_factory.mktemp("rehearsal"))


def test_a_comparison_whose_disk_fails_is_refused_and_goes_on(practice):
    tally = rehearsal.fail(practice, errno.ENOSPC, stays=True, which=(5, 20, 33))
    assert not tally.wrong
    assert tally.injected == tally.refused == 3
    assert tally.kept > 0


@pytest.mark.slow
@pytest.mark.parametrize("stays", [False, True])
def test_every_system_call_that_fails(practice, stays):
    tally = rehearsal.fail(practice, errno.ENOSPC, stays)
    assert not tally.wrong
    assert tally.lost == 0
    assert tally.refused > 60


@pytest.mark.parametrize("kind", ["cells", "results.json"])
def test_damaged_files_are_set_aside_and_made_again(practice, kind):
    tallies = rehearsal.damage(practice, kind, 1, random.Random(0))
    assert not [wrong for tally in tallies.values() for wrong in tally.wrong]
    for what, tally in tallies.items():
        assert tally.aside == tally.injected or (kind, what) == ("results.json", "one bit changed")


def whole(place):
    """A comparison of four runs, and what it measures undisturbed."""
    (place / "text.txt").write_bytes(rehearsal.TEXT)
    subject = Subject(["compare", "--data", str(place / "text.txt"), *COMPARE], place / "undisturbed")
    started = subject.start()
    code, said = started.end()
    assert code == 0, said
    return subject


def killed(place, plan, seconds):
    subject = whole(place)
    for name, times in plan.items():
        tally = Tally()
        again = Subject(subject.command[:-2], place / name)
        kill_until(again, times, seconds, KILLS[name], random.Random(name), tally)
        assert not tally.wrong
        assert tally.lost == 0
        assert again.measured() == subject.measured()


@pytest.mark.slow
def test_killed_three_times_it_measures_the_same(tmp_path):
    killed(tmp_path, dict.fromkeys(KILLS, 1), 2)


@pytest.mark.slow
def test_killed_twenty_times_it_measures_the_same(tmp_path):
    killed(tmp_path, {"all processes": 7, "the driver alone": 7, "one worker": 6}, 4)


@pytest.mark.slow
def test_a_second_run_in_the_folder_is_refused_with_who_has_it(tmp_path):
    (tmp_path / "text.txt").write_bytes(rehearsal.TEXT)
    subject = Subject(["compare", "--data", str(tmp_path / "text.txt"), *COMPARE], tmp_path / "out")
    first = subject.start("--steps", "100000")  # until it is stopped
    assert first.begun()
    code, said = subject.start().end()
    assert code == 2
    assert f"(process {first.process.pid} on" in said
    assert len(said.strip().splitlines()) == 1
    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    code, said = subject.start().end()
    assert code == 0, said
    assert not os.path.lexists(subject.folder / ".lock")
