# SPDX-License-Identifier: Apache-2.0
"""Copying what occurred a distance before."""

import re
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Literal

import torch

from posenc.errors import InputError, check_integers
from posenc.tasks.running_text import start_tokens
from posenc.tasks.task import Sample, Task, check_request

PLACEHOLDER = re.compile(r"<.*>|\[.*\]")
"""How tokenizers write bytes and tokens reserved for later use."""


@dataclass(frozen=True, kw_only=True)
class Copying(Task):
    """A few random tokens end the text as they occurred in it before: from the second on, what comes next is known.

    What an induction head does (Olsson et al. 2022, arXiv 2209.11895), at a distance of choice. The first of
    them, which nothing announces, is not scored, and occurs nowhere else.

    depth: where they occur first, from 0 (the text's start) to 1 (right before their repetition). distance: tokens from
    there to the repetition instead, whatever the length; depth then means nothing. segment: how many they are. kind: all
    are drawn alike from the tokenizer's "tokens" or from its "words", those that are a word of at least three letters, so
    that guessing helps as little as it can.
    """

    name: ClassVar[str] = "copying"

    segment: Annotated[int, partial(check_integers, 2)] = 16
    distance: int | None = None
    kind: Literal["tokens", "words"] = "tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distance is not None and self.distance < self.segment:
            raise InputError(f"cannot be shorter than the segment, {self.segment} tokens", distance=self.distance)

    @property
    def takes_depth(self) -> bool:  # type: ignore[override]
        return self.distance is None

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_request(length, depth, seed, index)
        start = start_tokens(tokenizer)
        least = len(start) + self.segment + (self.distance or self.segment)
        if length < least:
            raise InputError(f"{self.text} needs at least {least} tokens", length=length)
        others = length - len(start) - 2 * self.segment
        before = round(depth * others) if self.distance is None else others + self.segment - self.distance
        draws = self.draws(seed, index, length)
        known = ordinary_tokens(tokenizer, self.kind)
        first = draws.choice(known)
        pool = [token for token in known if token != first]
        segment = [first, *draws.choices(pool, k=self.segment - 1)]
        filler = draws.choices(pool, k=others)
        ids = torch.tensor([*start, *filler[:before], *segment, *filler[before:], *segment])
        first_at = len(start) + before
        return Sample(ids, length - self.segment + 1, needle=(first_at, first_at + self.segment))


@lru_cache(maxsize=4)
def ordinary_tokens(tokenizer: Any, kind: str) -> tuple[int, ...]:
    """The ids of a tokenizer's tokens, less the special and the added ones and placeholders; kind: see `Copying`.

    Raises:
        InputError: fewer than two.
    """
    excluded = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    ids = [n for token, n in tokenizer.get_vocab().items() if n not in excluded and not PLACEHOLDER.fullmatch(token)]
    if kind == "words":
        ids = [n for n in ids if re.fullmatch(r"\s?[^\W\d_]{3,}", tokenizer.decode([n]))]
    if len(ids) < 2:
        raise InputError(f"the tokenizer has {len(ids)} such tokens, and two are needed", kind=kind)
    return tuple(sorted(ids))
