"""Faults of the disk and of files, made on purpose: system calls that fail, files that are cut off or changed."""

import builtins
import contextlib
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from posenc import files

ERRORS = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EDQUOT)
"""What a disk that is full, broken, limited or read-only says."""


class Calls:
    """Counts the system calls of this process on a folder, and has one of them fail, or all from one on.

    at: the call that fails, counted from 1; 0: none. error: what it says. stays: every later one fails with it.
    """

    def __init__(self, folder: Path, at: int = 0, error: int = errno.ENOSPC, *, stays: bool = False) -> None:
        self.folder, self.at, self.error, self.stays = folder.absolute(), at, error, stays
        self.names: list[str] = []

    @contextlib.contextmanager
    def failing(self) -> Iterator["Calls"]:
        """For as long as the context lasts."""
        with contextlib.ExitStack() as stack:
            for name in ("open", "mkdir", "replace", "rename", "fsync", "pwrite", "ftruncate"):
                stack.enter_context(mock.patch.object(os, name, self._counted(name, getattr(os, name))))
            stack.enter_context(mock.patch.object(files, "open", self._opened, create=True))
            yield self

    def _counted(self, name, call):
        def counted(first, *more, **options):
            if self._ours(first):
                self._count(name)
            return call(first, *more, **options)

        return counted

    def _ours(self, where: object) -> bool:
        path = (
            Path(os.readlink(f"/proc/self/fd/{where}")) if isinstance(where, int) else Path(os.fspath(where)).absolute()
        )
        return path == self.folder or self.folder in path.parents

    def _count(self, name: str) -> None:
        self.names.append(name)
        count = len(self.names)
        if self.at and (count == self.at or (self.stays and count > self.at)):
            raise OSError(self.error, os.strerror(self.error))

    def _opened(self, path, mode="r", **options):
        if not self._ours(path):
            return builtins.open(path, mode, **options)
        self._count("open")
        return _Halving(builtins.open(path, mode, **options), self)


class _Halving:
    """A file of which half was written when it fails."""

    def __init__(self, file, calls: Calls) -> None:
        self.file, self.calls = file, calls

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *what):
        return self.file.__exit__(*what)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, content: bytes) -> int:
        half = len(content) // 2
        self.file.write(content[:half])
        self.file.flush()
        self.calls._count("write")
        return half + self.file.write(content[half:])


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file under a folder: what it holds, and when it was written (ns)."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def scratch(folder: Path) -> list[Path]:
    """What was left half done."""
    return [path for path in folder.rglob(".*") if path.name.startswith((".posenc-", ".lock"))]


def damages(content: bytes, chosen: random.Random, times: int) -> Iterator[tuple[str, bytes]]:
    """A file's content damaged in `times` ways each: cut off, one bit changed; and empty, zeroes, noise, another's."""
    for _ in range(times):
        yield "truncated", content[: chosen.randrange(len(content))]
    for _ in range(times):
        changed, at = bytearray(content), chosen.randrange(len(content))
        changed[at] ^= 1 << chosen.randrange(8)
        yield "one bit changed", bytes(changed)
    yield "empty", b""
    yield "zeroes", bytes(len(content))
    yield "noise", chosen.randbytes(len(content))
    yield "foreign", b'{"schema": 1}'
    yield "foreign", b"[" * 100_000
    yield "foreign", b"\x80\x04cposix\nsystem\n."
