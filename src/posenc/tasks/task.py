"""What a task is: texts of a given length in tokens, with something in them that is asked for."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.texts import write


@dataclass(frozen=True, eq=False)
class Sample:
    """One text, and which of its tokens are scored.

    ids: int64 (N,), the prompt and what follows it. prompt_tokens: how many of them are the prompt; the others are scored by
    their likelihood. prompt, answer: the same two as text (empty for tasks on running text). references: what a generated
    continuation is held against; empty where nothing is generated. needle: the prompt's tokens [first, end) that hold
    what is asked for, where that is one place. window, stride: for texts that are read in windows, see
    `posenc.pretrained.loss_by_position`.
    """

    ids: Tensor
    prompt_tokens: int
    prompt: str = ""
    answer: str = ""
    references: tuple[str, ...] = ()
    needle: tuple[int, int] | None = None
    window: int | None = None
    stride: int | None = None


@dataclass(frozen=True)
class Task(ABC):
    """A way to make texts and to score what a model makes of them. Subclasses are frozen dataclasses whose fields are the
    task's options, with defaults; their docstring says what they do in its first paragraph and names the source."""

    name: ClassVar[str]
    """As in `TASKS`."""
    takes_depth: ClassVar[bool] = True
    """Whether the place of what is asked for can be chosen."""
    new_tokens: ClassVar[int] = 0
    """Tokens that a model may generate; 0: the task is scored by likelihood alone."""

    @abstractmethod
    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        """One text. Equal arguments give equal texts, and what the text is made of does not depend on `depth`, so
        that depths, like methods, are compared on the same material.

        Args:
            tokenizer: of a Hugging Face model.
            length: tokens that the prompt and what is to follow it may take together, at most.
            depth: where what is asked for stands, from 0 (the start of the context) to 1 (its end).
            seed: of everything that is drawn.
            index: which of the seed's texts.

        Raises:
            InputError: a length in which the task does not fit, or a depth out of range.
        """

    def score(self, generated: str, sample: Sample) -> float:
        """How good a generated answer is, from 0 to 1."""
        raise NotImplementedError(f"{self.name} generates nothing")

    def loss(self, losses: Tensor, sample: Sample) -> float:
        """One number for the losses (scored tokens,) of a text, in nats: their mean."""
        return float(losses.mean())

    @property
    def text(self) -> str:
        """The task as a user writes it, with the options that are not the default."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        default = {f.name: f.default for f in fields(self) if f.default is not MISSING}
        return write(self.name, {key: value for key, value in given.items() if default.get(key, MISSING) != value})

    def draws(self, seed: int, index: int) -> random.Random:
        """The source of everything random in one text; the same on every machine."""
        return random.Random(f"{self.name} {seed} {index}")


def check_depth(depth: float) -> None:
    """Raises:
    InputError: not between 0 and 1."""
    if not 0 <= depth <= 1:
        raise InputError(f"depth={depth}: must lie between 0 (the start of the context) and 1 (its end)")


def encode(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a prompt, with what the tokenizer puts before every text."""
    ids: list[int] = tokenizer(text, verbose=False).input_ids
    return ids


def asked(
    tokenizer: Any, prompt: str, answer: str, references: Sequence[str], needle: tuple[int, int] | None = None
) -> Sample:
    """A prompt and its answer as tokens. answer: as the prompt goes on, with its leading space if it has one. needle: the
    characters [first, end) of the prompt that hold what is asked for."""
    ids = encode(tokenizer, prompt)
    tail = tokenizer(answer, add_special_tokens=False, verbose=False).input_ids
    where = None
    if needle is not None:
        first, end = (len(encode(tokenizer, prompt[:at])) for at in needle)
        where = (min(first, len(ids) - 1), min(max(end, first + 1), len(ids)))
    return Sample(torch.tensor(ids + tail), len(ids), prompt, answer, tuple(references), where)


def fit(task: Task, length: int, build: Callable[[int], Sample], least: int = 0) -> Sample:
    """The longest of the texts build(least), build(least + 1), ... that, with room for what is generated, fits.

    Raises:
        InputError: not even the shortest does.
    """

    def taken(sample: Sample) -> int:
        return sample.prompt_tokens + max(len(sample.ids) - sample.prompt_tokens, task.new_tokens)

    found = build(least)
    if taken(found) > length:
        raise InputError(f"length={length}: {task.text} needs at least {taken(found)} tokens with this tokenizer")
    low, step = least, 1
    while taken(longer := build(low + step)) <= length:
        found, low, step = longer, low + step, 2 * step
        if step > 2 * length + 2:  # more does not make it longer
            return found
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if taken(candidate := build(middle)) <= length:
            found, low = candidate, middle
        else:
            high = middle
    return found
