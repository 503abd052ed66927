"""Temporary folders, and files that appear completely."""

import os
import re
import tempfile
import threading
from pathlib import Path

import pytest

from posenc.lab.files import Folder
from posenc.pretrained import scratch as module
from posenc.pretrained.scratch import replacing, scratch


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
    assert not list(temporary.iterdir())


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
