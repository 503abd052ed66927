# SPDX-License-Identifier: Apache-2.0
"""Where data come from: files, folders and datasets, and of text the documents, one after another."""

import glob
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from posenc.errors import InputError, needs
from posenc.lab.messages import first_line

TEXT_SUFFIXES = {".txt", ".md", ".rst", ".tex", ".py", ".html", ".xml", ".csv", ".json", ".c", ".h", ".js"}
ROWS = {".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
"""Files of rows: what `datasets` calls their format."""
COMPRESSED = {".gz", ".zst"}
HUB = "hf:"
CHUNK = 1 << 20
BATCH = 256
"""Rows that are read at a time."""

Document = Iterable[bytes]
"""One document in pieces, so that a large file is never in memory completely."""


def documents(source: str, text_column: str | None = None) -> tuple[str, Iterator[Document]]:
    """The name of a text and its documents, which are read as they are iterated over: of "pydoc" the topics, of a folder or
    a pattern the files, of files of rows and of datasets ("hf:NAME[:CONFIG]") the rows' text column.

    Raises:
        InputError: there is no such data, or, during the iteration, it cannot be read.
    """
    if source == "pydoc":
        from pydoc_data.topics import topics

        name = "pydoc_data.topics, the language reference in Python's standard library"
        return name, ((topics[topic].encode(),) for topic in sorted(topics))
    if source.startswith(HUB):
        path, _, config = source.removeprefix(HUB).partition(":")
        if not path:
            raise InputError("name a dataset, as in hf:roneneldan/TinyStories", data=source)
        return source, _rows(source, text_column, path, name=config or None)
    return source, (document for path in files(source) for document in _read(path, text_column))


def files(source: str) -> list[Path]:
    """The file that a source names, those in a folder that are text or rows, or those that match a pattern ("**" is any number of
    folders, links not followed), in the order of their paths.

    Raises:
        InputError: there are none.
    """
    path, suffixes = Path(source), TEXT_SUFFIXES | set(ROWS)
    if source and path.is_file():
        return [path]
    if source and path.is_dir():
        paths = [each for each in path.rglob("*") if kind_of(each) in suffixes and each.is_file()]
        why = f"no files with one of the suffixes {' '.join(sorted(suffixes))}"
    elif glob.has_magic(source):
        fixed = next(i for i, part in enumerate(path.parts) if glob.has_magic(part))
        matches = Path(*path.parts[:fixed]).glob(str(Path(*path.parts[fixed:])))
        paths, why = [each for each in matches if each.is_file()], "no file matches"
    else:
        paths, why = [], f"no such file or folder; a Hugging Face dataset is written hf:{source or 'NAME'}"
    if not paths:
        raise InputError(why, data=source)
    return sorted(paths)


def kind_of(name: str | Path) -> str:
    """The suffix that names a file's format, before that of its compression."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes]
    return "" if not suffixes else suffixes[-2] if suffixes[-1] in COMPRESSED and len(suffixes) > 1 else suffixes[-1]


def _read(path: Path, text_column: str | None) -> Iterator[Document]:
    if kind_of(path) not in ROWS:
        yield _pieces(path)
    elif path.stat().st_size:  # datasets fails on a file without rows, and reads names as patterns
        yield from _rows(str(path), text_column, ROWS[kind_of(path)], data_files=glob.escape(str(path.absolute())))


def _pieces(path: Path) -> Iterator[bytes]:
    if path.suffix.lower() == ".zst":
        raise InputError("text is not read out of .zst", "unpack it, or make it .gz", data=str(path))
    try:
        with cast(BinaryIO, gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            while piece := file.read(CHUNK):
                yield piece
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(str(error), data=str(path)) from error


def _rows(source: str, text_column: str | None, path: str, **options: Any) -> Iterator[Document]:
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
                    yield (text.as_py().encode(errors="replace"),)
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
