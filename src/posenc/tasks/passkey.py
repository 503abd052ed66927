# SPDX-License-Identifier: Apache-2.0
"""Passkey retrieval."""

from dataclasses import dataclass
from typing import Any, ClassVar

from posenc.tasks.task import Sample, Task, check_request, first_number, fit, make_sample

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there."
)
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
QUESTION = "What is the pass key? The pass key is"


@dataclass(frozen=True)
class Passkey(Task):
    """A number of up to five digits among meaningless sentences, and the question for it.

    The prompt is that of Mohtashami and Jaggi 2023 (arXiv 2305.16300), as evaluated by YaRN's authors (jquesnelle/yarn,
    eval/passkey.py): lines of task, noise, key, noise and question. They cut the noise at a random character; here the
    depth is chosen, and the five sentences stay together. Scored: whether the first number of the answer is the key.
    """

    name: ClassVar[str] = "passkey"
    new_tokens: ClassVar[int] = 10

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        check_request(length, depth, seed, index)
        key = str(self.draws(seed, index, length).randint(1, 50_000))
        needle = f"The pass key is {key}. Remember it. {key} is the pass key."

        def build(count: int, depth: float) -> Sample:
            before = round(depth * count)
            head = "\n".join((TASK, " ".join([NOISE] * before), ""))
            prompt = "\n".join((head + needle, " ".join([NOISE] * (count - before)), QUESTION))
            return make_sample(tokenizer, prompt, f" {key}", (key,), (len(head), len(head) + len(needle)))

        return fit(self, length, build, depth=depth)

    def score(self, generated: str, sample: Sample) -> float:
        return float(int(first_number(generated) or 0) == int(sample.references[0]))
