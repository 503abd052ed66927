# SPDX-License-Identifier: Apache-2.0
"""Running text: what needles are hidden in, and what a loss is measured on."""

import re
from functools import lru_cache
from pathlib import Path

from posenc.errors import InputError

CLOSES = "\"')]”’»）」"
ENDS = re.compile(rf"[.!?…。！？][{re.escape(CLOSES)}]*$")
BREAK = re.compile(
    rf"((?<!\b[eE]\.g)(?<!\b[iI]\.e)[.!?…][{re.escape(CLOSES)}]*)\s(?=[^a-z])|([。！？][{re.escape(CLOSES)}]*)"
)
"""Between two sentences: a stop, and after it what does not begin like the rest of one."""
MARKER = re.compile(r"^(?:[*•-]|\d+\.)\s")
"""What stands before an item of a list."""


def read(source: str) -> str:
    """The text behind a name: "pydoc", the language reference inside Python's standard library, or a text file's path.

    Raises:
        InputError: no such file, one that is not text in UTF-8, or an empty one.
    """
    if source == "pydoc":
        return pydoc()
    try:
        text = Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"source={source}: not text in UTF-8; give a plain text file, or pydoc") from None
    except OSError as error:
        raise InputError(f"source={source}: {error.strerror}; give a readable text file, or pydoc") from None
    if not text.strip():
        raise InputError(f"source={source}: the file is empty; give one with text in it, or pydoc")
    return text


@lru_cache(maxsize=1)
def pydoc() -> str:
    """The language reference that every Python carries (`pydoc_data.topics`)."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


@lru_cache(maxsize=4)
def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text, one line each and in order, to be joined by spaces. Paragraphs that do not end as a
    sentence does (headings, code, tables) are left out.

    Raises:
        InputError: there is none.
    """
    paragraphs = (MARKER.sub("", " ".join(part.split())) for part in re.split(r"\n\s*\n", text))
    prose = (BREAK.sub(r"\1\2\n", part) for part in paragraphs if ENDS.search(part))
    found = tuple(sentence for part in prose for sentence in part.split("\n") if sentence)
    if not found:
        raise InputError(
            f"source {text[:40]!r} ...: no paragraph in it ends with a full stop; give a text in sentences"
        )
    return found
