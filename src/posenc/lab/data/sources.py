# SPDX-License-Identifier: Apache-2.0
"""Where data come from: files, folders and datasets, and of text the documents, one after another."""

import glob
import gzip
import json
import os
import stat
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from posenc.errors import InputError, first_line

TEXT_SUFFIXES = {".txt", ".md", ".rst", ".tex", ".py", ".html", ".xml", ".csv", ".json", ".c", ".h", ".js"}
ROWS = {".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
"""Files of rows: what `datasets` calls their format."""
COMPRESSED = {".gz", ".zst"}
HUB = "hf:"
CHUNK = 1 << 20
BATCH = 256
"""Rows that are asked for at a time."""

Document = Iterable[bytes]
"""One document in pieces, so that a large file is never in memory as a whole."""

Rows = Iterator[tuple[Any, ...]]
"""What some columns hold, row by row."""

Choose = Callable[[Mapping[str, str], Mapping[str, Any]], Sequence[str]]
"""Which columns, of the types that they have and of what the dataset says of them, each by name."""

Pattern = tuple[str, ...]
"""The parts of a path; "**" is any number of folders, also none."""


def documents(source: str, text_column: str | None = None) -> tuple[str, Iterator[Document]]:
    """The name of a text and its documents: of "pydoc" the topics, of a folder or a pattern the files, of files of rows
    and of datasets ("hf:NAME[:CONFIG]") the rows' text column.

    Nothing is read before it is asked for, but for what tells whether there is something to read.

    Raises:
        InputError: nothing there, or, on the way, what cannot be read.
    """
    if source == "pydoc":
        if text_column is not None:
            raise InputError(f"--text-column {text_column}: --data pydoc has no columns; leave it out")
        from pydoc_data.topics import topics

        name = "pydoc_data.topics, the language reference in Python's standard library"
        return name, ((topics[topic].encode(),) for topic in sorted(topics))
    if source.startswith(HUB):
        return source, _texts(rows_of_hub(source, _column_of(source, text_column), "hf:roneneldan/TinyStories"))
    found = files(source, "text", TEXT_SUFFIXES | set(ROWS))
    return source, (document for path in found for document in _read(path, text_column))


def rows_of_hub(source: str, choose: Choose, example: str) -> Rows:
    """Columns of the dataset that "hf:NAME[:CONFIG]" names.

    Raises:
        InputError: no name, or, on the way, what cannot be read.
    """
    path, _, config = source.removeprefix(HUB).partition(":")
    if not path:
        raise InputError(f"--data {HUB}: name a dataset, as in {example}")
    if os.path.isdir(path) and not _is(stat.S_ISDIR, path):
        raise InputError(f"--data {source}: is no ordinary folder; name a dataset")
    return _rows(source, choose, path, name=config or None)


def rows_of_file(path: Path, choose: Choose) -> Rows:
    """Columns of a file of rows, see `rows_of_hub`."""
    if not path.stat().st_size:  # datasets has no word for a file without rows
        return iter(())
    # datasets takes names for patterns
    return _rows(str(path), choose, ROWS[kind_of(path)], data_files=glob.escape(str(path.absolute())))


def files(source: str, what: str, suffixes: Collection[str]) -> Iterator[Path]:
    """The files that a source names, in the order of their paths, found as they are asked for.

    what, suffixes: of which files one looks for in a folder.

    Raises:
        InputError: nothing there.
    """
    if not source:
        raise InputError(f"--data '': name a file or folder of {what}, or hf:NAME")
    path = Path(source)
    try:
        is_file, is_folder, exists = _is(stat.S_ISREG, path), _is(stat.S_ISDIR, path), path.exists()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"--data {source!r}: {reason}; give a readable {what} file or folder") from None
    if is_file:
        return iter([path])
    if is_folder:
        known = " ".join(sorted(suffixes))
        found = _matching(source, ("**", "*"), lambda name: kind_of(name) in suffixes)
        return _some(found, f"--data {source}: no {what} files there (looked for {known})")
    if exists:
        raise InputError(f"--data {source}: is no ordinary file or folder; give a {what} file, a folder, or hf:NAME")
    if glob.has_magic(source):
        fixed = next(i for i, part in enumerate(path.parts) if glob.has_magic(part))
        found = _matching(str(Path(*path.parts[:fixed])), path.parts[fixed:])
        return _some(found, f"--data {source}: no file has such a name")
    raise InputError(f"--data {source}: no such file or folder; a Hugging Face dataset is written hf:{source}")


def _some(paths: Iterator[Path], otherwise: str) -> Iterator[Path]:
    """The paths, of which there has to be one."""
    first = next(paths, None)
    if first is None:
        raise InputError(otherwise)
    return chain([first], paths)


def _matching(folder: str, pattern: Pattern, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Path]:
    """The files below a folder whose path matches a pattern and whose name is wanted, in order. One folder after another
    is looked into, so that nobody waits for a whole file system."""
    todo = [(folder, True, _heads(pattern))]
    while todo:
        path, inside, rests = todo.pop()
        if () in rests and wanted(os.path.basename(path)) and _is(stat.S_ISREG, path):
            yield Path(path)
        if any(rests) and inside and _is(stat.S_ISDIR, path):
            try:
                with os.scandir(path) as entries:
                    found = sorted(entries, key=lambda entry: entry.name, reverse=True)
            except OSError as error:
                raise InputError(f"--data {path}: {error.strerror}; give folders that can be read") from None
            todo += [(e.path, e.is_symlink() or e.is_dir(), _after(e, rests)) for e in found]


def _heads(pattern: Pattern) -> set[Pattern]:
    """A pattern with and without the folders that it may begin with."""
    return {pattern} | (_heads(pattern[1:]) if pattern[:1] == ("**",) else set())


def _after(entry: os.DirEntry[str], patterns: set[Pattern]) -> set[Pattern]:
    """What has to match below an entry. ** does not go through links, which may lead in circles."""
    found: set[Pattern] = set()
    for pattern in filter(None, patterns):
        if pattern[0] == "**":
            found |= set() if entry.is_symlink() else _heads(pattern)
        elif fnmatch(entry.name, pattern[0]):
            found |= _heads(pattern[1:])
    return found


def _is(kind: Callable[[int], bool], path: str | Path) -> bool:
    """Whether a path leads to something of a kind, but not into what the system makes up: reading that may never end."""
    try:
        there = os.stat(path)
    except OSError:
        return False
    return kind(there.st_mode) and there.st_dev not in _made_up()


@cache
def _made_up() -> set[int]:
    """The file systems of processes and devices."""
    return {os.stat(path).st_dev for path in ("/proc", "/sys") if os.path.exists(path)} - {os.stat("/").st_dev}


def kind_of(name: str | Path) -> str:
    """What a file's name says of its format, whatever it is compressed with."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    return "" if not suffixes else suffixes[-2] if suffixes[-1] in COMPRESSED and len(suffixes) > 1 else suffixes[-1]


def _read(path: Path, text_column: str | None) -> Iterator[Document]:
    if kind_of(path) not in ROWS:
        yield _pieces(path)
    else:
        yield from _texts(rows_of_file(path, _column_of(str(path), text_column)))


def _pieces(path: Path) -> Iterator[bytes]:
    if path.suffix.lower() == ".zst":
        raise InputError(f"--data {path}: text is not read out of .zst; unpack it, or make it .gz")
    try:
        with _open(path) as file:
            while piece := file.read(CHUNK):
                yield piece
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"--data {path}: {reason}; give a readable text file or folder") from None


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def _texts(rows: Rows) -> Iterator[Document]:
    """Rows of one text: those that are empty are left out."""
    for (text,) in rows:
        if text:
            yield (text.encode(errors="replace"),)


def _rows(source: str, choose: Choose, path: str, **options: Any) -> Rows:
    """Some columns of a dataset that is streamed, row by row. path, options: as `datasets.load_dataset` takes them."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"--data {source}: needs the datasets package: pip install 'posenc[data]'") from None
    columns, seen = None, 0
    with _quiet(datasets):
        try:
            stream = datasets.load_dataset(path, split="train", streaming=True, **options)
            features = stream.features or {}
            for table in stream.with_format("arrow").iter(batch_size=BATCH):
                if columns is None:
                    columns = choose({field.name: str(field.type) for field in table.schema}, features)
                for row in zip(*(table[column] for column in columns), strict=True):
                    seen += 1
                    yield tuple(value.as_py() for value in row)
        except InputError:
            raise
        except StopIteration:  # what datasets says of a file of empty lines
            return
        except Exception as error:  # datasets raises what its many back ends raise
            reason = first_line(error)
            readable = path == "json" and not source.lower().endswith(".zst")
            where = _first_bad_line(Path(source)) if readable else None
            raise InputError(f"--data {source}: {where or f'after {seen} rows: {reason}'}") from None


def _column_of(source: str, asked: str | None) -> Choose:
    """Chooses the column with the text."""

    def choose(types: Mapping[str, str], features: object) -> Sequence[str]:
        strings = [name for name, kind in types.items() if kind in ("string", "large_string", "string_view")]
        there = ", ".join(f"{name} ({kind})" for name, kind in types.items())
        wanted = asked or ("text" if "text" in types else strings[0] if len(strings) == 1 else None)
        if wanted is None or wanted not in types:
            raise InputError(
                f"--text-column {asked or ''}: {source} has the columns {there}; name the one with the text"
            )
        if wanted not in strings and types[wanted] != "null":
            raise InputError(f"--text-column {wanted}: holds {types[wanted]} in {source}, not text; it has {there}")
        return (wanted,)

    return choose


def _first_bad_line(path: Path) -> str | None:
    """Where a file of JSON lines is at fault: datasets counts from the middle of the file."""
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    text = line.decode()
                    if text.strip():
                        json.loads(text)
                except UnicodeDecodeError:
                    return f"line {number} is not UTF-8"
                except ValueError as error:
                    return f"line {number} is not JSON: {error}"
    except (OSError, EOFError):
        pass
    return None


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """What goes wrong is said once, by our error."""
    log = datasets.utils.logging
    before = log.get_verbosity()
    log.set_verbosity(log.CRITICAL + 1)
    try:
        yield
    finally:
        log.set_verbosity(before)
