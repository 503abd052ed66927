"""Where text comes from: the documents of Python's reference, of files, folders and datasets, one after another."""

import glob
import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posenc.errors import InputError

TEXT_SUFFIXES = {".txt", ".md", ".rst", ".tex", ".py", ".html", ".xml", ".csv", ".json", ".c", ".h", ".js"}
ROWS = {".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
"""Files of rows: what `datasets` calls their format."""
COMPRESSED = {".gz", ".zst"}
CHUNK = 1 << 20
BATCH = 256
"""Rows that are asked for at a time."""

Document = Iterable[bytes]
"""One document in pieces, so that a large file is never in memory as a whole."""


def documents(source: str, text_column: str | None = None) -> tuple[str, Iterator[Document]]:
    """The name of a text and its documents: of "pydoc" the topics, of a folder or a pattern the files, of files of rows
    and of datasets ("hf:NAME[:CONFIG]") the rows' text column.

    Nothing is read before it is asked for, but for what tells whether there is something to read.

    Raises:
        InputError: nothing there, or, on the way, what cannot be read.
    """
    if source == "pydoc":
        from pydoc_data.topics import topics

        name = "pydoc_data.topics, the language reference in Python's standard library"
        return name, ((topics[topic].encode(),) for topic in sorted(topics))
    if source.startswith("hf:"):
        path, _, config = source[3:].partition(":")
        if not path:
            raise InputError("--data hf:: name a dataset, as in hf:roneneldan/TinyStories")
        return source, _rows(source, text_column, path, name=config or None)
    if not source:
        raise InputError("--data '': name a text file, a folder, or hf:NAME")
    return source, (document for path in _files(source) for document in _read(path, text_column))


def _files(source: str) -> list[Path]:
    path = Path(source)
    try:
        if path.is_file():
            return [path]
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if _is_text(p) and p.is_file())  # follows no links to folders
            known = " ".join(sorted(TEXT_SUFFIXES | set(ROWS)))
            if not found:
                raise InputError(f"--data {source}: no text files there (looked for {known})")
            return found
        if glob.has_magic(source):
            # unlike glob.glob, pathlib's ** does not walk through links, which may lead in circles
            found = sorted(p for p in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if p.is_file())
            if not found:
                raise InputError(f"--data {source}: no file has such a name")
            return found
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"--data {source!r}: {reason}; give a readable text file or folder") from None
    raise InputError(f"--data {source}: no such file or folder; a Hugging Face dataset is written hf:{source}")


def _kind(path: Path) -> str:
    """What a file's name says of its format, whatever it is compressed with."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return "" if not suffixes else suffixes[-2] if suffixes[-1] in COMPRESSED and len(suffixes) > 1 else suffixes[-1]


def _is_text(path: Path) -> bool:
    return _kind(path) in ROWS or path.suffix.lower() in TEXT_SUFFIXES


def _read(path: Path, text_column: str | None) -> Iterator[Document]:
    if _kind(path) not in ROWS:
        yield _pieces(path)
    elif path.stat().st_size:  # datasets has no word for a file without rows
        # datasets takes names for patterns
        files = glob.escape(str(path.absolute()))
        yield from _rows(str(path), text_column, ROWS[_kind(path)], data_files=files)


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while piece := file.read(CHUNK):
                yield piece
    except OSError as error:
        raise InputError(f"--data {path}: {error.strerror}; give a readable text file or folder") from None


def _rows(source: str, text_column: str | None, path: str, **options: Any) -> Iterator[Document]:
    """The text column of a dataset that is streamed: rows that are empty are left out."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"--data {source}: needs the datasets package: pip install 'posenc[data]'") from None
    column, seen = None, 0
    with _quiet(datasets):
        try:
            stream = datasets.load_dataset(path, split="train", streaming=True, **options).with_format("arrow")
            for table in stream.iter(batch_size=BATCH):
                if column is None:
                    column = _column(source, text_column, {field.name: str(field.type) for field in table.schema})
                for row in table[column]:
                    seen += 1
                    if text := row.as_py():
                        yield (text.encode(errors="replace"),)
        except InputError:
            raise
        except StopIteration:  # what datasets says of a file of empty lines
            return
        except Exception as error:  # datasets raises what its many back ends raise
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            readable = path == "json" and not source.lower().endswith(".zst")
            where = _first_bad_line(Path(source)) if readable else None
            raise InputError(f"--data {source}: {where or f'after {seen} rows: {reason}'}") from None


def _column(source: str, asked: str | None, types: dict[str, str]) -> str:
    """The column to read; `types` has what the columns hold."""
    strings = [name for name, kind in types.items() if kind in ("string", "large_string", "string_view")]
    there = ", ".join(f"{name} ({kind})" for name, kind in types.items())
    wanted = asked or ("text" if "text" in types else strings[0] if len(strings) == 1 else None)
    if wanted is None or wanted not in types:
        raise InputError(f"--text-column {asked or ''}: {source} has the columns {there}; name the one with the text")
    if wanted not in strings and types[wanted] != "null":
        raise InputError(f"--text-column {wanted}: holds {types[wanted]} in {source}, not text; it has {there}")
    return wanted


def _first_bad_line(path: Path) -> str | None:
    """Where a file of JSON lines is at fault: datasets counts from the middle of the file."""
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
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
