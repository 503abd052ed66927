# SPDX-License-Identifier: Apache-2.0
"""The one exception posenc raises for a caller's mistake, the nearest-name message that registries share, and what others'
errors say."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """A value the caller can mend: the message names the argument, the value and the remedy.

    The command line prints it as one line and exits with 2; any other exception is a bug of ours.
    """


def first_line(error: BaseException) -> str:
    """What an error says first; its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def on_one_line(error: BaseException, most: int | None = None) -> str:
    """All that an error says, at most so many characters of it; its type where it says nothing."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def unknown(what: str, name: object, known: Iterable[str], likeness: float = 0.5) -> InputError:
    """The error for a name that is not in a registry: says which one is nearest, and lists them all.

    likeness: of a name that is worth suggesting, 0 to 1; where other names exist, such as other models', 0.7 leaves typing
    errors.
    """
    names = sorted(known)
    near = get_close_matches(str(name).lower(), names, n=1, cutoff=likeness)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known_are = f"known are {', '.join(names)}" if names else "there are none"
    return InputError(f"unknown {what} {name!r}: {hint}{known_are}")
