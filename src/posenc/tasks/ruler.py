# SPDX-License-Identifier: Apache-2.0
"""RULER's synthetic tasks (Hsieh et al. 2024, arXiv 2404.06654), as NVIDIA/RULER makes them at commit c3f5e3b.

The prompts are byte for byte those of scripts/data/synthetic/*.py with the settings of scripts/synthetic.yaml, answer
prefix included, with the exceptions in each task's docstring. Its two question-answering tasks need SQuAD and HotpotQA and
are not here.
"""

import itertools
import math
import random
import string
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posenc.errors import InputError, check_integers, check_word
from posenc.tasks import running_text
from posenc.tasks.passkey import NOISE
from posenc.tasks.task import Sample, Task, check_depth, encode, fit, make_sample


def string_match_all(generated: str, references: Sequence[str]) -> float:
    """The part of the references that occur in a generated text, ignoring case (scripts/eval/synthetic/constants.py)."""
    return sum(reference.lower() in generated.lower() for reference in references) / len(references)


@dataclass(frozen=True, kw_only=True)
class RulerTask(Task):
    """A task of RULER, scored by the part of its references that are generated."""

    def score(self, generated: str, sample: Sample) -> float:
        return string_match_all(generated, sample.references)


@cache
def words(*kinds: str) -> tuple[str, ...]:
    """The English words of wonderwords of these kinds ("noun", "adjective", "verb"), sorted.

    Raises:
        InputError: wonderwords is not installed.
    """
    try:
        from wonderwords import RandomWord
    except ImportError:
        raise InputError(
            "RULER's words are those of wonderwords, which is not installed: pip install 'posenc[lab]'"
        ) from None
    source = RandomWord()
    return tuple(sorted({word for kind in kinds for word in source.filter(include_categories=[kind])}))


# -------------------------------------------------------------------- needles in a haystack: eight settings of one task

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
TEMPLATE = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What are all the special magic {kind} for {query} mentioned in the provided text?"
    " The special magic {kind} for {query} mentioned in the provided text are"
)
SINGULAR = {"Some": "A", "are all": "is", "are": "is"}
"""Replaced in the template, in this order, where one value is asked for."""

MATERIAL: dict[str, Callable[[random.Random], str]] = {
    "words": lambda draws: f"{draws.choice(words('adjective'))}-{draws.choice(words('noun'))}",
    "numbers": lambda draws: str(draws.randint(10**6, 10**7 - 1)),
    "uuids": lambda draws: str(uuid.UUID(int=draws.getrandbits(128), version=4)),
}
"""What a key or a value may be, and how one is drawn."""
HAYSTACKS = {"noise": "\n", "essay": " ", "needle": "\n"}
"""What needles are hidden in, and the separator of its lines."""
DEPTHS = [round(100 * i / 39) for i in range(40)]
"""Where RULER puts a needle into an essay, in per cent of its sentences."""


@dataclass(frozen=True, kw_only=True)
class Niah(RulerTask):
    """Magic numbers for words, hidden in a text: RULER's needles in a haystack.

    As in NVIDIA/RULER, scripts/data/synthetic/niah.py (Hsieh et al. 2024, arXiv 2404.06654), which puts every needle at a
    random position: before any line of noise, or at one of forty depths of an essay. So are here all but one: `depth` is
    the position of the first that is asked for. niah_multivalue and niah_multiquery, which ask for four, put all of them at
    random and take no depth. RULER's running text is Paul Graham's essays, which cannot be shipped; the default is the
    language reference of Python's standard library, in complete sentences, split by other rules than nltk's.

    haystack: "noise" (the lines of passkey retrieval), "essay" (running text) or "needle" (needles that nobody asks for). key_type,
    value_type: "words", "numbers" (of seven digits) or "uuids". keys, values, queries: how many keys there are, how many
    values each has, and how many keys are asked for. source: the running text, see `posenc.tasks.running_text.read`.
    """

    new_tokens: ClassVar[int] = 128

    haystack: str = "noise"
    key_type: str = "words"
    value_type: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1
    source: str = "pydoc"

    def __post_init__(self) -> None:
        check_word("haystack", self.haystack, HAYSTACKS)
        check_word("key_type", self.key_type, MATERIAL)
        check_word("value_type", self.value_type, MATERIAL)
        check_integers(1, keys=self.keys, values=self.values, queries=self.queries)
        if self.haystack == "essay" and self._needles > len(DEPTHS):
            raise InputError(
                f"an essay has {len(DEPTHS)} positions for needles",
                "give fewer, or another haystack",
                keys=self.keys,
                values=self.values,
            )

    @property
    def _needles(self) -> int:
        return max(self.keys, self.queries) * self.values

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_depth(depth)
        draws = self.draws(seed, index, length)
        key, value = MATERIAL[self.key_type], MATERIAL[self.value_type]
        pairs = [(key(draws), [value(draws) for _ in range(self.values)]) for _ in range(max(self.keys, self.queries))]
        draws.shuffle(pairs)  # the first are asked for
        needles = [self.needle(key, value) for key, values in pairs for value in values]
        queries = [key for key, _ in pairs[: self.queries]]
        answers = [value for _, values in pairs[: self.queries] for value in values]
        filling, order = draws.getrandbits(64), draws.getrandbits(64)

        def build(count: int, depth: float) -> Sample:
            lines = self._lines(count, random.Random(filling))
            at = self._line_numbers(len(lines), random.Random(order))
            if self.takes_depth:
                at[0] = round(depth * len(lines))
            context, first = insert_needles(lines, needles, at, HAYSTACKS[self.haystack])
            prompt, before = self.prompt(context, queries)
            where = (before + first, before + first + len(needles[0])) if self.takes_depth else None
            return make_sample(tokenizer, prompt, " " + ", ".join(answers), answers, where)

        return fit(self, length, build, least=self._needles, depth=depth)

    def needle(self, key: str, value: str) -> str:
        """The sentence that gives a key its value."""
        return NEEDLE.format(kind=self.value_type, key=key, value=value)

    def prompt(self, context: str, queries: Sequence[str]) -> tuple[str, int]:
        """The text around a context that asks for these keys, and how many of its characters are before the context."""
        template, kind = TEMPLATE, self.value_type
        if self.queries * self.values == 1:
            kind = kind.removesuffix("s")
            for plural, singular in SINGULAR.items():
                template = template.replace(plural, singular)
        query = ", ".join(queries[:-1]) + ", and " + queries[-1] if len(queries) > 1 else queries[0]
        head, tail = (part.format(kind=kind, query=query) for part in template.split("{context}"))
        return head + context + tail, len(head)

    def _lines(self, count: int, draws: random.Random) -> Sequence[str]:
        if self.haystack == "noise":
            return [NOISE] * count
        if self.haystack == "needle":
            key, value = MATERIAL[self.key_type], MATERIAL[self.value_type]
            return [self.needle(key(draws), value(draws)) for _ in range(count)]
        sentences = running_text.sentences(running_text.read(self.source))
        return (sentences * (count // len(sentences) + 1))[:count]

    def _line_numbers(self, lines: int, draws: random.Random) -> list[int]:
        """The line that each needle is inserted before."""
        if self.haystack == "essay":
            return [int(lines * (percent / 100)) for percent in draws.sample(DEPTHS, self._needles)]
        return draws.sample(range(lines), self._needles)


def insert_needles(lines: Sequence[str], needles: Sequence[str], at: Sequence[int], joint: str) -> tuple[str, int]:
    """The lines with needle i before lines[at[i]], and the character at which the first needle begins."""
    parts: list[str] = []
    taken = first = 0
    for i in sorted(range(len(needles)), key=lambda i: at[i]):
        parts += lines[taken : at[i]]
        taken = at[i]
        if i == 0:
            first = len(joint.join([*parts, ""]))
        parts.append(needles[i])
    return joint.join([*parts, *lines[taken:]]), first


def _setting(cls: str, name: str, text: str, takes_depth: bool = True, **defaults: Any) -> type[Niah]:
    """A task that is `Niah` with other defaults."""
    types = {option: Niah.__annotations__[option] for option in defaults}
    body = {"name": name, "takes_depth": takes_depth, "__doc__": f"RULER's {name}: {text}.", "__annotations__": types}
    return dataclass(frozen=True, kw_only=True)(type(cls, (Niah,), {**body, **defaults, "__module__": __name__}))


Single1 = _setting("Single1", "niah_single_1", "one number for a word, in noise: passkey retrieval")
Single2 = _setting(
    "Single2", "niah_single_2", "one number for a word, in running text; the needle in a haystack", haystack="essay"
)
Single3 = _setting(
    "Single3", "niah_single_3", "one UUID for a word, in running text", haystack="essay", value_type="uuids"
)
MultiKey1 = _setting(
    "MultiKey1", "niah_multikey_1", "four words with a number each, in running text; one is asked for",
    haystack="essay", keys=4,
)  # fmt: skip
MultiKey2 = _setting(
    "MultiKey2", "niah_multikey_2", "lines that each give a word its number; one is asked for", haystack="needle"
)
MultiKey3 = _setting(
    "MultiKey3", "niah_multikey_3", "lines that each give a UUID its UUID; one is asked for",
    haystack="needle", key_type="uuids", value_type="uuids",
)  # fmt: skip
MultiValue = _setting(
    "MultiValue", "niah_multivalue", "four numbers for one word, in running text; all are asked for",
    takes_depth=False, haystack="essay", values=4,
)  # fmt: skip
MultiQuery = _setting(
    "MultiQuery", "niah_multiquery", "four words with a number each, in running text; all are asked for",
    takes_depth=False, haystack="essay", queries=4,
)  # fmt: skip
NEEDLES = (Single1, Single2, Single3, MultiKey1, MultiKey2, MultiKey3, MultiValue, MultiQuery)
"""The eight settings of scripts/synthetic.yaml."""


# -------------------------------------------------------------------- variable tracking

TRACKING = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {value} in the text above."
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {value}, they are: "
)
Chain = tuple[str, list[str]]
"""A value and the variables that it is assigned to."""


@dataclass(frozen=True, kw_only=True)
class VariableTracking(RulerTask):
    """A value is assigned from variable to variable among lines of noise; the question asks for all of them (RULER's vt).

    As in NVIDIA/RULER, scripts/data/synthetic/variable_tracking.py (Hsieh et al. 2024, arXiv 2404.06654): variables have
    five letters, those of the worked example before the text three. Scored: the part of the variables that are named.

    hops: assignments from one variable to the next. chains: how many values are; the first one is asked for. example: tokens that the
    worked example takes at most, its question included; 0 leaves it out.
    """

    name: ClassVar[str] = "variable_tracking"
    takes_depth: ClassVar[bool] = False
    new_tokens: ClassVar[int] = 30

    hops: int = 4
    chains: int = 1
    example: int = 500

    def __post_init__(self) -> None:
        check_integers(1, hops=self.hops, chains=self.chains)
        check_integers(0, example=self.example)

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        draws = self.draws(seed, index, length)
        example = self._example(tokenizer, draws)
        chains = self._chains(draws, letters=5)
        order = draws.getrandbits(64)

        def build(count: int, _: float) -> Sample:
            prompt = example + tracking_prompt(chains, count, random.Random(order))
            return make_sample(tokenizer, prompt, " ".join(chains[0][1]), chains[0][1])

        return fit(self, length, build, least=self.hops + 1)

    def _chains(self, draws: random.Random, letters: int) -> list[Chain]:
        names: dict[str, None] = {}  # distinct, in order
        while len(names) < self.chains * (self.hops + 1):
            names["".join(draws.choices(string.ascii_uppercase, k=letters))] = None
        values = draws.sample(range(10000, 99999), self.chains)
        return [(str(value), list(names)[i :: self.chains]) for i, value in enumerate(values)]

    def _example(self, tokenizer: Any, draws: random.Random) -> str:
        """The longest text of `example` tokens, or the shortest there is, with its answer."""
        chains, order = self._chains(draws, letters=3), draws.getrandbits(64)
        if not self.example:
            return ""
        texts = (tracking_prompt(chains, count, random.Random(order)) for count in itertools.count(self.hops + 1))
        text = next(texts)
        for longer in itertools.takewhile(lambda text: len(encode(tokenizer, text)) <= self.example, texts):
            text = longer
        return f"{text} {' '.join(chains[0][1])}\n\n"


def tracking_prompt(chains: Sequence[Chain], count: int, draws: random.Random) -> str:
    """The prompt whose context is `count` lines of noise with each chain's assignments, in order, at random positions."""
    lines = [NOISE] * count
    for value, (first, *rest) in chains:
        links = zip((first, *rest), rest, strict=False)
        assignments = [f"VAR {first} = {value}", *(f"VAR {new} = VAR {old} " for old, new in links)]
        for i, at in enumerate(sorted(draws.sample(range(len(lines)), len(assignments)))):
            lines.insert(at + i, assignments[i])
    value, names = chains[0]
    return TRACKING.format(context="\n".join(lines), value=value, count=len(names))


# -------------------------------------------------------------------- aggregations: the words that occur most

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
COMMON_COUNT = 10
"""How many common words there are."""


@dataclass(frozen=True, kw_only=True)
class CommonWords(RulerTask):
    """A numbered list of words in which ten occur more often than the rest: which ones? (RULER's cwe.)

    As in NVIDIA/RULER, scripts/data/synthetic/common_words_extraction.py (Hsieh et al. 2024, arXiv 2404.06654). From 4096
    tokens on, common words occur 30 times and the others 3 times, below that 6 times and once; a short worked
    example comes first. Scored: the part of the ten words that are named. RULER numbers the answer as it does the list,
    in no order that could be known, so that the likelihood of the answer is less informative than the score. Once wonderwords'
    8 000 words are used up RULER goes on with a longer list, which is not here: such lengths are refused.
    """

    name: ClassVar[str] = "common_words"
    takes_depth: ClassVar[bool] = False
    new_tokens: ClassVar[int] = 120

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        draws = self.draws(seed, index, length)
        example, often = (Counts(20, 3, 1), (6, 1)) if length < 4096 else (Counts(40, 10, 3), (30, 3))
        everything = words("noun", "adjective", "verb")
        shown = draws.sample(everything, example.words)
        start = COMMON.format(context=listed(shown, example, draws)) + f" {numbered(shown[:COMMON_COUNT])}\n"
        sampled = draws.sample(everything, len(everything))
        order = draws.getrandbits(64)

        def build(count: int, _: float) -> Sample:
            counts = Counts(count, *often)
            prompt = start + COMMON.format(context=listed(sampled, counts, random.Random(order)))
            return make_sample(tokenizer, prompt, f" {numbered(sampled[:COMMON_COUNT])}", sampled[:COMMON_COUNT])

        sample = fit(self, length, build, least=COMMON_COUNT, most=len(sampled))
        if f" {Counts(len(sampled), *often).total}. " in sample.prompt:
            raise InputError(f"{self.name} has {len(sampled)} words, which do not fill it", length=length)
        return sample


class Counts(NamedTuple):
    """A list of `words` words, of which the first ten occur `often` times and the others `seldom` times."""

    words: int
    often: int
    seldom: int

    @property
    def total(self) -> int:
        return COMMON_COUNT * self.often + (self.words - COMMON_COUNT) * self.seldom


def listed(sampled: Sequence[str], counts: Counts, draws: random.Random) -> str:
    """The words, repeated as in `counts`, shuffled and numbered."""
    everything = (
        list(sampled[:COMMON_COUNT]) * counts.often + list(sampled[COMMON_COUNT : counts.words]) * counts.seldom
    )
    draws.shuffle(everything)
    return numbered(everything)


def numbered(items: Sequence[str]) -> str:
    return " ".join(f"{number}. {item}" for number, item in enumerate(items, 1))


@dataclass(frozen=True, kw_only=True)
class FrequentWords(RulerTask):
    """Made-up words, each the rarer the lower its rank, by a power law: which three occur most? (RULER's fwe.)

    As in NVIDIA/RULER, scripts/data/synthetic/freq_words_extraction.py (Hsieh et al. 2024, arXiv 2404.06654): the first
    rank is dots, to be ignored, and there is a word for every 50 tokens of the length. Scored: the
    part of the three words that are named.

    alpha: of the power law; the word of rank k occurs n k^-alpha / zeta(alpha) times among n.
    """

    name: ClassVar[str] = "frequent_words"
    takes_depth: ClassVar[bool] = False
    new_tokens: ClassVar[int] = 50

    alpha: float = 2.0

    def __post_init__(self) -> None:
        if not 1 < self.alpha < math.inf:
            raise InputError("must be more than 1, or no power law sums up", alpha=self.alpha)

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        if (words := int(self.least * float(self._shares(5).sum()))) > length:
            raise InputError(f"{self.text} needs at least {words} words", length=length)
        draws = self.draws(seed, index, length)
        coded: dict[str, None] = {"...": None}  # distinct, in order
        while len(coded) < max((length - self.new_tokens) // 50, 5):
            coded["".join(draws.choices(string.ascii_lowercase, k=6))] = None
        ranks, order = list(coded), draws.getrandbits(64)

        def build(count: int, _: float) -> Sample:
            text = [word for word, n in zip(ranks, self.counts(count, len(ranks)), strict=True) for _ in range(n)]
            random.Random(order).shuffle(text)
            prompt = FREQUENT.format(context=" ".join(text))
            return make_sample(tokenizer, prompt, " " + ", ".join(ranks[1:4]), ranks[1:4])

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
