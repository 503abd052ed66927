# SPDX-License-Identifier: Apache-2.0
"""Many-shot in-context learning: a rule that is in the examples alone."""

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from posenc.errors import InputError
from posenc.tasks import words
from posenc.tasks.task import Sample, Task, first_number, fit, make_sample

TEMPLATE = "The {} is near the {}."


@dataclass(frozen=True, kw_only=True)
class ManyShot(Task):
    """As many labelled sentences as fit, and another one to label: nouns belong to classes, whose numbers are arbitrary.

    After the in-context learning of HELMET (Yen et al. 2024, arXiv 2410.02694, section 2.2: shots up to the length, balanced
    classes, labels replaced by numbers), with sentences that are made up, so that nothing is known before. Each class has
    its nouns; a sentence has two of one class. The question pairs two nouns that the shots show apart from each other.
    Scored: whether the first number of the answer is the label.

    classes: how many. nouns: of each class.
    """

    name: ClassVar[str] = "many_shot"
    takes_depth: ClassVar[bool] = False
    new_tokens: ClassVar[int] = 5

    classes: int = 4
    nouns: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= 50:
            raise InputError("give 2 to 50", classes=self.classes)
        if not 3 <= self.nouns <= len(words.NOUNS) // self.classes:
            raise InputError(
                f"give 3 to {len(words.NOUNS) // self.classes}, for {self.classes} classes", nouns=self.nouns
            )

    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        draws = self.draws(seed, index, length)
        drawn = words.names(draws, self.classes * self.nouns)
        members = [drawn[at :: self.classes] for at in range(self.classes)]
        labels = draws.sample(range(self.classes), self.classes)
        asked, order = draws.randrange(self.classes), draws.getrandbits(64)

        def build(count: int, depth: float) -> Sample:
            shots, turn, round_of = [], Random(order), list[int]()
            for at in range(count):
                if at % self.classes == 0:  # each class once, in another order
                    round_of = turn.sample(range(self.classes), self.classes)
                of = round_of[at % self.classes]
                first, second, third, *_ = members[of]
                if at < 2 * self.classes:  # both nouns of the question are shown
                    pair = [first if at < self.classes else second, third]
                else:
                    pair = turn.choice(
                        [[a, b] for a in members[of] for b in members[of] if a < b and {a, b} != {first, second}]
                    )
                turn.shuffle(pair)
                shots.append(f"{TEMPLATE.format(*pair)}\nlabel: {labels[of]}")
            question = f"{TEMPLATE.format(*members[asked][:2])}\nlabel:"
            return make_sample(tokenizer, "\n\n".join([*shots, question]), f" {labels[asked]}", (str(labels[asked]),))

        return fit(self, length, build, 2 * self.classes, None, depth)

    def score(self, generated: str, sample: Sample) -> float:
        return float(first_number(generated) == sample.references[0])
