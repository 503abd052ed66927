# SPDX-License-Identifier: Apache-2.0
"""The table of what the program answers without torch: in a wheel the build has written it; elsewhere it is made of the code at
first use, which takes seconds, and stored in the user's cache until a source changes."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAME = "table.json"
SOURCES = (".py", ".bib", ".toml")


@cache
def table() -> dict[str, Any]:
    """ "commands", "known" names, "cite", and the rows of `posenc list`."""
    with suppress(FileNotFoundError):
        return dict(json.loads((HERE / NAME).read_text(encoding="utf-8")))
    return stored(folder(), key(), made)


def made() -> dict[str, Any]:
    """The table of the code, as JSON has it."""
    table = import_module("posenc_cli.made").table()  # of the commands, which answer from this table
    return dict(json.loads(json.dumps(table)))


def key() -> str:
    """A digest of where the sources are, and of the size and time of each."""
    digest = hashlib.sha256(str(HERE.resolve()).encode())
    for path, size, changed in sorted(_files(HERE.parent / "posenc"), key=str) + sorted(_files(HERE), key=str):
        digest.update(f"{path} {size} {changed}\n".encode())
    return digest.hexdigest()


def _files(directory: Path | str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from _files(entry.path)
            elif entry.name.endswith(SOURCES):
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns


def folder() -> Path | None:
    """The user's cache of posenc; None: the user has no home."""
    with suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posenc"
    return None


def stored(where: Path | None, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the cache has under a key, or what is made and stored there. Of each checkout there is one file; processes that
    write at the same time replace it as a whole; a cache that cannot be read or written does not matter."""
    name = f"table-{hashlib.sha256(str(HERE.resolve()).encode()).hexdigest()[:12]}.json"
    if where is not None:
        with suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads((where / name).read_text(encoding="utf-8"))
            if found["key"] == key:
                return dict(found["table"])
    new = make()
    if where is not None:
        with suppress(OSError):
            where.mkdir(parents=True, exist_ok=True)
            handle, path = tempfile.mkstemp(dir=where, prefix=name)
            try:
                with open(handle, "w", encoding="utf-8") as file:
                    json.dump({"key": key, "table": new}, file)
                os.replace(path, where / name)
            except BaseException:
                os.unlink(path)
                raise
    return new
