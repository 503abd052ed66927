import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from hostile.faults import ERRORS, Calls, scratch
from posenc import files
from posenc.errors import InputError
from posenc.files import LOCK, Folder, remove_leftovers, scratch_name, write_whole
from references import PATIENCE

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_a_write_that_fails_anywhere_leaves_the_old_or_the_new_file(tmp_path, error, stays):
    folder = Folder(tmp_path)
    with Calls(tmp_path).failing() as counted:
        folder.write("cells/one", b"old")
        folder.write("cells/one", b"old")
    assert counted.names.count("write") == counted.names.count("replace") == 2
    for at in range(1, len(counted.names)):
        folder.write("cells/one", b"old")
        with Calls(tmp_path, at, error, stays=stays).failing() as calls:
            told = _refusal(folder)
        assert told is None or told.startswith(f"--out {tmp_path}: {os.strerror(error)} while writing cells/one; ")
        refused = told is not None
        replaced = "replace" in calls.names[: at - 1]
        assert (tmp_path / "cells/one").read_bytes() == (b"new" * 1000 if replaced or not refused else b"old")
        assert [path.name for path in (tmp_path / "cells").iterdir()] == ["one"]


def _refusal(folder):
    try:
        folder.write("cells/one", b"new" * 1000)
    except InputError as refusal:
        return str(refusal)
    return None


@linux
def test_what_is_written_reaches_the_disk_before_its_name_does(tmp_path):
    with Calls(tmp_path).failing() as calls:
        write_whole(tmp_path / "one", b"1")
    assert calls.names == ["open", "write", "fsync", "replace", "open", "fsync"]


@linux
def test_a_folder_that_cannot_be_flushed_serves(tmp_path):
    for error in (errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES):
        with Calls(tmp_path, 6, error).failing() as calls:
            write_whole(tmp_path / "one", b"1")
        assert calls.names[-1] == "fsync"
    with Calls(tmp_path, 5, errno.EACCES).failing() as calls:
        write_whole(tmp_path / "one", b"2")
    assert calls.names[-1] == "open"
    assert (tmp_path / "one").read_bytes() == b"2"


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(opened):
        raise KeyboardInterrupt

    (tmp_path / "one").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "one", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("one", b"old")]


def test_a_link_is_replaced_and_what_it_led_to_stays(tmp_path):
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "one").symlink_to(tmp_path / "theirs")
    write_whole(tmp_path / "one", b"ours")
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert (tmp_path / "one").read_bytes() == b"ours"


def test_a_folder_that_was_removed_is_not_made_anew(tmp_path):
    folder = Folder(tmp_path / "out")
    folder.write("cells/one", "1")
    (tmp_path / "out/cells/one").unlink()
    (tmp_path / "out/cells").rmdir()
    (tmp_path / "out").rmdir()
    for name in ("cells/one", "one"):
        with pytest.raises(InputError, match=rf"No such file or directory while writing {name}; free space or give"):
            folder.write(name, "1")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["", "file", "file/inside", "nowhere", "circle", "nul\0inside", "x" * 300])
def test_what_is_no_folder_is_refused(tmp_path, name):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(InputError, match=r"^--out .*(give a folder that can be written|name a folder)$"):
        Folder(name and tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "missing").exists()


def test_only_what_dead_processes_left_is_removed(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    own = scratch_name()
    left = own.replace(f"-{os.getpid()}-", f"-{dead.pid}-").replace(files._PROCESS, "0" * 8)
    earlier = own.replace(files._PROCESS, "0" * 8)
    parent = earlier.replace(f"-{os.getpid()}-", f"-{os.getppid()}-")
    elsewhere = left.replace(files.host(), "another.machine")
    for name in (own, left, earlier, parent, elsewhere, ".posenc-mine", "mine"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {own, parent, elsewhere, ".posenc-mine", "mine"}


def hold(folder, locked):
    with Folder(folder).lock("posenc compare \x1b[31m"):
        locked.set()
        time.sleep(120)


@pytest.fixture
def holder(tmp_path):
    """A process that has locked a folder."""
    context = multiprocessing.get_context("fork")
    locked = context.Event()
    process = context.Process(target=hold, args=(tmp_path, locked))
    process.start()
    assert locked.wait(60)
    yield process
    process.kill()
    process.join()


@linux
def test_a_second_run_is_told_who_has_the_folder(tmp_path, holder):
    said = json.loads((tmp_path / LOCK).read_text())
    told = (
        rf"posenc compare \?\[31m \(process {holder.pid} on {files.host()}, since {said['since'].replace('+', '.')}\)"
    )
    with pytest.raises(InputError, match=told + r" is writing there; wait for it"), Folder(tmp_path).lock("second"):
        raise AssertionError("it was locked twice")
    assert json.loads((tmp_path / LOCK).read_text()) == said


@linux
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"pid": "x"}', b"[" * 8000])
def test_a_lock_that_does_not_say_whose_it_is_holds_all_the_same(tmp_path, holder, content):
    (tmp_path / LOCK).write_bytes(content)
    with pytest.raises(InputError, match=r"another run is writing there"), Folder(tmp_path).lock("second"):
        raise AssertionError("it was locked twice")


@linux
def test_a_killed_owners_lock_ends_with_it(tmp_path, holder):
    holder.kill()
    holder.join()
    assert (tmp_path / LOCK).exists()
    with Folder(tmp_path).lock("second"):
        assert json.loads((tmp_path / LOCK).read_text())["command"] == "second"
    assert not list(tmp_path.iterdir())


def test_a_removed_lock_file_does_not_free_another_name(tmp_path):
    """One that waited on the file of an owner that has gone must not lock the removed file."""
    with Folder(tmp_path).lock("first"):
        opened = os.open(tmp_path / LOCK, os.O_RDWR)
    try:
        with Folder(tmp_path).lock("second"):
            assert not os.path.samestat(os.fstat(opened), (tmp_path / LOCK).stat())
    finally:
        os.close(opened)


def test_where_the_file_system_has_no_locks_the_file_is_the_lock(tmp_path, monkeypatch):
    def unable(opened, how):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(files.fcntl, "flock", unable)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    owner = {"command": "it", "pid": os.getppid(), "host": files.host(), "since": "now"}
    (tmp_path / LOCK).write_text(json.dumps(owner))
    with pytest.raises(InputError, match=r"it \(process"), Folder(tmp_path).lock("second"):
        raise AssertionError("it was taken from a process that lives")
    (tmp_path / LOCK).write_text(json.dumps(owner | {"pid": dead.pid}))
    with Folder(tmp_path).lock("second"):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    (tmp_path / LOCK).write_text(json.dumps(owner | {"pid": dead.pid, "host": "elsewhere"}))
    with pytest.raises(InputError, match=r"If it is no more, remove .*\.lock$"), Folder(tmp_path).lock("second"):
        raise AssertionError("it was taken from another machine")


@linux
@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_a_lock_that_cannot_be_made_is_one_line(tmp_path, error):
    for at in (1, 2, 3):
        with (
            Calls(tmp_path, at, error).failing() as calls,
            pytest.raises(InputError, match=rf"{os.strerror(error)} while locking it; free space or give"),
            _folder(tmp_path).lock("it"),
        ):
            raise AssertionError("it was locked")
        assert calls.names[-1] == ("open", "ftruncate", "pwrite")[at - 1]
        assert not scratch(tmp_path)


def _folder(path):
    """Without the calls that look whether it can be written."""
    folder = Folder.__new__(Folder)
    folder.directory = path
    return folder


def test_a_link_as_the_lock_is_refused(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / LOCK).symlink_to(tmp_path / "theirs")
    with pytest.raises(InputError, match=r"while locking it"), Folder(tmp_path).lock("it"):
        raise AssertionError("it was locked")
    assert (tmp_path / "theirs").read_text() == "theirs"


@pytest.mark.slow
def test_a_worker_leaves_with_a_parent_that_is_killed_while_it_starts(tmp_path):
    """The worker is still importing when its parent is gone: there is nobody to tell it."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing, os, signal, sys, time\n"
        "from posenc.engines.local import _leave_with_parent\n"
        "def late(ready):\n"
        "    time.sleep(1)\n"
        "    _leave_with_parent()\n"
        "if __name__ == '__main__':\n"
        "    worker = multiprocessing.get_context('spawn').Process(target=late, args=(None,))\n"
        "    worker.start()\n"
        "    print(worker.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert parent.returncode == -signal.SIGKILL
    end = time.monotonic() + PATIENCE
    while files.alive(int(parent.stdout)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not files.alive(int(parent.stdout))
