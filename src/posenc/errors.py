# SPDX-License-Identifier: Apache-2.0
"""The one exception posenc raises for a caller's mistake, and how messages are written."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class InputError(ValueError):
    """An invalid argument: the message names the argument, the value and the remedy.

    The command line prints it as one line and exits with 2; any other exception is a bug.
    """


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def on_one_line(error: BaseException, most: int | None = None) -> str:
    """An error's message on one line, at most so many characters of it; its type where it has none."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def unknown(what: str, name: object, known: Iterable[str], likeness: float = 0.5) -> InputError:
    """The error for a name that is not in a registry, with the nearest one and a list of all.

    likeness: the least similarity, 0 to 1, of a name that is suggested; 0.7 leaves typing errors.
    """
    names = sorted(known)
    near = get_close_matches(str(name).lower(), names, n=1, cutoff=likeness)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known_are = f"known are {', '.join(names)}" if names else "there are none"
    return InputError(f"unknown {what} {name!r}: {hint}{known_are}")


def flag_of(name: str) -> str:
    """The command line's flag for a setting."""
    return "--" + name.replace("_", "-")


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def printable(text: str) -> str:
    """A text with control characters escaped, as \\x1b, so that none steers a terminal; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def summary(documented: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((documented.__doc__ or "").split("\n\n")[0].split())
