# SPDX-License-Identifier: Apache-2.0
"""Temporary folders that do not outlive their process, and files and folders that appear completely or not at all.

Every temporary folder of posenc is made here: `.posenc-XXXXXXXX`, with a lock in it that its process holds. The system
releases the lock when the process ends, however it ends. So a folder whose lock is free belongs to nobody and can be removed:
unlike a process id, a lock is not given to another process, and it counts between containers that share a folder.
"""

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PREFIX, LOCK = ".posenc-", "posenc.lock"
GRACE = 60
"""Seconds between making a folder and its lock, at most."""
NAME = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}")


@contextmanager
def scratch(beside: str | Path | None = None) -> Iterator[Path]:
    """A new folder, removed at the end. beside: the folder to make it in; by default the system's for temporary files."""
    lock, made = None, list[Path]()
    try:  # the name before the folder, so that an interrupt at any moment leaves nothing
        lock = _locked(Path(beside or tempfile.gettempdir()).absolute(), made)
        inside = made[-1] / "content"
        inside.mkdir()
        yield inside
    finally:
        try:
            _remove(*made[-1:])
        except KeyboardInterrupt:
            _remove(*made[-1:])
            raise
        finally:
            if lock is not None:
                lock.release()


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path for a new file or folder. At the end it takes the target's place in one step: a reader, or a crash at any moment,
    sees the old content or the new one. A folder can only replace an empty one.

    Raises:
        OSError: the old content is still there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch(target.parent) as folder:
        made = folder / target.name
        yield made
        os.replace(made, target)


def sweep(folder: str | Path | None = None) -> None:
    """Remove what processes that are gone have left in a folder; by default in the system's for temporary files. What a live
    process uses, what another user owns, and what cannot be removed stay."""
    try:
        with os.scandir(folder or tempfile.gettempdir()) as entries:
            left = [Path(e.path) for e in entries if NAME.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for each in left:
        with suppress(OSError):
            about = each.stat()
            if hasattr(os, "geteuid") and about.st_uid != os.geteuid():
                continue
            if not (each / LOCK).exists():
                if time.time() - about.st_mtime > GRACE:  # else its process may be about to take the lock
                    each.rmdir()
            elif (lock := _take(each / LOCK)) is not None:
                _remove(each)
                lock.release()


def _locked(beside: Path, made: list[Path]) -> Any:
    """The lock of a new folder, whose path is the last of those made; None: the file system has no locks, and the folder is
    never swept."""
    while True:
        folder = beside / f"{PREFIX}{secrets.token_hex(4)}"
        made.append(folder)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:  # somebody else's
            made.pop()
            continue
        with suppress(BlockingIOError):  # a `sweep` came between folder and lock, and removes the folder
            lock = _take(folder / LOCK)
            if folder.exists():
                return lock


def _take(path: Path) -> Any:
    """The lock of a file, held; None: the file system has no locks.

    Raises:
        BlockingIOError: somebody else holds it.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise BlockingIOError from None
    except (OSError, NotImplementedError):
        return None
    return lock


def _remove(*folders: Path) -> None:
    """The content, then the lock, then the folder: whatever is left, if this is cut off, has a lock or is empty."""
    for folder in folders * 2:  # an interrupt in rmtree may come out as an OSError
        with suppress(OSError):
            for each in folder.iterdir():
                if each.name != LOCK:
                    shutil.rmtree(each, ignore_errors=True)
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
