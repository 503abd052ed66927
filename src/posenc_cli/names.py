# SPDX-License-Identifier: Apache-2.0
"""How messages name what is unknown and escape what they quote, without torch."""

from collections.abc import Iterable
from difflib import get_close_matches

MANY = 25
"""Names that a message lists, where it suggests one of them or `posenc list` shows them."""
SHOWN = {
    "name": "posenc list shows all names",
    **{what: f"posenc list --kind {what}s shows all" for what in ("encoding", "method", "kind")},
}


def nearest(name: str, known: Iterable[str], likeness: float = 0.5) -> list[str]:
    """Known names that are like a name, the likeliest first. likeness: 0 to 1; 0.7 leaves typing errors."""
    low = name.lower()
    near = get_close_matches(low, sorted(known), cutoff=likeness)
    # of the nearest names, those of the same letters, and the end of a word is mistyped more often than its beginning
    near.sort(
        key=lambda each: (
            sorted(each) != sorted(low),
            next((-i for i, (a, b) in enumerate(zip(each, low, strict=False)) if a != b), -len(each)),
        )
    )
    return near


def unknown_name(what: str, name: object, known: Iterable[str], near: Iterable[str]) -> str:
    """The message about a name that is not among the known ones, with the nearest."""
    names, (first, *others) = sorted(known), [*near, None][:3]
    if first is not None and len(names) > MANY:
        also = ", ".join(each for each in others if each is not None)
        return f"unknown {what} {name!r:.400}: did you mean {first!r}?" + (also and f" Also like it: {also}")
    if first is None and len(names) > MANY and what in SHOWN:
        return f"unknown {what} {name!r:.400}: {SHOWN[what]}"
    hint = "" if first is None else f"did you mean {first!r}? "
    return f"unknown {what} {name!r:.400}: {hint}" + (f"known are {', '.join(names)}" if names else "there are none")


def printable(text: str) -> str:
    """A text with control characters escaped, as \\x1b, so that none steers a terminal; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
