"""Temporary folders, and what is left when a process is killed."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import pytest

from posenc.lab.files import Folder
from posenc.pretrained import scratch as module
from posenc.pretrained.scratch import LOCK, replacing, scratch, sweep

HOLD = """
import sys, time
from posenc.pretrained.scratch import scratch
with scratch(sys.argv[1]) as folder:
    (folder / "weights").write_text("x")
    print(folder.parent, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The system's folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_a_temporary_folder_is_read_by_its_user_alone(temporary):
    before = os.umask(0)
    try:
        with scratch() as folder:
            outer = temporary / folder.relative_to(temporary).parts[0]
            assert outer.stat().st_mode & 0o077 == 0
    finally:
        os.umask(before)


def test_a_folder_is_there_inside_and_gone_afterwards(temporary):
    with scratch() as folder:
        assert folder.is_relative_to(temporary)
        (folder / "file").write_text("x")
        sweep()
        assert (folder / "file").exists(), "a live process's folder stays"
    assert not list(temporary.iterdir())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_moment_leaves_nothing(tmp_path):
    """Python looks for signals where a function begins and where a call returns. One inside filelock is left out: it may leave
    filelock's own lock, which is of the process, to a thread for good."""
    with scratch(tmp_path):  # imports
        pass

    def interrupted(moment):
        moments, reached = iter(range(moment, -1, -1)), []

        def interrupt(frame, event, function):
            if event in ("call", "c_return") and next(moments) == 0:
                sys.setprofile(None)
                reached.append(event)
                if "filelock" not in str([each.f_code.co_filename for each, _ in traceback.walk_stack(frame)]):
                    raise KeyboardInterrupt

        try:
            sys.setprofile(interrupt)
            with scratch(tmp_path) as folder:
                (folder / "file").touch()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        return reached

    moment = 0
    while interrupted(moment):
        assert not list(tmp_path.iterdir()), moment
        moment += 1
    assert moment > 50


def test_a_file_and_a_folder_appear_at_the_end(tmp_path):
    def fail(made):
        made.write_text("new")
        raise OSError

    target = tmp_path / "a" / "file"
    with replacing(target) as made:
        made.write_text("old")
        assert not target.exists()
    with pytest.raises(OSError), replacing(target) as made:  # noqa: PT011 - its own
        fail(made)
    assert target.read_text() == "old"
    with replacing(tmp_path / "folder") as made:
        made.mkdir()
        (made / "inside").write_text("x")
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["a", "file", "folder", "inside"]
    usual = tmp_path / "usual"
    usual.mkdir()
    assert (tmp_path / "folder").stat().st_mode == usual.stat().st_mode


def test_what_a_killed_process_leaves_goes_and_what_a_live_one_uses_stays(tmp_path):
    killed, live = (
        subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    try:
        left, used = (Path(process.stdout.readline().strip()) for process in (killed, live))
        Folder(tmp_path)
        assert {*tmp_path.iterdir()} == {left, used}
        killed.kill()
        killed.wait()
        Folder(tmp_path)  # every command begins so
        assert [*tmp_path.iterdir()] == [used]
        assert (used / "content" / "weights").exists()
    finally:
        for process in (killed, live):
            process.kill()
            process.communicate()


def test_what_is_not_ours_stays(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    for path in (".posenc-notes", ".posenc-abcdefgh", "posenc-abcdefgh"):  # without our lock
        (tmp_path / path).mkdir()
        (tmp_path / path / "file").write_text("x")
    (elsewhere / "content").mkdir(parents=True)
    (elsewhere / LOCK).touch()
    (tmp_path / ".posenc-a_link_8").symlink_to(elsewhere)
    before = {*tmp_path.rglob("*")}
    sweep(tmp_path)
    assert {*tmp_path.rglob("*")} == before
    sweep(tmp_path / "missing")


def test_a_folder_whose_maker_died_before_the_lock_goes(tmp_path):
    made = tmp_path / ".posenc-abcdefgh"
    made.mkdir()
    sweep(tmp_path)
    assert made.exists(), "its maker may be about to take the lock"
    os.utime(made, (0, 0))
    sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_sweep_between_the_folder_and_its_lock_takes_nothing_away(tmp_path, monkeypatch):
    take, calls = module._take, []

    def slow(path):
        if not calls:
            sweep(tmp_path)
            calls.append(path)
            calls.append(take(path))  # by a sweep, which will remove the folder
        return take(path)

    monkeypatch.setattr(module, "_take", slow)
    with scratch(tmp_path) as folder:
        assert calls[0].parent.exists()
        assert folder.parent != calls[0].parent
        calls[1].release()
        sweep(tmp_path)
        assert not calls[0].parent.exists()
        assert folder.exists()


def test_threads_write_one_file_at_once(tmp_path):
    def write(text):
        for _ in range(20):
            Folder(tmp_path).write("file", text * 1000)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (tmp_path / "file").read_text() in {letter * 1000 for letter in "abc"}
    assert os.listdir(tmp_path) == ["file"]


def test_nothing_else_makes_temporary_folders():
    """One maker, so that all of them are found and removed."""
    source = Path(module.__file__).parent
    makers = {
        path.name
        for path in source.rglob("*.py")
        if re.search("mkdtemp|gettempdir|TemporaryDirectory|NamedTemporaryFile|mkstemp", path.read_text())
    }
    assert makers == {"scratch.py"}
