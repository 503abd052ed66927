# SPDX-License-Identifier: Apache-2.0
"""Files of settings, YAML or TOML, as entries: names with scalars or lists of scalars, and nothing else."""

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from posenc.errors import InputError

MOST_BYTES = 100_000


@dataclass(frozen=True)
class Entry:
    """A name and what was written for it, with its line where that is known."""

    key: str
    value: Any
    line: int | None = None


class Plain(str):
    """A scalar of YAML without quotes: what it is, the flag says."""


def text_of(path: Path) -> str:
    """What is in a file of settings.

    Raises:
        InputError: it cannot be read, is too long or not UTF-8.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"--config {path}: is not a file; name one that ends in {', '.join(READERS)}")
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--config {short(path)}: {reason}; give a readable file") from None
    if len(raw) > MOST_BYTES:
        raise InputError(f"--config {path}: is too long for settings, of which {MOST_BYTES} bytes are read at most")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"--config {path}: is not UTF-8 text; save it as such") from None


def _toml(text: str) -> list[Entry]:
    try:
        return [Entry(name, value) for name, value in tomllib.loads(text).items()]
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not TOML: {error}") from None


def _yaml(text: str) -> list[Entry]:
    """The entries of a YAML mapping, from the parser's events: nothing is resolved, referred to or nested."""
    try:
        yaml: Any = import_module("yaml")
    except ImportError:
        raise InputError("needs PyYAML, or write TOML: pip install 'posenc[lab]'") from None
    events = _plain_events(yaml, text)
    try:
        return list(_mapping(yaml, events))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" on line {mark.line + 1}"
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or type(error).__name__
        raise InputError(f"is not YAML{where}: {' '.join(str(problem).split())}") from None
    except (ValueError, OverflowError) as error:  # from the parser: \U99999999 in quotes
        if isinstance(error, InputError):
            raise
        raise InputError(f"is not YAML: {error}") from None


def _plain_events(yaml: Any, text: str) -> Iterator[Any]:
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise InputError(f"line {line}: anchors and references (& and *) are not taken; write the value out")
        if getattr(event, "tag", None) is not None:
            raise InputError(f"line {line}: tags such as {short(event.tag)} are not taken; write the value alone")
        if not isinstance(event, yaml.StreamStartEvent | yaml.DocumentStartEvent):
            yield event


def _mapping(yaml: Any, events: Iterator[Any]) -> Iterator[Entry]:
    first = next(events)
    if isinstance(first, yaml.StreamEndEvent):
        return
    if not isinstance(first, yaml.MappingStartEvent):
        raise InputError("must hold settings by name, as in seeds: 2")
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        line = event.start_mark.line + 1
        if not isinstance(event, yaml.ScalarEvent):
            raise InputError(f"line {line}: a setting has one name, as in seeds: 2")
        yield Entry(event.value, _scalars(yaml, events, event.value), line)
    next(events)  # the document's end
    if not isinstance(end := next(events), yaml.StreamEndEvent):
        raise InputError(f"line {end.start_mark.line + 1}: a second document begins; keep one")


def _scalars(yaml: Any, events: Iterator[Any], name: str) -> Any:
    """A value: a scalar, or a list of them."""
    event = next(events)
    if isinstance(event, yaml.ScalarEvent):
        return Plain(event.value) if event.style is None else event.value
    values = []
    if isinstance(event, yaml.SequenceStartEvent):
        while isinstance(event := next(events), yaml.ScalarEvent):
            values.append(Plain(event.value) if event.style is None else event.value)
    if not isinstance(event, yaml.SequenceEndEvent):
        line = event.start_mark.line + 1
        raise InputError(f"line {line}: {short(name)}: give a value or a list of values, with nothing nested in it")
    return values


READERS: dict[str, Callable[[str], list[Entry]]] = {".yaml": _yaml, ".yml": _yaml, ".toml": _toml}


def short(value: object) -> str:
    """A value as a message shows it."""
    written = repr(value if not isinstance(value, str | Path) else str(value))
    return written if len(written) <= 60 else f"{written[:50]}...{written[-1]}"
