"""Files that are whole or not there, the lock of a folder, and records that are checked when they are read."""

import os
import subprocess
import sys

import pytest

from posenc.errors import InputError
from posenc.files import LOCK, Folder, remove_leftovers, scratch_name
from posenc.records import Records

RECORD = {"name": "one", "losses": [1.5, -0.25, 3e-7], "none": None}


def test_every_cut_and_every_flipped_bit_is_found(tmp_path):
    Records(tmp_path).keep("cells/a.json", RECORD)
    path = tmp_path / "cells" / "a.json"
    whole = path.read_bytes()
    assert Records(tmp_path).kept("cells/a.json", dict) == RECORD
    cut = [whole[:size] for size in range(len(whole))]
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    records = Records(tmp_path, tell=False)
    for damaged in cut + flipped:
        path.write_bytes(damaged)
        assert records.kept("cells/a.json", dict) is None
        assert not path.exists()
    found = records.set_aside()
    assert len(found) == 2 * len(whole)
    assert {entry["file"] for entry in found} == {"cells/a.json"}
    assert "unknown" not in {entry["why"] for entry in found}


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [5, 27, 28, 30])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(call, code, tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    folder.write("results.json", "old")

    def fail(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(InputError, match=rf"{os.strerror(code)} while writing results\.json"):
            folder.write("results.json", b"new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"results.json": "old"}


def test_files_have_the_permissions_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        assert Folder(tmp_path).write("a", "text").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


HOLD = """
import sys, time
from posenc.files import Folder
with Folder(sys.argv[1]).lock("posenc compare --out here"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(os.name == "nt", reason="asks flock")
def test_a_second_run_is_told_who_holds_the_folder_until_that_is_killed(tmp_path):
    held = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert held.stdout.readline() == "held\n"
        told = rf"posenc compare --out here \(process {held.pid} on .*, since .*\) is writing there"
        with pytest.raises(InputError, match=told), Folder(tmp_path).lock("another"):
            pass
    finally:
        held.kill()
        held.wait()
    assert (tmp_path / LOCK).exists()
    with Folder(tmp_path).lock("another"):
        pass
    assert not list(tmp_path.iterdir())


def test_what_dead_processes_left_is_removed_and_what_living_ones_write_is_not(tmp_path):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    ours = scratch_name()
    theirs = ours.replace(f"-{os.getpid()}-", f"-{dead.stdout.strip()}-")
    pieces = theirs.split("-")
    pieces[-2] = "0" * 8
    left = "-".join(pieces)
    for name in (ours, left, ".posenc-notes"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {ours, ".posenc-notes"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"kind": "eval", "schema": 1}', "not a result of posenc compare"),
        (b'{"kind": "compare", "schema": 2}', "its schema is 2"),
        (b'{"kind": "compare", "schema": NaN}', "it holds NaN"),
    ],
)
def test_results_of_something_else_are_set_aside_and_named(content, why, tmp_path):
    (tmp_path / "results.json").write_bytes(content)
    records = Records(tmp_path)
    with pytest.warns(UserWarning, match=why), records.writing("posenc compare", "compare", 1):
        pass
    [entry] = records.set_aside()
    assert entry["file"] == "results.json"
    assert (tmp_path / entry["kept_as"]).read_bytes() == content
