# SPDX-License-Identifier: Apache-2.0
"""RULER's aggregations: the words that occur most."""

import math
import random
import string
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.tasks.ruler.base import RulerTask, words
from posenc.tasks.task import Sample, asked, fit

COMMON = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?"
    " Answer: The top 10 words that appear most often in the list are:"
)
FREQUENT = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three "
    "most frequently appeared words in the above coded text?"
    " Answer: According to the coded text above, the three most frequently appeared words are:"
)
ASKED = 10
"""How many common words there are."""


@dataclass(frozen=True)
class CommonWords(RulerTask):
    """A numbered list of words in which ten occur more often than the rest: which ones? (RULER's cwe.)

    As in NVIDIA/RULER, scripts/data/synthetic/common_words_extraction.py (Hsieh et al. 2024, arXiv 2404.06654). From 4096
    tokens on, common words occur 30 times and the others 3 times, below that 6 times and once; a short worked
    example comes first. Scored: the part of the ten words that are named. RULER numbers the answer as it does the list,
    in no order that could be known, so that the likelihood of the answer says less than the score. Once wonderwords'
    8 000 words are used up RULER goes on with a longer list, which is not here: such lengths are refused.
    """

    name: ClassVar[str] = "common_words"
    takes_depth: ClassVar[bool] = False
    new_tokens: ClassVar[int] = 120

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        draws = self.draws(seed, index)
        example, often = (Counts(20, 3, 1), (6, 1)) if length < 4096 else (Counts(40, 10, 3), (30, 3))
        everything = words("noun", "adjective", "verb")
        shown = draws.sample(everything, example.words)
        start = COMMON.format(context=listed(shown, example, draws)) + f" {numbered(shown[:ASKED])}\n"
        sampled = draws.sample(everything, len(everything))
        order = draws.getrandbits(64)

        def build(count: int) -> Sample:
            counts = Counts(count, *often)
            prompt = start + COMMON.format(context=listed(sampled, counts, random.Random(order)))
            return asked(tokenizer, prompt, f" {numbered(sampled[:ASKED])}", sampled[:ASKED])

        found = fit(self, length, build, least=ASKED, most=len(sampled))
        if f" {Counts(len(sampled), *often).total}. " in found.prompt:
            raise InputError(f"length={length}: {self.name} has {len(sampled)} words, which do not fill it")
        return found


class Counts(NamedTuple):
    """A list of `words` words, of which the first ten occur `often` times and the others `seldom` times."""

    words: int
    often: int
    seldom: int

    @property
    def total(self) -> int:
        return ASKED * self.often + (self.words - ASKED) * self.seldom


def listed(sampled: Sequence[str], counts: Counts, draws: random.Random) -> str:
    """The words as often as counts says, shuffled and numbered."""
    everything = list(sampled[:ASKED]) * counts.often + list(sampled[ASKED : counts.words]) * counts.seldom
    draws.shuffle(everything)
    return numbered(everything)


def numbered(items: Sequence[str]) -> str:
    return " ".join(f"{number}. {item}" for number, item in enumerate(items, 1))


@dataclass(frozen=True)
class FrequentWords(RulerTask):
    """Made-up words, each the rarer the lower its rank, by a power law: which three occur most? (RULER's fwe.)

    As in NVIDIA/RULER, scripts/data/synthetic/freq_words_extraction.py (Hsieh et al. 2024, arXiv 2404.06654): the first
    rank is dots, which the question says to ignore, and there is a word for every 50 tokens of the length. Scored: the
    part of the three words that are named.

    alpha: of the power law; the word of rank k occurs n k^-alpha / zeta(alpha) times among n.
    """

    name: ClassVar[str] = "frequent_words"
    takes_depth: ClassVar[bool] = False
    new_tokens: ClassVar[int] = 50

    alpha: float = 2.0

    def __post_init__(self) -> None:
        if not 1 < self.alpha < math.inf:
            raise InputError(f"alpha={self.alpha} of {self.name}: must be more than 1, or no power law sums up")

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        if (words := int(self.least * float(self._shares(5).sum()))) > length:
            raise InputError(f"length={length}: {self.text} needs at least {words} words")
        draws = self.draws(seed, index)
        coded: dict[str, None] = {"...": None}  # distinct, in order
        while len(coded) < max((length - self.new_tokens) // 50, 5):
            coded["".join(draws.choices(string.ascii_lowercase, k=6))] = None
        ranks, order = list(coded), draws.getrandbits(64)

        def build(count: int) -> Sample:
            text = [word for word, n in zip(ranks, self.counts(count, len(ranks)), strict=True) for _ in range(n)]
            random.Random(order).shuffle(text)
            prompt = FREQUENT.format(context=" ".join(text))
            return asked(tokenizer, prompt, " " + ", ".join(ranks[1:4]), ranks[1:4])

        return fit(self, length, build, least=self.least)

    def counts(self, count: int, ranks: int) -> list[int]:
        """How often the word of each rank occurs in a text of `count` words."""
        return (count * self._shares(ranks)).int().tolist()

    @property
    def least(self) -> int:
        """The words from which on the fourth rank's word occurs more often than the fifth's, which is not asked for."""
        *_, fourth, fifth = self._shares(5).tolist()
        return math.ceil(1 / (fourth - fifth)) if fourth > fifth else sys.maxsize

    def _shares(self, ranks: int) -> Tensor:
        rank = torch.arange(1, ranks + 1, dtype=torch.float64)
        return rank**-self.alpha / torch.special.zeta(torch.tensor(self.alpha, dtype=torch.float64), torch.ones(()))
