# SPDX-License-Identifier: Apache-2.0
"""Folders of results: every file is written whole or not at all, and by one run at a time."""

import contextlib
import errno
import json
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from posenc.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_PREFIX = ".posenc-"
_PROCESS = secrets.token_hex(4)
"""Tells this process from an earlier one of the same number, as the first of a restarted container is."""
_NO_FLOCK = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
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


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder among the system's temporary ones for as long as the context lasts; those that killed processes left
    there are removed."""
    remove_leftovers(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"{scratch_name()}_", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def write_whole(path: Path, content: bytes) -> None:
    """Put a file in the place of what is there. Whoever reads it, and whatever happens meanwhile, finds the old content
    or the new; once this returns, it is the new one after a loss of power too.

    Raises:
        OSError: the old content is there, and nothing half written is left. Where the last flush alone failed, the new
            content is there, whole, but a loss of power may bring the old one back.
    """
    scratch = path.with_name(scratch_name())
    try:
        with open(scratch, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    sync(path.parent)


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


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, so that a loss of power does not take them away.

    Raises:
        OSError: it cannot be made.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync(each.parent)


class Folder:
    """A folder to write results into, made if it is missing.

    Raises:
        InputError: it cannot be made or written.
    """

    def __init__(self, directory: str | Path) -> None:
        if not str(directory):
            raise InputError("--out '': name a folder")
        self.directory: Path = Path(directory)
        probe = self.directory / scratch_name()
        try:
            make_folder(self.directory)
            probe.touch()
            probe.unlink()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise InputError(f"--out {directory}: {why}; give a folder that can be written") from None

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file whole, see `write_whole`.

        Raises:
            InputError: the disk is full or broken, the folder is gone or cannot be written: the old file is as it was.
        """
        path = self.directory / name
        data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
        try:
            if path.parent != self.directory:
                self.directory.stat()  # one that was removed is not made anew
                make_folder(path.parent)
            write_whole(path, data)
        except OSError as error:
            raise self.refusal(error, f"while writing {name}") from None
        return path

    def refusal(self, error: OSError, when: str) -> InputError:
        """What is told of an operation on the folder that failed."""
        return InputError(f"--out {self.directory}: {error.strerror} {when}; free space or give another folder")

    @contextlib.contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Be the only run that writes into the folder, and remove what dead ones left half written.

        DIR/.lock says who holds it. What counts is the system's lock on that file (flock), which ends with the process
        that has it, however that ends. Where the file system has no such locks, the file itself is the lock: one whose
        process is no more is taken over if that was on this machine, and has to be removed by hand if it was on
        another.

        Raises:
            InputError: another run has it, told by its command, process, machine and time.
        """
        path = self.directory / LOCK
        try:
            opened = self._opened(path)
        except OSError as error:
            raise self.refusal(error, "while locking it") from None
        try:
            said = {"command": command[:1000], "pid": os.getpid(), "host": host()}
            said["since"] = datetime.now(UTC).isoformat(timespec="seconds")
            try:
                os.ftruncate(opened, 0)
                os.pwrite(opened, (json.dumps(said) + "\n").encode(), 0)
            except OSError as error:
                raise self.refusal(error, "while locking it") from None
            for folder in (self.directory, *(path for path in self.directory.iterdir() if path.is_dir())):
                remove_leftovers(folder)
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(opened)

    def _opened(self, path: Path) -> int:
        """The lock file, locked."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        while True:
            opened = os.open(path, flags, 0o666)
            try:
                if not self._locked(path, opened):
                    raise self._held(_owner(opened))
                found = os.fstat(opened)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(found, os.stat(path, follow_symlinks=False)):
                        return opened
            except BaseException:
                os.close(opened)
                raise
            os.close(opened)  # its last owner removed the file after we had opened it

    def _locked(self, path: Path, opened: int) -> bool:
        if fcntl is not None:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno not in _NO_FLOCK:
                    raise
        owner = _owner(opened)
        if not owner:
            return os.fstat(opened).st_size == 0
        return owner.get("host") == host() and not alive(owner["pid"])

    def _held(self, owner: dict[str, Any]) -> InputError:
        shown = {key: "".join(c if c.isprintable() else "?" for c in str(value)) for key, value in owner.items()}
        who = "{command} (process {pid} on {host}, since {since})".format_map(shown) if shown else "another run"
        return InputError(
            f"--out {self.directory}: {who} is writing there; wait for it, stop it, or give another folder"
            + ("" if owner.get("host") == host() else f". If it is no more, remove {self.directory / LOCK}")
        )


def _owner(opened: int) -> dict[str, Any]:
    """What a lock file says; nothing where it does not say it."""
    try:
        said = json.loads(os.pread(opened, 8192, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    wanted = {"command": str, "pid": int, "host": str, "since": str}
    fits = isinstance(said, dict) and all(isinstance(said.get(key), kind) for key, kind in wanted.items())
    return {key: said[key] for key in wanted} if fits else {}
