# SPDX-License-Identifier: Apache-2.0
"""Names with options as a user writes them, "rope:layout=half", "yarn:factor=4+resonance", and texts as a reader has them."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_type_hints

from torch import Tensor

from posenc.checks import fits, shown, spelled
from posenc.errors import InputError, unknown

COLON = "\\:"
"""A colon in a value, which would else part two options."""


MOST_PARTS, LONGEST = 64, 100_000
"""Parts of a sum, and characters of a text: each part is a module or a nested call, a list of numbers may be long."""


def split(text: str) -> list[str]:
    """The parts of a sum, "rope+alibi"; the sign in an option's "1e+5" does not part.

    Raises:
        InputError: more than 64 parts, or 100,000 characters.
    """
    _check_length(text)
    parts = re.split(r"\+(?=\s*[A-Za-z])", text)
    if len(parts) > MOST_PARTS:
        raise InputError(f"{parts[0]!r} and {len(parts) - 1} more joined by +: join at most {MOST_PARTS}")
    return parts


def _check_length(text: str) -> None:
    if len(text) > LONGEST:
        raise InputError(f"{text[:40]!r}...: has {len(text)} characters; write at most {LONGEST}")


def named(text: str) -> tuple[str, list[str]]:
    """A name and the options written after it, "key=value" each, without the space around them; a colon in a value is
    written as \\: there.

    Raises:
        InputError: more than 100,000 characters.
    """
    _check_length(text)
    name, *options = (part.strip() for part in re.split(r"(?<!\\):", text))
    return name, [option.replace(COLON, ":") for option in options]


def read_options(what: str, options: Iterable[str], known: Iterable[str]) -> dict[str, Any]:
    """Options "key=value" as values; numbers, true, false, none and lists of numbers (1,2.5) are recognised.

    Raises:
        InputError: no key=value, a key that is not known, the same one twice, or a number that is not finite (in a
        list: not a number).
    """
    known, found = list(known), {}
    for item in options:
        key, equals, value = item.partition("=")
        if key not in known:
            raise unknown(f"option of {what}", item, known)
        if not equals or not value:
            raise InputError(f"option {item} of {what}: write {key}=value")
        if key in found:
            raise InputError(f"option {key} of {what} is written twice; write it once")
        found[key] = literal(value)
        if isinstance(found[key], float) and not math.isfinite(found[key]):
            raise InputError(f"option {item} of {what}: write a finite number")
        if isinstance(found[key], list) and any(math.isnan(number) for number in found[key]):
            raise InputError(f"option {item} of {what}: write numbers")
    return found


def check_options(what: str, options: Mapping[str, Any], known: Iterable[str], function: Callable[..., Any]) -> None:
    """Refuse options that a function does not take, and values that are not of the type it declares.

    Raises:
        InputError: names the option, and the nearest one or the type.
    """
    known, hints = list(known), get_type_hints(function)
    for key, value in options.items():
        if key not in known:
            raise unknown(f"option of {what}", key, known)
        if not fits(value, hints.get(key, Any)):
            raise InputError(f"option {key}={shown(value)} of {what}: pass {spelled(hints[key])}")


def literal(text: str) -> Any:
    """A number, true/false/none, a list of numbers (1,2.5 or [1, 2.5]; one alone 1, or [1]), or the text itself."""
    if text.startswith("[") and text.endswith("]"):
        text = f"{text[1:-1].strip().removesuffix(',')},"
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return [kind(part) for part in text.removesuffix(",").split(",")] if "," in text else kind(text)
        except ValueError:
            continue
    return text


def write(name: str, options: Mapping[str, Any]) -> str:
    """A name and its options as `named` and `read_options` read them."""
    return ":".join((name, *(f"{key}={_as_text(value).replace(':', COLON)}" for key, value in options.items())))


def _as_text(value: Any) -> str:
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) + ("," if len(value) == 1 else "")
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def flag_of(name: str) -> str:
    """The command line's flag for a setting."""
    return "--" + name.replace("_", "-")


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def printable(text: str) -> str:
    """A text in which nothing can steer a terminal: a control character is written as \\x1b, but a line's end stays."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def summary(documented: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((documented.__doc__ or "").split("\n\n")[0].split())
