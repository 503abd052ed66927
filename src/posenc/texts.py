"""Names with options as a user writes them: "rope:layout=half", "yarn:factor=4+resonance"."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_type_hints

from torch import Tensor

from posenc.checks import fits, shown, spelled
from posenc.errors import InputError, unknown

COLON = "\\:"
"""A colon in a value, which would else part two options."""


def split(text: str) -> list[str]:
    """The parts of a sum, "rope+alibi"; the sign in an option's "1e+5" does not part."""
    return re.split(r"\+(?=\s*[A-Za-z])", text)


def named(text: str) -> tuple[str, list[str]]:
    """A name and the options written after it, "key=value" each; a colon in a value is written as \\: there."""
    name, *options = re.split(r"(?<!\\):", text.strip())
    return name, [option.replace(COLON, ":") for option in options]


def read_options(what: str, options: Iterable[str], known: Iterable[str]) -> dict[str, Any]:
    """Options "key=value" as values; numbers, true, false, none and lists of numbers (1,2.5) are recognised.

    Raises:
        InputError: no key=value, or a key that is not known.
    """
    known, found = list(known), {}
    for item in options:
        key, equals, value = item.partition("=")
        if key not in known:
            raise unknown(f"option of {what}", item, known)
        if not equals or not value:
            raise InputError(f"option {item} of {what}: write {key}=value")
        found[key] = literal(value)
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
    """A number, true/false/none, a list of numbers (one alone ends with a comma), or the text itself."""
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


def summary(documented: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((documented.__doc__ or "").split("\n\n")[0].split())
