# SPDX-License-Identifier: Apache-2.0
"""Loss and perplexity on running text, by position, and on running text that repeats."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from posenc.errors import InputError, Size, check_integers
from posenc.tasks.running_text import ending, endings, passage, passages, scored, start_tokens
from posenc.tasks.task import Sample, Task, check_request

WINDOWS = 4
"""Windows' worth of text that sliding windows read by default."""


@dataclass(frozen=True, kw_only=True)
class Perplexity(Task):
    """How well each token of running text is predicted: all of a text, windows that slide over it, or its last tokens.

    Sliding windows are those of YaRN's authors (jquesnelle/yarn, eval/perplexity.py), the last tokens those of Su
    (kexue.fm/archives/9948). The text is the language reference in Python's standard library unless `source` names
    another.

    source: "pydoc" (that reference) or the path of a text file. protocol:

    - "full": one text of `length` tokens, all of them scored.
    - "sliding": windows of `length` tokens begin every `stride` tokens of a longer text, and each scores the tokens that
      the one before did not reach. tokens: of the text, rounded down so that the last window is complete; None: four
      windows' worth. The windows are those of the script for a tokenizer that puts no token before a text; where one
      does, it is put before the text only, while the script puts it before each window, instead of the window's
      first token.
    - "last": the last `last` tokens of `length` are scored. They are the same tokens at every length, only the text
      before them grows: early tokens, which see little, cannot hide what length does.

    weighting: of `loss` over the scored tokens: "tokens" alike, or "windows" alike, the mean over windows of their means,
    which is the script's perplexity; a first window's many tokens then weigh as little as a later one's few.
    """

    name: ClassVar[str] = "perplexity"
    takes_depth: ClassVar[bool] = False

    source: str = "pydoc"
    protocol: Literal["full", "sliding", "last"] = "full"
    stride: Size = 256
    tokens: Size | None = None
    last: Size = 256
    weighting: Literal["tokens", "windows"] = "tokens"

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_request(length, depth, seed, index)
        start = start_tokens(tokenizer)
        least = {"full": 2, "sliding": self.stride + 1, "last": self.last + 1}[self.protocol]
        if length < least:
            raise InputError(f"{self.text} needs at least {least} tokens", length=length)
        if self.protocol == "full":
            ids = passage(tokenizer, self.source, length - len(start), seed, index)
            return scored(start, ids, len(ids))
        if self.protocol == "last":
            ids = ending(tokenizer, self.source, length - len(start), self.last, seed, index)
            return scored(start, ids, self.last)
        tokens = self._read(length)
        check_integers(length, tokens=tokens)
        ids = passage(tokenizer, self.source, tokens - len(start), seed, index)
        ids = ids[: len(ids) - (tokens - length) % self.stride]
        return scored(start, ids, len(ids), length, self.stride)

    def apart(self, tokenizer: Any, length: int) -> int | None:
        if self.protocol == "last":
            return endings(tokenizer, self.source, self.last)
        tokens = length if self.protocol == "full" else self._read(length)
        return passages(tokenizer, self.source, tokens - len(start_tokens(tokenizer)))

    def _read(self, length: int) -> int:
        """Tokens of the text that windows of a length slide over."""
        return WINDOWS * length if self.tokens is None else self.tokens

    def loss(self, losses: Tensor, sample: Sample) -> float:
        if self.weighting == "tokens" or sample.window is None or sample.stride is None:
            return super().loss(losses, sample)
        first = sample.window - sample.prompt_tokens
        windows = (losses[:first], *losses[first:].split(sample.stride))
        return float(torch.stack([window.mean() for window in windows if len(window)]).mean())


@dataclass(frozen=True, kw_only=True)
class Repeated(Task):
    """Running text repeated until it fills the length: whoever looks back far enough can copy, and errs no more.

    The measure is the accuracy, against that on natural text of the same length, which `repeats=false` is (Su,
    kexue.fm/archives/9675). Repetitions are counted from the text's end, so that the last one is complete.

    source: "pydoc" (the language reference in Python's standard library) or the path of a text file. period: tokens of
    what is repeated; None: a quarter of the length. scored: "after", every token after the first `period`, as each of
    them has occurred before; "last", the last `period` tokens: these are the same with and without repetition, and with a
    fixed period at every length.
    """

    name: ClassVar[str] = "repeated"
    takes_depth: ClassVar[bool] = False

    source: str = "pydoc"
    period: Size | None = None
    repeats: bool = True
    scored: Literal["after", "last"] = "after"

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_request(length, depth, seed, index)
        start = start_tokens(tokenizer)
        tokens = length - len(start)
        period = self._period(length)
        if tokens < 2 * period:
            raise InputError(f"{self.text} needs at least {2 * period + len(start)} tokens", length=length)
        ids = ending(tokenizer, self.source, tokens, period, seed, index)
        if self.repeats:
            ids = ids[-period:].repeat(tokens // period + 1)[-tokens:]
        return scored(start, ids, tokens - period if self.scored == "after" else period)

    def apart(self, tokenizer: Any, length: int) -> int | None:
        if self.scored == "after" and not self.repeats:
            return 1  # nearly all of each text is scored, and they end close to each other
        return endings(tokenizer, self.source, self._period(length))

    def _period(self, length: int) -> int:
        return max(length // 4, 1) if self.period is None else self.period
