# SPDX-License-Identifier: Apache-2.0
"""What a mistake leaves behind: one line that a terminal can show, and no file or folder."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from posenc.errors import InputError, printable

WORD, MESSAGE, ARGUMENT = 200, 2400, 100_000
"""Characters of a word, such as a value or a path, and of a whole message that are shown; of an argument that is read."""


def one_line(message: object) -> str:
    """A message on one line, shortened, in which nothing can steer a terminal: a control character is written as \\x1b."""
    text = re.sub(rf"\S{{{WORD + 1},}}", lambda word: _shortened(word[0], WORD), str(message))
    text = re.sub(r"\s*\n\s*", " ", text.strip())
    return _shortened(printable(text), MESSAGE)


def _shortened(text: str, most: int) -> str:
    """Its start and its end, where a message has its remedy."""
    if len(text) <= most:
        return text
    return f"{text[: most // 4]}...({len(text)} characters)...{text[-most // 4 :]}"


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse what argparse or the system would trip over.

    Raises:
        InputError: a NUL, an argument longer than `ARGUMENT`, or "--" as the value of a flag.
    """
    for before, argument in pairwise(("", *arguments)):
        flag, equals, value = argument.partition("=")
        if "\0" in argument:
            raise InputError(f"{argument!r}: has a character NUL in it; leave it out")
        if len(argument) > ARGUMENT:
            told = (
                flag if argument.startswith("-") else f"{before if before.startswith('-') else ''} {argument[:40]}..."
            )
            raise InputError(f"{told.strip()}: has {len(argument)} characters; write at most {ARGUMENT}")
        if flag.startswith("-") and equals and value == "--":  # argparse takes such a value for no value
            raise InputError(f"{flag} '--': is no value; name one")


@contextmanager
def nothing_empty(paths: Iterable[str]) -> Iterator[None]:
    """Folders that come into being while this is entered, and hold no file in the end, are taken away again."""
    new: list[Path] = []
    for path in paths:
        with suppress(OSError):  # a name that no file can have
            new += [folder for folder in (Path(path), *Path(path).parents) if not folder.exists()]
    found = [folder.absolute() for folder in new]  # the command may change the folder
    try:
        yield
    finally:
        for folder in found:
            _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    if not folder.is_dir() or folder.is_symlink():
        return
    with suppress(OSError):
        for inner in folder.iterdir():
            _remove_empty(inner)
        folder.rmdir()  # fails, and shall, where a file is left
