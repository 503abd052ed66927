# SPDX-License-Identifier: Apache-2.0
"""The folder of a study: every file is written completely or not at all, and by one run at a time.

DIR/cells/<id>.json     what one cell measured; a cell whose file is there is not measured again
DIR/results.json        every number of the report
DIR/report.html         the report
"""

import contextlib
import hashlib
import json
import math
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from posenc.errors import InputError
from posenc.lab.files import Folder
from posenc.scratch import sweep

T = TypeVar("T")
LOCK, OWNER = ".lock", ".running"


class Store(Folder):
    """The folder of a study."""

    def __init__(self, directory: str | Path) -> None:
        super().__init__(directory)
        self.damaged: list[dict[str, str]] = []
        """Files that could not be read: what each was, where it is now, and why."""

    def save(self, cell: str, record: object) -> None:
        """Store what a cell measured: a dataclass; with a checksum.

        Raises:
            InputError: a number in it is not finite, which JSON cannot hold.
        """
        import msgspec

        plain = msgspec.to_builtins(record, str_keys=True)
        try:
            json.dumps(plain, allow_nan=False)
        except ValueError:
            name, value = next(_not_finite(plain, type(record).__name__))
            raise InputError(f"{name}={value}: is not a finite number; store None there, or refuse the cell") from None
        self.write(f"cells/{cell}.json", _sealed(record))

    def load(self, cell: str, kind: type[T]) -> T | None:
        """What a cell measured; None where it has not been measured, or where the file is damaged or does not fit the class:
        that is renamed, with a warning, and the cell is measured again."""
        import msgspec

        path = self.directory / "cells" / f"{cell}.json"
        try:
            return _read(path, kind)
        except FileNotFoundError:
            return None
        except msgspec.ValidationError as error:
            self._set_aside(path, "outdated", f"was written with another record class than {kind.__name__}", error)
        except msgspec.DecodeError as error:
            self._set_aside(path, "damaged", "is damaged", error)
        return None

    def merge(
        self,
        directories: Sequence[str | Path],
        kind: type[T],
        check: Callable[[str, T], object],
        archived: Callable[[str | Path], Mapping[str, T]] = lambda directory: {},
    ) -> int:
        """Copy the cells of other folders, which stay as they are, into this one: how many are new here.

        kind: of the records. check: is called with the name and the record of each, and raises InputError for one that does not
        belong here; then nothing is copied. archived: the records in a folder of another form, by name.

        Raises:
            InputError: a folder without cells, a damaged cell, or what `check` refuses.
        """
        import msgspec

        new: dict[str, bytes] = {}
        for directory in directories:
            paths = sorted((Path(directory) / "cells").glob("*.json"))
            records = archived(directory)
            for name, record in records.items():
                try:
                    check(name, record)
                except InputError as error:
                    raise InputError(f"merge={str(directory)!r}: {error}; nothing was merged") from None
                new[f"{name}.json"] = _sealed(record)
            if not paths and not records:
                raise InputError(f"merge={str(directory)!r}: has no cells; name the folder of a run, its --out")
            for path in paths:
                try:
                    check(path.stem, _read(path, kind))
                except (InputError, OSError, msgspec.DecodeError) as error:
                    raise InputError(f"merge={str(directory)!r}: {path.name}: {error}; nothing was merged") from None
                new[path.name] = path.read_bytes()
        new = {name: content for name, content in new.items() if not (self.directory / "cells" / name).exists()}
        for name, content in new.items():
            self.write(f"cells/{name}", content)
        return len(new)

    def _set_aside(self, path: Path, suffix: str, what: str, error: Exception) -> None:
        aside = path.with_name(f"{path.name}.{suffix}")
        os.replace(path, aside)
        file, renamed = (str(each.relative_to(self.directory)) for each in (path, aside))
        self.damaged.append({"file": file, "kept_as": renamed, "why": str(error)})
        warnings.warn(
            f"posenc: {path} {what} ({error}): it is renamed to {aside.name} and measured again", stacklevel=3
        )

    @contextlib.contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Be the only run that writes into the folder.

        Raises:
            InputError: another run is writing; names its command, process, machine and start.
        """
        from filelock import FileLock, Timeout

        owner = self.directory / OWNER
        try:
            with FileLock(self.directory / LOCK).acquire(blocking=False):
                since = datetime.now(UTC).isoformat(timespec="seconds")
                run = f"{command[:1000]} (process {os.getpid()} on {platform.node()}, since {since})"
                for folder in (self.directory, self.directory / "cells", self.directory / "checkpoints", None):
                    sweep(folder)
                try:
                    self.write(OWNER, run)
                    yield
                finally:
                    owner.unlink(missing_ok=True)
                    if os.listdir(self.directory) == [LOCK]:  # a run that was refused leaves nothing
                        with contextlib.suppress(OSError):  # Windows
                            (self.directory / LOCK).unlink()
        except Timeout:
            run = owner.read_text() if owner.exists() else "another run"
            raise InputError(
                f"directory={str(self.directory)!r}: {run} is writing there; wait for it, stop it, or give another folder"
            ) from None


def _read(path: Path, kind: type[T]) -> T:
    """The record in a cell's file. Raises FileNotFoundError, and msgspec.DecodeError for another content."""
    import msgspec

    sealed = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    if sealed.keys() != {"sha256", "record"} or bytes(sealed["sha256"]) != b'"%s"' % _digest(sealed["record"]):
        raise msgspec.DecodeError("its checksum is wrong")
    return msgspec.json.decode(sealed["record"], type=kind)


def _sealed(record: object) -> bytes:
    """The file of a record."""
    import msgspec

    content = msgspec.json.encode(record)
    return b'{"sha256":"%s","record":%s}' % (_digest(content), content)


def _not_finite(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Each number that is not finite, with the name of its field."""
    if isinstance(value, float) and not math.isfinite(value):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _not_finite(each, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _not_finite(each, f"{name}[{index}]")


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
