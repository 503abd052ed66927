# SPDX-License-Identifier: Apache-2.0
"""Repeated text against text that is not."""

from dataclasses import dataclass
from typing import Any, ClassVar

from posenc.errors import InputError, check_sizes, check_word
from posenc.tasks.running_text import ending, scored, start_tokens
from posenc.tasks.task import Sample, Task


@dataclass(frozen=True)
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
    period: int | None = None
    repeats: bool = True
    scored: str = "after"

    def __post_init__(self) -> None:
        check_word("scored", self.scored, ("after", "last"))
        check_sizes(period=self.period)

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        start = start_tokens(tokenizer)
        tokens = length - len(start)
        period = max(length // 4, 1) if self.period is None else self.period
        if tokens < 2 * period:
            raise InputError(f"length={length}: {self.text} needs at least {2 * period + len(start)} tokens")
        ids = ending(tokenizer, self.source, tokens, period, seed, index)
        if self.repeats:
            ids = ids[-period:].repeat(tokens // period + 1)[-tokens:]
        return scored(start, ids, tokens - period if self.scored == "after" else period)
