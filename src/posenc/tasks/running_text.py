# SPDX-License-Identifier: Apache-2.0
"""Running text: read, cut into sentences to hide needles in, and into passages of tokens to measure a loss on."""

import random
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.tasks.task import Sample, encode

CLOSES = "\"')]”’»）」"
ENDS = re.compile(rf"[.!?…。！？][{re.escape(CLOSES)}]*$")
BREAK = re.compile(
    rf"((?<!\b[eE]\.g)(?<!\b[iI]\.e)[.!?…][{re.escape(CLOSES)}]*)\s(?=[^a-z])|([。！？][{re.escape(CLOSES)}]*)"
)
"""Between two sentences: a stop, and after it what does not begin like the rest of one."""
MARKER = re.compile(r"^(?:[*•-]|\d+\.)\s")
"""The mark of a list's item."""


def read(source: str) -> str:
    """The text of a source: "pydoc", the language reference inside Python's standard library, or a text file's path.

    Raises:
        InputError: no such file, one that is not text in UTF-8, or an empty one.
    """
    if source == "pydoc":
        return pydoc()
    try:
        text = Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError("not text in UTF-8", "give a plain text file, or pydoc", source=source) from None
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", "give a text file, or pydoc", source=source) from None
    if not text.strip():
        raise InputError("the file is empty", "give one with text in it, or pydoc", source=source)
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
    result = tuple(sentence for part in prose for sentence in part.split("\n") if sentence)
    if not result:
        raise InputError(
            f"source {text[:40]!r} ...: no paragraph in it ends with a full stop; give a text in sentences"
        )
    return result


# -------------------------------------------------------------------- passages of tokens


def start_tokens(tokenizer: Any) -> list[int]:
    """The token that a tokenizer puts before every text, or nothing."""
    return [token for token in encode(tokenizer, "")[:1] if token == tokenizer.bos_token_id]


def passage(tokenizer: Any, source: str, tokens: int, seed: int, index: int) -> Tensor:
    """Tokens (tokens,) of the text of a source (see `read`).

    A seed cuts the text into passages and shuffles them; index counts them. They do not overlap until the text is used
    up, then it is cut anew.

    Raises:
        InputError: the text has fewer tokens.
    """
    ids = _tokens(tokenizer, read(source))
    if tokens > len(ids):
        raise InputError(
            f"has {len(ids)} tokens with this tokenizer, fewer than the {tokens} of one passage: give a longer text or a "
            "smaller length",
            source=source,
        )
    start = _block(len(ids), tokens, seed, index)
    return ids[start : start + tokens]


def ending(tokenizer: Any, source: str, tokens: int, scored: int, seed: int, index: int) -> Tensor:
    """Tokens (tokens,) of the text of a source, of which the last `scored` do not depend on how many there are before
    them: they are one of the blocks into which a seed cuts the second half of the text, as `passage` cuts all of it.

    Raises:
        InputError: what is before a block may be shorter than asked for.
    """
    ids = _tokens(tokenizer, read(source))
    half = len(ids) // 2
    if scored > len(ids) - half or tokens - scored > half:
        raise InputError(
            f"has {len(ids)} tokens with this tokenizer: {scored} in its second half with {tokens - scored} before them need "
            f"{2 * max(scored, tokens - scored)}",
            "give a longer text or a smaller length",
            source=source,
        )
    end = half + _block(len(ids) - half, scored, seed, index) + scored
    return ids[end - tokens : end]


def passages(tokenizer: Any, source: str, tokens: int) -> int:
    """How many passages of so many tokens `passage` cuts a text into before any two overlap."""
    return len(_tokens(tokenizer, read(source))) // max(tokens, 1)


def endings(tokenizer: Any, source: str, scored: int) -> int:
    """How many of the texts of `ending` have no scored token in common."""
    ids = _tokens(tokenizer, read(source))
    return (len(ids) - len(ids) // 2) // scored


def scored(start: list[int], ids: Tensor, tokens: int, window: int | None = None, stride: int | None = None) -> Sample:
    """A text that begins with `start`, of which the last `tokens` are scored, except the first, which nothing predicts."""
    text = torch.cat((torch.tensor(start, dtype=ids.dtype), ids))
    return Sample(text, max(len(text) - tokens, 1), window=window, stride=stride)


def _block(room: int, size: int, seed: int, index: int) -> int:
    """Where a block of `size` begins among `room` tokens, which is room for at least one."""
    count = room // size
    round_, number = divmod(index, count)
    draws = random.Random(f"passages {seed} {round_}")
    first = draws.randrange(room - count * size + 1)
    return first + size * draws.sample(range(count), count)[number]


@lru_cache(maxsize=2)
def _tokens(tokenizer: Any, text: str) -> Tensor:
    """A complete text, without the tokens that a tokenizer puts around one."""
    return torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)
