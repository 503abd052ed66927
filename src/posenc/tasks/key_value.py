# SPDX-License-Identifier: Apache-2.0
"""Key-value retrieval: as in Lost in the Middle, and in plain sentences."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, ClassVar, Literal
from uuid import UUID

from posenc.errors import InputError
from posenc.tasks import words
from posenc.tasks.passkey import NOISE
from posenc.tasks.task import Sample, Task, check_request, first_number, fit, index_at, make_sample

PROMPT = """\
Extract the value corresponding to the specified key in the JSON object below.

JSON data:
{records}

Key: "{key}"
Corresponding value:"""
QUERY_AWARE = PROMPT.replace("JSON data:", 'Key: "{key}"\n\nJSON data:')

DIGITS = range(1000, 10_000)


def uuids(draws: Random, count: int) -> list[str]:
    """Random UUIDs of version 4."""
    return [str(UUID(int=draws.getrandbits(128), version=4)) for _ in range(count)]


def digits(draws: Random, count: int) -> list[str]:
    """Different numbers of four digits."""
    return [str(number) for number in draws.sample(DIGITS, len(DIGITS))[:count]]


KINDS: dict[str, tuple[Callable[[Random, int], list[str]], int | None]] = {
    "uuid": (uuids, None),
    "digits": (digits, len(DIGITS)),
    "words": (words.names, words.COUNT),
}
"""What keys and values can be, how they are drawn, and how many there are."""


@dataclass(frozen=True, kw_only=True)
class KeyValue(Task):
    """The value of one key in a JSON object of random keys and values.

    The prompts, the UUIDs and the score (the answer contains the value, ignoring case) are those of Liu et al. 2023
    (arXiv 2307.03172; nelson-liu/lost-in-the-middle, prompting.py, make_kv_retrieval_data.py and
    evaluate_kv_responses.py), and so is the move: the record asked for moves, the others keep their order.

    keys, values: "uuid" as there, "digits" (four) or "words". pairs: how many records, there 75, 140 or 300; none: as
    many as fit. query_aware: the key is before the object too.
    """

    name: ClassVar[str] = "key_value"
    new_tokens: ClassVar[int] = 100

    keys: Literal["uuid", "digits", "words"] = "uuid"
    values: Literal["uuid", "digits", "words"] = "uuid"
    pairs: int | None = None
    query_aware: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs is not None and not 2 <= self.pairs <= (self._most or self.pairs):
            most = f" to {self._most}" if self._most else " or more"
            raise InputError(f"give 2{most}, or none for as many as fit", pairs=self.pairs)

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_request(length, depth, seed, index)

        def build(count: int, depth: float) -> Sample:
            draws = self.draws(seed, index, length)
            keys, values = (Random(draws.getrandbits(64)) for _ in range(2))
            records = list(zip(KINDS[self.keys][0](keys, count), KINDS[self.values][0](values, count), strict=True))
            (key, value), others = records[0], records[1:]
            others.insert(index_at(depth, count), records[0])
            written = "{" + ",\n ".join(f'"{key}": "{value}"' for key, value in others) + "}"
            prompt = (QUERY_AWARE if self.query_aware else PROMPT).format(records=written, key=key)
            first = prompt.index(f'"{key}": "') + len(key) + 5
            return make_sample(tokenizer, prompt, f" {value}", (value,), (first, first + len(value)))

        return fit(self, length, build, self.pairs or 2, self.pairs or self._most, depth)

    def score(self, generated: str, sample: Sample) -> float:
        return float(sample.references[0].lower() in generated.lower())

    @property
    def _most(self) -> int | None:
        """How many records there can be."""
        counts = [most for kind in (self.keys, self.values) if (most := KINDS[kind][1]) is not None]
        return min(counts, default=None)


@dataclass(frozen=True, kw_only=True)
class Facts(Task):
    """Sentences of one form, "The code of apple is 4821.", one after the other, and a question for one of them.

    The search in key-value pairs of Lost in the Middle in words that a small model reads: one of 135M
    parameters answers some of these questions, and hardly any about UUIDs. Names and codes all differ. Scored: whether
    the first number of the answer is the code.

    items: how many sentences; none: as many as fit. query_aware: the question is before the sentences too. noise: the
    sentences stand at equal distances in the noise of the passkey, which fills the length, and `depth` chooses the one that
    is asked for: nothing moves, so that a text is read once for all its questions.
    """

    name: ClassVar[str] = "facts"
    new_tokens: ClassVar[int] = 10

    items: int | None = None
    query_aware: bool = False
    noise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise and (self.items is None or self.query_aware):
            raise InputError("give items, the number of sentences in the noise, and leave out query_aware", noise=True)
        if self.items is not None and not 2 <= self.items <= len(DIGITS):
            raise InputError(f"give 2 to {len(DIGITS)}, or none for as many as fit", items=self.items)

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_request(length, depth, seed, index)
        codes = self.draws(seed, index, length).sample(DIGITS, len(DIGITS))

        def build(count: int, depth: float) -> Sample:
            items, noise = (self.items, count) if self.noise and self.items else (count, 0)
            names = words.names(self.draws(seed, index, length), items)
            facts = [(f"The code of {name} is ", f"{code}.") for name, code in zip(names, codes, strict=False)]
            at = index_at(depth, items)
            asked = at if self.noise else 0
            facts.insert(at, facts.pop(asked))
            gaps = pairwise([0, *(noise * i // (items - 1) for i in range(items))])
            parts = [" ".join((*[NOISE] * (b - a), "".join(fact))) for (a, b), fact in zip(gaps, facts, strict=True)]
            question = f"Question: What is the code of {names[asked]}?"
            start = f"{question}\n" if self.query_aware else ""
            first = len(start + " ".join(parts[: at + 1])) - 5
            prompt = f"{start}{' '.join(parts)}\n{question} Answer: The code of {names[asked]} is"
            return make_sample(tokenizer, prompt, f" {codes[asked]}", (str(codes[asked]),), (first, first + 4))

        if self.noise and self.items:
            every = [i / (self.items - 1) for i in range(self.items)]
            return fit(self, length, build, depth=depth, depths=every)
        return fit(self, length, build, self.items or 2, self.items or len(DIGITS), depth)

    def score(self, generated: str, sample: Sample) -> float:
        return float(first_number(generated) == sample.references[0])
