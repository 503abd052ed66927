# SPDX-License-Identifier: Apache-2.0
"""Where data come from: files, folders and datasets, and of text the documents, one after another."""

import glob
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posenc.errors import InputError, needs
from posenc.lab.messages import first_line

TEXT_SUFFIXES = {".txt", ".md", ".rst", ".tex", ".py", ".html", ".xml", ".csv", ".json", ".c", ".h", ".js"}
ROWS = {".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
"""Files of rows: what `datasets` calls their format."""
HUB = "hf:"
BATCH = 256
"""Rows that are read at a time."""


def documents(source: str, text_column: str | None = None, most: int = -1) -> tuple[str, Iterator[bytes]]:
    """The name of a text and its documents, which are read as they are iterated over: of "pydoc" the topics, of a folder the
    files, of files of rows and of datasets ("hf:NAME[:CONFIG]") the rows' text column. most: bytes of one file; -1: all.

    Raises:
        InputError: there is no such data, or, during the iteration, it cannot be read.
    """
    if source == "pydoc":
        from pydoc_data.topics import topics

        name = "pydoc_data.topics, the language reference in Python's standard library"
        return name, (topics[topic].encode() for topic in sorted(topics))
    if source.startswith(HUB):
        path, _, config = source.removeprefix(HUB).partition(":")
        if not path:
            raise InputError("name a dataset, as in hf:roneneldan/TinyStories", data=source)
        return source, _rows(source, text_column, path, name=config or None)
    return source, (document for path in files(source) for document in _read(path, text_column, most))


def has_rows(source: str) -> bool:
    """Whether some of a text comes in rows, which have columns."""
    if source.startswith(HUB):
        return True
    return source != "pydoc" and any(path.suffix.lower() in ROWS for path in files(source))


def files(source: str) -> list[Path]:
    """The file that a source names, or those in a folder that are text or rows, in the order of their paths.

    Raises:
        InputError: there are none.
    """
    path, suffixes = Path(source), TEXT_SUFFIXES | set(ROWS)
    if source and path.is_file():
        return [path]
    if not source or not path.is_dir():
        why = f"no such file or folder; a Hugging Face dataset is written hf:{source or 'NAME'}"
        raise InputError(why, data=source)
    paths = [each for each in path.rglob("*") if each.suffix.lower() in suffixes and each.is_file()]
    if not paths:
        raise InputError(f"no files with one of the suffixes {' '.join(sorted(suffixes))}", data=source)
    return sorted(paths)


def _read(path: Path, text_column: str | None, most: int) -> Iterator[bytes]:
    if kind := ROWS.get(path.suffix.lower()):
        if path.stat().st_size:  # datasets fails on a file without rows, and reads names as patterns
            yield from _rows(str(path), text_column, kind, data_files=glob.escape(str(path.absolute())))
        return
    try:
        with path.open("rb") as file:
            yield file.read(most)
    except OSError as error:
        raise InputError(str(error), data=str(path)) from error


def _rows(source: str, text_column: str | None, path: str, **options: Any) -> Iterator[bytes]:
    """The documents of a streamed dataset, row by row; those that are empty are left out. path, options: as `datasets.load_dataset` takes
    them."""
    needs("datasets", "data")
    import datasets

    count = 0
    try:
        stream = datasets.load_dataset(path, split="train", streaming=True, **options)
        for table in stream.with_format("arrow").iter(batch_size=BATCH):
            for text in table[_column(source, text_column, {f.name: str(f.type) for f in table.schema})]:
                count += 1
                if text.as_py():
                    yield text.as_py().encode(errors="replace")
    except InputError:
        raise
    except StopIteration:  # what datasets raises for a file of empty lines
        return
    except Exception as error:  # datasets raises the errors of its many back ends
        raise InputError(f"after {count} rows: {first_line(error)}", data=source) from error


def _column(source: str, given: str | None, types: Mapping[str, str]) -> str:
    """The column that is given, or "text", or the only one of strings. types: Arrow's, by column.

    Raises:
        InputError: no such column, or none that follows from the types.
    """
    strings = [name for name, kind in types.items() if re.fullmatch(r"(large_)?string(_view)?", kind)]
    name = given or ("text" if "text" in types else strings[0] if len(strings) == 1 else None)
    if name not in strings and (name is None or types.get(name) != "null"):  # rows without a value
        columns = ", ".join(f"{name} ({kind})" for name, kind in types.items())
        raise InputError(f"must be a column of text in {source}, which has {columns}", text_column=name)
    return name
