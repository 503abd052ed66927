# SPDX-License-Identifier: Apache-2.0
"""Files that are written completely or not at all."""

import contextlib
import errno
import os
import platform
import re
import secrets
import shutil
import tempfile
from pathlib import Path

from posenc.errors import InputError

_PREFIX = ".posenc-"
_PROCESS = secrets.token_hex(4)
"""Tells this process from an earlier one of the same number, as the first of a restarted container is."""
_NO_FSYNC = (errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EACCES, errno.EPERM)
"""What file systems say that cannot flush a folder."""


def host() -> str:
    """The name of this machine, in letters, digits and dots."""
    return re.sub(r"[^A-Za-z0-9.]", "", platform.node())[:64] or "localhost"


def scratch_name() -> str:
    """A name for what is half done, which no other process takes, and which says whose it is."""
    return f"{_PREFIX}{host()}-{os.getpid()}-{_PROCESS}-{secrets.token_hex(4)}"


def remove_leftovers(directory: Path) -> None:
    """Remove what processes of this machine that are no more left half done in a folder."""
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            said = re.fullmatch(rf"{re.escape(_PREFIX)}([A-Za-z0-9.]+)-(\d+)-([0-9a-f]{{8}})-\w+", path.name)
            if said is None or said[1] != host():
                continue
            if said[3] != _PROCESS and (int(said[2]) == os.getpid() or not alive(int(said[2]))):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Whether a process of this machine is there; on Windows, where asking would end it, every one is taken to be."""
    if os.name == "nt":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    if os.name == "nt" and path.is_dir():
        return
    try:
        opened = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder that may be written and not read
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(opened)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: a reader, or a crash at any moment, sees the old content or the new one.

    Raises:
        OSError: the old content is still there.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    path.parent.mkdir(parents=True, exist_ok=True)
    opened, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp lets nobody else read
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


class Folder:
    """A folder to write results into, made if it is missing.

    Raises:
        InputError: it cannot be made or written.
    """

    def __init__(self, directory: str | Path) -> None:
        if not str(directory):
            raise InputError("directory='': name a folder")
        self.directory: Path = Path(directory)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"directory={str(directory)!r}: {why}; give a folder that can be written") from None

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file, see `write_atomically`."""
        write_atomically(path := self.directory / name, content)
        return path
