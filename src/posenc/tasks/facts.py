# SPDX-License-Identifier: Apache-2.0
"""Facts in plain sentences, one of which is asked for."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from posenc.errors import InputError
from posenc.tasks import words
from posenc.tasks.task import Sample, Task, check_depth, fit_at, index_at, make_sample

CODES = range(1000, 10_000)


@dataclass(frozen=True)
class Facts(Task):
    """Sentences of one form, "The code of apple is 4821.", one after the other, and a question for one of them.

    The search in key-value pairs of Lost in the Middle (see `key_value`) in words that a small model reads: one of 135M
    parameters answers some of these questions, and hardly any about UUIDs. Names and codes all differ. Scored: whether
    the first number of the answer is the code.

    items: how many sentences; none: as many as fit. query_aware: the question is before the sentences too.
    """

    name: ClassVar[str] = "facts"
    new_tokens: ClassVar[int] = 10

    items: int | None = None
    query_aware: bool = False

    def __post_init__(self) -> None:
        if self.items is not None and not 2 <= self.items <= len(CODES):
            raise InputError(f"items={self.items}: give 2 to {len(CODES)}, or none for as many as fit")

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_depth(depth)
        codes = self.draws(seed, index).sample(CODES, len(CODES))

        def build(count: int, depth: float) -> Sample:
            names = words.names(self.draws(seed, index), count)
            sentences = [f"The code of {name} is {code}." for name, code in zip(names, codes, strict=False)]
            at = index_at(depth, count)
            question = f"Question: What is the code of {names[0]}?"
            before = " ".join([*sentences[1 : at + 1], f"The code of {names[0]} is "])
            head = f"{question}\n{before}" if self.query_aware else before
            context = " ".join([f"{head}{codes[0]}.", *sentences[at + 1 :]])
            prompt = f"{context}\n{question} Answer: The code of {names[0]} is"
            return make_sample(tokenizer, prompt, f" {codes[0]}", (str(codes[0]),), (len(head), len(head) + 4))

        return fit_at(self, length, depth, build, self.items or 2, self.items or len(CODES))

    def score(self, generated: str, sample: Sample) -> float:
        number = re.search(r"\d+", generated)
        return float(number is not None and number.group() == sample.references[0])
