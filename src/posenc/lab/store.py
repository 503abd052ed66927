# SPDX-License-Identifier: Apache-2.0
"""Finished cells in files, and the folder of a study, whose files are written completely or not at all and by one run at a time.

DIR/cells/<id>.json     what one cell measured, and of what: see `Stored`
DIR/results.json        every number of the report
DIR/report.html         the report

A file of cells has one a line, {"sha256": ..., "cell": ...}; it may be packed by gzip, as the archives of many cells are.
"""

import contextlib
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from posenc.errors import InputError
from posenc.lab.files import Folder
from posenc.pretrained.scratch import PREFIX

__all__ = ["ARCHIVE", "Store", "Stored", "decoded", "encoded", "identity"]

T = TypeVar("T")
LOCK, OWNER = ".lock", ".running"
ARCHIVE = ".json.gz"
"""How the names of archives end."""
MOST_BYTES = 2**26
"""Of a file of cells, unpacked."""


@dataclass(frozen=True)
class Stored(Generic[T]):
    """A measurement, and of what it is one. facts: settings and data, whose hash names the file. program: the version of the one
    that measured it and that of torch, in words. machine: as `posenc.lab.machine.describe` has it, in an archive."""

    record: T
    facts: dict[str, Any] = field(default_factory=dict)
    program: str = ""
    machine: dict[str, Any] = field(default_factory=dict)


def identity(facts: Mapping[str, Any]) -> str:
    """A hash of settings and data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def encoded(cells: Iterable[Stored[Any]]) -> bytes:
    """A file of cells; equal cells give equal bytes."""
    import msgspec

    contents = (msgspec.json.encode(cell, order="sorted") for cell in cells)
    return b"\n".join(b'{"sha256":"%s","cell":%s}' % (_digest(content), content) for content in contents)


def decoded(data: bytes, kind: type[T]) -> list[Stored[T]]:
    """The cells of a file. kind: of their records.

    Raises:
        msgspec.DecodeError: not such a file, or a damaged one; a `msgspec.ValidationError` if records are of another kind.
    """
    import msgspec

    try:
        if data.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise msgspec.DecodeError(f"it unpacks to more than {MOST_BYTES:,} bytes")
        return [_opened(line, kind) for line in data.split(b"\n")]
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deep") from None
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise msgspec.DecodeError(str(error)) from None


def _opened(line: bytes, kind: type[T]) -> Stored[T]:
    import msgspec

    sealed = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    if sealed.keys() != {"sha256", "cell"}:
        raise msgspec.DecodeError("is of an earlier version of posenc, or no cell")
    if bytes(sealed["sha256"]) != b'"%s"' % _digest(sealed["cell"]):
        raise msgspec.DecodeError("its checksum is wrong")
    return msgspec.json.decode(sealed["cell"], type=Stored[kind])  # type: ignore[valid-type]


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


class Store(Folder):
    """The folder of a study."""

    def __init__(self, directory: str | Path) -> None:
        super().__init__(directory)
        self.damaged: list[dict[str, str]] = []
        """Files that could not be read: what each was, where it is now, and why."""

    def save(self, cell: str, stored: Stored[Any]) -> None:
        """Store what a cell measured, whose record is a dataclass; with a checksum.

        Raises:
            InputError: a number in the record is not finite, which JSON cannot hold.
        """
        import msgspec

        plain = msgspec.to_builtins(stored.record, str_keys=True)
        try:
            json.dumps(plain, allow_nan=False)
        except ValueError:
            name = type(stored.record).__name__
            why = "a number in it is not finite; store None there, or refuse the cell"
            raise InputError(why, argument=name) from None
        self.write(f"cells/{cell}.json", encoded([stored]))

    def load(self, cell: str, kind: type[T]) -> Stored[T] | None:
        """What a cell measured; None where it has not been measured, or where the file is damaged or does not fit the class:
        that is renamed, with a warning, and the cell is measured again."""
        import msgspec

        path = self._path(cell)
        try:
            return _one(path, kind)
        except FileNotFoundError:
            return None
        except msgspec.ValidationError as error:
            self._rename(path, "outdated", f"of another record class than {kind.__name__}: {error}")
        except msgspec.DecodeError as error:
            self._rename(path, "damaged", error)
        return None

    def set_aside(self, cell: str, why: str) -> None:
        """Rename the file of a cell that is to be measured again."""
        self._rename(self._path(cell), "outdated", why)

    def merge(
        self, directories: Sequence[str | Path], kind: type[T], check: Callable[[str, Stored[T]], object],
        planned: Collection[str] = (),
    ) -> int:  # fmt: skip
        """Copy the cells of other folders, which stay as they are, into this one: how many are new here. Of archives, those that are
        planned, if there are any.

        kind: of the records. check: is called with the name and the content of each, and raises InputError for one that does not
        belong here; then nothing is copied.

        Raises:
            InputError: a folder without cells, a damaged file, or what `check` refuses.
        """
        import msgspec

        new: dict[str, Stored[T]] = {}
        for directory in directories:
            paths = [*sorted(Path(directory).glob("cells/*.json")), *sorted(Path(directory).glob(f"*{ARCHIVE}"))]
            archived: dict[str, Stored[T]] = {}
            place = "the folder"
            try:
                for path in paths:
                    place = path.name
                    cells = {identity(each.facts): each for each in decoded(path.read_bytes(), kind)}
                    if path.suffix == ".gz":
                        archived |= cells
                        continue
                    for name, stored in cells.items():
                        check(name, stored)
                    new |= cells
                archived = {name: stored for name, stored in archived.items() if name in planned} or archived
                for name, stored in archived.items():
                    check(name, stored)
            except (ValueError, OSError, msgspec.DecodeError) as error:
                why = f"{place}: {error}; nothing was merged"
                raise InputError(why, "train it again, or leave it out", merge=str(directory)) from None
            new |= archived
            if not paths:
                raise InputError("has no cells", "name the folder of a run, its --out", merge=str(directory))
        new = {name: stored for name, stored in new.items() if not self._path(name).exists()}
        for name, stored in new.items():
            self.save(name, stored)
        return len(new)

    def _path(self, cell: str) -> Path:
        return self.directory / "cells" / f"{cell}.json"

    def _rename(self, path: Path, suffix: str, why: object) -> None:
        aside = path.with_name(f"{path.name}.{suffix}")
        os.replace(path, aside)
        file, renamed = (str(each.relative_to(self.directory)) for each in (path, aside))
        self.damaged.append({"file": file, "kept_as": renamed, "why": str(why)})
        what = f"posenc: {path} is {suffix} ({why}): it is renamed to {aside.name} and measured again"
        warnings.warn(what, stacklevel=4)

    @contextlib.contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Be the only run that writes into the folder; what a stopped one has left half-written is removed. The lock's file stays: a
        run that has opened it, and one that would make it anew, could hold the lock at once.

        Raises:
            InputError: another run is writing; names its command, process, machine and start.
        """
        from filelock import FileLock, Timeout

        owner = self.directory / OWNER
        try:
            with FileLock(self.directory / LOCK).acquire(blocking=False):
                since = datetime.now(UTC).isoformat(timespec="seconds")
                run = f"{command[:1000]} (process {os.getpid()} on {platform.node()}, since {since})"
                try:
                    self.write(OWNER, run)
                    yield
                finally:
                    owner.unlink(missing_ok=True)
                    for left in self.directory.rglob(f"{PREFIX}*"):
                        shutil.rmtree(left, ignore_errors=True)
        except Timeout:
            run = owner.read_text() if owner.exists() else "another run"
            raise InputError(
                f"{run} is writing there", "wait for it, stop it, or give another folder", directory=str(self.directory)
            ) from None


def _one(path: Path, kind: type[T]) -> Stored[T]:
    """The content of a cell's file. Raises FileNotFoundError, and msgspec.DecodeError for another content."""
    import msgspec

    cells = decoded(path.read_bytes(), kind)
    if len(cells) != 1:
        raise msgspec.DecodeError("has several cells")
    return cells[0]
