# SPDX-License-Identifier: Apache-2.0
"""Pieces of running text, as tokens: which of them a seed and an index name."""

import random
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.tasks.haystack import read
from posenc.tasks.task import Sample, encode


def opening(tokenizer: Any) -> list[int]:
    """What stands before every text: the token that begins one, where the tokenizer puts it there, or nothing."""
    return [token for token in encode(tokenizer, "")[:1] if token == tokenizer.bos_token_id]


def passage(tokenizer: Any, source: str, tokens: int, seed: int, index: int) -> Tensor:
    """Tokens (tokens,) of the text behind a name (see `haystack.read`).

    A seed cuts the text into passages and shuffles them; index counts them. They do not overlap until the text is used
    up, then it is cut anew.

    Raises:
        InputError: the text has fewer tokens.
    """
    ids = _tokens(tokenizer, source)
    if tokens > len(ids):
        raise InputError(
            f"source={source} has {len(ids)} tokens with this tokenizer, fewer than the {tokens} of one passage: give a "
            "longer text or a smaller length"
        )
    start = _block(len(ids), tokens, seed, index)
    return ids[start : start + tokens]


def ending(tokenizer: Any, source: str, tokens: int, scored: int, seed: int, index: int) -> Tensor:
    """Tokens (tokens,) of the text behind a name, of which the last `scored` do not depend on how many there are before
    them: they are one of the blocks into which a seed cuts the second half of the text, as `passage` cuts all of it.

    Raises:
        InputError: what is before a block may be shorter than asked for.
    """
    ids = _tokens(tokenizer, source)
    half = len(ids) // 2
    if scored > len(ids) - half or tokens - scored > half:
        raise InputError(
            f"source={source} has {len(ids)} tokens with this tokenizer: {scored} in its second half with {tokens - scored} "
            f"before them need {2 * max(scored, tokens - scored)}; give a longer text or a smaller length"
        )
    end = half + _block(len(ids) - half, scored, seed, index) + scored
    return ids[end - tokens : end]


def scored(start: list[int], ids: Tensor, tokens: int, window: int | None = None, stride: int | None = None) -> Sample:
    """A text that begins with `start`, of which the last `tokens` are scored, except the first, which nothing predicts."""
    whole = torch.cat((torch.tensor(start, dtype=ids.dtype), ids))
    return Sample(whole, max(len(whole) - tokens, 1), window=window, stride=stride)


def _block(room: int, size: int, seed: int, index: int) -> int:
    """Where a block of `size` begins among `room` tokens, which hold at least one."""
    count = room // size
    round_, place = divmod(index, count)
    draws = random.Random(f"passages {seed} {round_}")
    first = draws.randrange(room - count * size + 1)
    return first + size * draws.sample(range(count), count)[place]


@lru_cache(maxsize=2)
def _tokens(tokenizer: Any, source: str) -> Tensor:
    """The whole text, without what a tokenizer puts around one."""
    return torch.tensor(tokenizer(read(source), add_special_tokens=False, verbose=False).input_ids)
