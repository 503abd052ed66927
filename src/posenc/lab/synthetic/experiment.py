# SPDX-License-Identifier: Apache-2.0
"""Comparisons of generated sequences: trained at lengths up to L, tested at multiples of L."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from inspect import getdoc
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.lab.data.corpus_text import IGNORED
from posenc.lab.evaluate import score
from posenc.lab.experiment import CORE, LEADERBOARD, Criterion, Experiment, Preset, Scores, Variant
from posenc.lab.records import Aggregate, level, share
from posenc.lab.transformer import TransformerBase

__all__ = ["IGNORED", "SequenceBatch", "Synthetic", "SyntheticCorpus", "answered"]

ACCURACY, EXACT = "accuracy", "exact"
"""What is measured beside the loss: the share of right answer tokens, and whether all of a sequence's are right."""
HELD_OUT_SEED = 2**32 - 1
"""Of the test sequences; those of training are drawn from the seed of the run."""


class SequenceBatch(NamedTuple):
    """Sequences of one length. inputs: (batch, tokens). targets: (batch, tokens), the class to be predicted at each token, or
    IGNORED where nothing is asked."""

    inputs: Tensor
    targets: Tensor
    positions: None = None

    @property
    def scored(self) -> int:
        """How many targets there are."""
        return int((self.targets != IGNORED).sum())

    def rows(self, which: Tensor) -> "SequenceBatch":
        """Some of the sequences."""
        return SequenceBatch(self.inputs[which], self.targets[which])

    def to(self, device: torch.device) -> "SequenceBatch":
        return SequenceBatch(self.inputs.to(device, non_blocking=True), self.targets.to(device, non_blocking=True))


def answered(question: Tensor, answer: Tensor) -> SequenceBatch:
    """Sequences that end in their answer: question (n, a), answer (n, b) -> a + b - 1 tokens each. The last token of the
    question is asked for the first of the answer, and each token of the answer for the next."""
    tokens = torch.cat((question, answer), 1)
    targets = tokens[:, 1:].clone()
    targets[:, : question.shape[1] - 1] = IGNORED
    return SequenceBatch(tokens[:, :-1], targets)


@dataclass(frozen=True, eq=False)
class SyntheticCorpus:
    """The test sequences of a task, by factor; training draws new ones at every step. about: the task's paragraphs. chance: how
    often the most common answer is right, by factor."""

    name: str
    about: tuple[str, ...]
    digest: str
    test: Mapping[int, SequenceBatch]
    chance: Mapping[int, float]
    train = None

    def facts(self) -> dict[str, object]:
        """The data, as results.json describes them."""
        first = next(iter(self.test.values()))
        example = {"inputs": first.inputs[0].tolist(), "targets": first.targets[0].tolist()}
        sequences = {str(factor): len(batch.inputs) for factor, batch in self.test.items()}
        facts: dict[str, object] = {"name": self.name, "about": self.about[0], "source": " ".join(self.about[1:])}
        return facts | {"sha256": self.digest, "sequences": sequences, "example": example}


class TaskSizes:
    """The presets of a task, from its defaults."""

    def __get__(self, settings: "Synthetic | None", task: "type[Synthetic]") -> dict[str, Preset]:
        standard = task()
        return {
            "quick": Preset(
                standard.changed(steps=max(1, standard.steps // 4)), ("none", "sinusoidal", "rope", "alibi"), 2
            ),
            "standard": Preset(standard, CORE, 4),
            "leaderboard": Preset(standard, LEADERBOARD, 4),
        }


@dataclass(frozen=True, kw_only=True)
class Synthetic(Experiment):
    """Everything that the runs of one comparison of generated sequences share. A task is a subclass, a frozen dataclass with a
    `name`, `vocabulary`, `tokens_in` and `generate`; its first paragraph is shown, its second is the source.

    Every training step draws one length between `shortest` and `length`, in steps of `stride`, and sequences of that length.
    The first of the factors is 1. The rest: see `Experiment`.
    """

    length: Annotated[int, "longest length in training"] = 16
    factors: Annotated[tuple[int, ...], "test lengths over that of training"] = (1, 2, 4, 8)
    symbols: Annotated[int, "size of the alphabet"] = 16
    steps: int = 300
    batch_size: int = 64
    dim: int = 64
    num_layers: int = 3
    num_heads: int = 4
    head_dim: int | None = None
    learning_rate: float = 0.03
    adamw_learning_rate: float = 0.01
    position_learning_rate: float = 0.03
    sequences: Annotated[int, "test sequences of each length"] = 64

    name = "synthetic"
    presets = TaskSizes()
    data = "generated"
    data_options: ClassVar[Mapping[str, Any]] = {}
    criterion = Criterion(ACCURACY, undertrained=0.2)
    examples_by = "sequences"
    LEAST = {"length": 1, **Experiment.LEAST, "symbols": 2, "sequences": 2}
    MOST = {"length": 2**20, **Experiment.MOST, "symbols": 2**20, "sequences": 10**6}

    counted: ClassVar[str] = "symbol"
    """What a length counts."""
    shortest: ClassVar[int] = 1
    stride: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < self.shortest or (self.length - self.shortest) % self.stride:
            steps = f" in steps of {self.stride}" if self.stride > 1 else ""
            raise InputError(f"the lengths of task {self.name} start at {self.shortest}{steps}", length=self.length)
        if self.symbols < (least := self.different(self.size_at(self.conditions[-1]))):
            why = f"task {self.name} has {least} different symbols in its longest test"
            raise InputError(why, "give as many, or a smaller length or factors", symbols=self.symbols)

    # ---------------------------------------------------------------- what a task defines

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Tokens 0 .. vocabulary - 1 occur in its sequences."""

    @abstractmethod
    def tokens_in(self, length: int) -> int:
        """Tokens in a sequence of a length."""

    def different(self, length: int) -> int:
        """Symbols of a sequence that must differ from each other."""
        return 0

    @abstractmethod
    def generate(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        """n sequences of a length, (n, tokens_in(length)): a function of its arguments alone."""

    def started(self, n: int, length: int, generator: torch.Generator) -> SequenceBatch:
        """The same behind a token that begins every sequence, by which a model without positions can count."""
        return self.begun(self.generate(n, length, generator))

    def begun(self, batch: SequenceBatch) -> SequenceBatch:
        """Sequences behind that token."""
        begin = torch.full((len(batch.inputs), 1), self.vocabulary)
        inputs, targets = torch.cat((begin, batch.inputs), 1), torch.cat((begin, batch.targets), 1)
        targets[:, 0] = IGNORED
        return SequenceBatch(inputs, targets)

    def held_out(self, condition: int, generator: torch.Generator) -> SequenceBatch:
        """The test sequences of a condition; those of training, of another length, unless a task says otherwise."""
        return self.started(self.sequences, self.size_at(condition), generator)

    # ---------------------------------------------------------------- conditions

    @property
    def examples(self) -> int:
        return self.sequences

    @property
    def measured(self) -> Mapping[str, Sequence[int]]:
        return {ACCURACY: self.conditions, EXACT: self.conditions}

    @property
    def unit(self) -> str:
        return self.counted

    def tokens_at(self, condition: int) -> int:
        return 1 + self.tokens_in(self.size_at(condition))

    @property
    def rows(self) -> int:
        return self.vocabulary + 1

    def make_encoding(self, name: str) -> Encoding:
        return self.create(name, max_positions=self.tokens, causal=True)

    # ---------------------------------------------------------------- data and test

    def load(self, source: str, **options: Any) -> tuple[SyntheticCorpus, "Synthetic"]:
        if source != self.data:
            raise InputError(f"the sequences of task {self.name} are generated", "leave data out", data=source)
        generator = torch.Generator().manual_seed(HELD_OUT_SEED)
        test = {condition: self.held_out(condition, generator) for condition in self.conditions}
        digest = hashlib.sha256(b"".join(part.numpy().tobytes() for batch in test.values() for part in batch[:2]))
        chance = {}
        for factor, batch in test.items():
            asked = batch.targets[batch.targets != IGNORED]
            chance[factor] = asked.bincount().max().item() / len(asked)
        about = tuple(" ".join(part.split()) for part in (getdoc(type(self)) or self.name).split("\n\n"))
        return SyntheticCorpus(self.name, about, digest.hexdigest(), test, chance), self

    def check_data(self, corpus: SyntheticCorpus) -> None:
        shapes = {condition: tuple(batch.inputs.shape) for condition, batch in corpus.test.items()}
        if shapes != {condition: (self.sequences, self.tokens_at(condition)) for condition in self.conditions}:
            why = "the sequences were generated for other settings"
            raise InputError(why, "load them for these", length=self.length)

    def draw(self, part: object, generator: torch.Generator) -> SequenceBatch:
        lengths = range(self.shortest, self.length + 1, self.stride)
        length = lengths[int(torch.randint(len(lengths), (), generator=generator))]
        return self.started(self.batch_size, length, generator)

    @torch.no_grad()
    def evaluate(
        self,
        model: TransformerBase,
        variant: Variant,
        part: Mapping[int, SequenceBatch],
        on_batch: Callable[[int], None] = lambda tokens: None,
        conditions: Sequence[int] | None = None,
    ) -> Scores:
        """Of each sequence the mean loss of its answer's tokens, the share of them that the model predicts from those before
        (the right ones), and whether it predicts all: then it also generates the answer."""
        losses, accuracy, exact = {}, {}, {}
        for condition in conditions or self.conditions:
            asked = (part[condition].targets[: self.sequences] != IGNORED).sum(1)
            of_tokens, hits = score(model, variant, condition, self, part[condition].rows, on_batch)
            losses[condition], right = of_tokens.sum(1) / asked, hits.sum(1)
            accuracy[condition], exact[condition] = right / asked, (right == asked).to(right.dtype)
        return Scores(losses, extra={ACCURACY: accuracy, EXACT: exact})

    # ---------------------------------------------------------------- results

    def chance(self, corpus: SyntheticCorpus, condition: int) -> float:
        return corpus.chance[condition]

    def point(self, variant: Aggregate, condition: int, corpus: SyntheticCorpus) -> dict[str, Any]:
        return {EXACT: asdict(share(level(variant, condition, EXACT), self.sequences))}
