# SPDX-License-Identifier: Apache-2.0
"""RULER's needles in a haystack: eight settings of one task."""

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from posenc.checks import check_word
from posenc.errors import InputError
from posenc.tasks import haystack
from posenc.tasks.passkey import NOISE
from posenc.tasks.ruler.base import RulerTask, words
from posenc.tasks.task import Sample, asked, check_depth, fit_at

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
TEMPLATE = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What are all the special magic {kind} for {query} mentioned in the provided text?"
    " The special magic {kind} for {query} mentioned in the provided text are"
)
SINGULAR = {"Some": "A", "are all": "is", "are": "is"}
"""What RULER replaces in the template, in this order, where one value is asked for."""

MATERIAL: dict[str, Callable[[random.Random], str]] = {
    "words": lambda draws: f"{draws.choice(words('adjective'))}-{draws.choice(words('noun'))}",
    "numbers": lambda draws: str(draws.randint(10**6, 10**7 - 1)),
    "uuids": lambda draws: str(uuid.UUID(int=draws.getrandbits(128), version=4)),
}
"""What a key or a value may be, and how one is drawn."""
HAYSTACKS = {"noise": "\n", "essay": " ", "needle": "\n"}
"""What needles are hidden in, and what stands between its lines."""
DEPTHS = [round(100 * i / 39) for i in range(40)]
"""Where RULER puts a needle into an essay, in per cent of its sentences."""


@dataclass(frozen=True)
class Niah(RulerTask):
    """Magic numbers for words, hidden in a text: RULER's needles in a haystack.

    As in NVIDIA/RULER, scripts/data/synthetic/niah.py (Hsieh et al. 2024, arXiv 2404.06654), which puts every needle at a
    random place: before any line of noise, or at one of forty depths of an essay. So stand here all but one: `depth` is
    the place of the first that is asked for. niah_multivalue and niah_multiquery, which ask for four, put all of them at
    random and take no depth. RULER's running text is Paul Graham's essays, which cannot be shipped; the default is the
    language reference of Python's standard library, in whole sentences, split by our own rules and not nltk's.

    haystack: "noise" (a pass key's lines), "essay" (running text) or "needle" (needles that nobody asks for). key_type,
    value_type: "words", "numbers" (of seven digits) or "uuids". keys, values, queries: how many keys there are, how many
    values each has, and how many keys are asked for. source: the running text, see `posenc.tasks.haystack.read`.
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
        for name in ("keys", "values", "queries"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} of {self.name}: give at least 1")
        if self.haystack == "essay" and self._needles > len(DEPTHS):
            raise InputError(
                f"keys={self.keys} and values={self.values} of {self.name}: an essay has {len(DEPTHS)} places; "
                "give fewer, or another haystack"
            )

    @property
    def _needles(self) -> int:
        return max(self.keys, self.queries) * self.values

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_depth(depth)
        draws = self.draws(seed, index)
        key, value = MATERIAL[self.key_type], MATERIAL[self.value_type]
        pairs = [(key(draws), [value(draws) for _ in range(self.values)]) for _ in range(max(self.keys, self.queries))]
        draws.shuffle(pairs)  # the first are asked for
        needles = [self.needle(key, value) for key, values in pairs for value in values]
        queries = [key for key, _ in pairs[: self.queries]]
        answers = [value for _, values in pairs[: self.queries] for value in values]
        filling, places = draws.getrandbits(64), draws.getrandbits(64)

        def build(count: int, depth: float) -> Sample:
            lines = self._lines(count, random.Random(filling))
            at = self._places(len(lines), random.Random(places))
            if self.takes_depth:
                at[0] = round(depth * len(lines))
            context, first = hide(lines, needles, at, HAYSTACKS[self.haystack])
            prompt, before = self.prompt(context, queries)
            where = (before + first, before + first + len(needles[0])) if self.takes_depth else None
            return asked(tokenizer, prompt, " " + ", ".join(answers), answers, where)

        return fit_at(self, length, depth, build, least=self._needles)

    def needle(self, key: str, value: str) -> str:
        """The sentence that gives a key its value."""
        return NEEDLE.format(kind=self.value_type, key=key, value=value)

    def prompt(self, context: str, queries: Sequence[str]) -> tuple[str, int]:
        """The text around a context that asks for these keys, and how many of its characters stand before the context."""
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
        sentences = haystack.sentences(haystack.read(self.source))
        return (sentences * (count // len(sentences) + 1))[:count]

    def _places(self, lines: int, draws: random.Random) -> list[int]:
        """Before which line each needle stands."""
        if self.haystack == "essay":
            return [int(lines * (percent / 100)) for percent in draws.sample(DEPTHS, self._needles)]
        return draws.sample(range(lines), self._needles)


def hide(lines: Sequence[str], needles: Sequence[str], places: Sequence[int], joint: str) -> tuple[str, int]:
    """The lines with needle i before lines[places[i]], and the character at which the first needle begins."""
    parts: list[str] = []
    taken = first = 0
    for i in sorted(range(len(needles)), key=lambda i: places[i]):
        parts += lines[taken : places[i]]
        taken = places[i]
        if i == 0:
            first = len(joint.join([*parts, ""]))
        parts.append(needles[i])
    return joint.join([*parts, *lines[taken:]]), first


@dataclass(frozen=True)
class Single1(Niah):
    """RULER's niah_single_1: one number for a word, in noise; a pass key."""

    name: ClassVar[str] = "niah_single_1"


@dataclass(frozen=True)
class Single2(Niah):
    """RULER's niah_single_2: one number for a word, in running text; the needle in a haystack."""

    name: ClassVar[str] = "niah_single_2"
    haystack: str = "essay"


@dataclass(frozen=True)
class Single3(Niah):
    """RULER's niah_single_3: one UUID for a word, in running text."""

    name: ClassVar[str] = "niah_single_3"
    haystack: str = "essay"
    value_type: str = "uuids"


@dataclass(frozen=True)
class MultiKey1(Niah):
    """RULER's niah_multikey_1: four words with a number each, in running text; one is asked for."""

    name: ClassVar[str] = "niah_multikey_1"
    haystack: str = "essay"
    keys: int = 4


@dataclass(frozen=True)
class MultiKey2(Niah):
    """RULER's niah_multikey_2: lines that each give a word its number; one is asked for."""

    name: ClassVar[str] = "niah_multikey_2"
    haystack: str = "needle"


@dataclass(frozen=True)
class MultiKey3(Niah):
    """RULER's niah_multikey_3: lines that each give a UUID its UUID; one is asked for."""

    name: ClassVar[str] = "niah_multikey_3"
    haystack: str = "needle"
    key_type: str = "uuids"
    value_type: str = "uuids"


@dataclass(frozen=True)
class MultiValue(Niah):
    """RULER's niah_multivalue: four numbers for one word, in running text; all are asked for."""

    name: ClassVar[str] = "niah_multivalue"
    takes_depth: ClassVar[bool] = False
    haystack: str = "essay"
    values: int = 4


@dataclass(frozen=True)
class MultiQuery(Niah):
    """RULER's niah_multiquery: four words with a number each, in running text; all are asked for."""

    name: ClassVar[str] = "niah_multiquery"
    takes_depth: ClassVar[bool] = False
    haystack: str = "essay"
    queries: int = 4


NEEDLES: tuple[type[Niah], ...] = (
    Single1, Single2, Single3, MultiKey1, MultiKey2, MultiKey3, MultiValue, MultiQuery,
)  # fmt: skip
"""The eight settings of scripts/synthetic.yaml."""
