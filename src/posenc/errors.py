"""The one exception posenc raises for a caller's mistake, and the nearest-name message that registries share."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """A value the caller can mend: the message names the argument, the value and the remedy.

    The command line prints it as one line and exits with 2; any other exception is a bug of ours.
    """


def unknown(what: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a registry: says which one is nearest, and lists them all."""
    names = sorted(known)
    near = get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known_are = f"known are {', '.join(names)}" if names else "there are none"
    return InputError(f"unknown {what} {name!r}: {hint}{known_are}")
