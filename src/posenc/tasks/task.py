# SPDX-License-Identifier: Apache-2.0
"""The interface of a task: prompts of a given length in tokens, a question about each, and the score of an answer."""

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.errors import LARGEST_SEQUENCE, InputError, check_fields, check_integers, check_numbers
from posenc.spec import Spec


@dataclass(frozen=True, eq=False)
class Sample:
    """One prompt or document, and which of its tokens are scored."""

    ids: Tensor
    """int64 (N,), the prompt and what follows it"""
    prompt_tokens: int
    """How many of them are the prompt; the others are scored by their likelihood"""
    prompt: str = ""
    """As characters; empty for tasks on running text"""
    answer: str = ""
    """Likewise"""
    references: tuple[str, ...] = ()
    """What a generated continuation is compared with; empty where nothing is generated"""
    needle: tuple[int, int] | None = None
    """The prompt's tokens [first, end) with the answer, where that is one span"""
    window: int | None = None
    """For inputs that are evaluated in windows, see `posenc.pretrained.loss_by_position`"""
    stride: int | None = None
    """Likewise"""


@dataclass(frozen=True)
class Task(ABC):
    """A way to make prompts and to score a model's answers. Subclasses are frozen dataclasses whose fields are the
    task's options, with defaults. Their docstring's first paragraph describes the question, its second the source: both are
    shown to users. Options come after these."""

    name: ClassVar[str]
    """As in `TASKS`."""
    takes_depth: ClassVar[bool] = True
    """Whether the depth of the answer in the text can be chosen."""
    new_tokens: ClassVar[int] = 0
    """Tokens that a model may generate; 0: the task is scored by likelihood alone."""

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def sample(self, tokenizer: Any, length: int, *, depth: float = 0.5, seed: int = 0, index: int = 0) -> Sample:
        """Make one prompt. Equal arguments give equal prompts, and what the prompt is made of does not depend on `depth`, so
        that depths, like methods, are compared on the same material. Each length has its own.

        Args:
            tokenizer: of a Hugging Face model.
            length: tokens that the prompt and what is to follow it may take together, at most.
            depth: of the answer, from 0 (the start of the context) to 1 (its end).
            seed: of everything that is drawn.
            index: which of the seed's prompts.

        Raises:
            InputError: a length in which the task does not fit, or a depth out of range.
        """

    def apart(self, tokenizer: Any, length: int) -> int | None:
        """How many prompts of a length score nothing in common; None: as many as are asked for.

        Raises:
            InputError: a text that cannot be read.
        """
        return None

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
        return str(Spec.of(self.name, {k: value for k, value in given.items() if default.get(k, MISSING) != value}))

    def draws(self, seed: int, index: int, length: int) -> random.Random:
        """The source of everything random in one text; the same on every machine, and another for every length, so that a
        curve over lengths is not the luck of a few prompts."""
        return random.Random(f"{self.name} {seed} {index} {length}")


def check_request(length: int, depth: float, seed: int, index: int) -> None:
    """Refuse numbers of `Task.sample` that are none, or out of range."""
    check_integers(1, LARGEST_SEQUENCE, length=length)
    check_integers(seed=seed, index=index)
    check_numbers(0, 1, depth=depth)


def first_number(text: str) -> str:
    """The first digits of a text; "" where there are none."""
    number = re.search(r"\d+", text)
    return number.group() if number else ""


def encode(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a prompt, with what the tokenizer puts before every text."""
    ids: list[int] = tokenizer(text, verbose=False).input_ids
    return ids


def make_sample(
    tokenizer: Any, prompt: str, answer: str, references: Sequence[str], needle: tuple[int, int] | None = None
) -> Sample:
    """A prompt and its answer as tokens. answer: as the prompt goes on, with its leading space if it has one. needle: the
    characters [first, end) of the prompt with the answer.

    The two are encoded as one text, and the answer begins where the tokens of the prompt alone end: a tokenizer that puts a
    space before every text would otherwise put it between them. The end that one puts after every text is no part of
    the answer, and left out.
    """

    def encoded(text: str) -> list[int]:
        ids = encode(tokenizer, text)
        return ids[:-1] if ids[-1:] == [tokenizer.eos_token_id] else ids

    def common_prefix(start: list[int]) -> tuple[int, bool]:
        """How many tokens the text begins with as `start` does, and whether these are all of it."""
        same = next((i for i, (a, b) in enumerate(zip(start, ids, strict=False)) if a != b), len(start))
        return min(same, len(ids)), same == len(start)

    ids = encoded(prompt + answer)
    needle_tokens = None
    if needle is not None:
        first, _ = common_prefix(encoded(prompt[: needle[0]]))
        end, complete = common_prefix(encoded(prompt[: needle[1]]))
        needle_tokens = (first, end if complete else end + 1)
    return Sample(
        torch.tensor(ids), common_prefix(encoded(prompt))[0], prompt, answer, tuple(references), needle_tokens
    )


def fit(
    task: Task,
    length: int,
    build: Callable[[int, float], Sample],
    least: int = 0,
    most: int | None = None,
    depth: float = 0.5,
    depths: Sequence[float] = (0.0, 1.0),
) -> Sample:
    """The longest of the prompts build(least, depth) ... build(most, depth) that, with room for what is generated, fits. Each
    is to be longer than the one before. Where depth changes the order of a text's parts, the count is one that fits in the
    middle and at `depths`, by default both ends, and so the same for every depth.

    Raises:
        InputError: not even the shortest fits.
    """

    def check(tokens: int, count: int) -> None:
        if tokens > length and count == least:
            raise InputError(f"{task.text} needs about {tokens} tokens with this tokenizer", length=length)

    def needed(count: int, at: float = 0.5) -> int:
        sample = build(count, at)
        return sample.prompt_tokens + max(len(sample.ids) - sample.prompt_tokens, task.new_tokens)

    low, tokens, step = least, needed(least), 8
    check(tokens, least)
    high = least + length + 1 if most is None else most + 1  # a step takes a token at least
    while high - low > 1:  # prompts grow steadily, so each guess goes by the tokens that a step took before
        count = min(low + step, high - 1)
        more = needed(count)
        rate = max((more - tokens) / (count - low), 1.0)
        if more <= length:
            low, tokens = count, more
        else:
            high = count
        step = max(1, int((length - tokens) / rate))
    while task.takes_depth and (tokens := max(needed(low, at) for at in (*depths, depth))) > length:
        check(tokens, low)
        low -= 1
    return build(low, depth)


def index_at(depth: float, count: int) -> int:
    """The index at a depth of a list of `count` items; rounded down, as in Lost in the Middle, where those at equal
    distances are 0, 4, 9, 14, 19 among 20, and 0, 34, 69, 104, 139 among 140."""
    return int(depth * (count - 1) + 1e-9)
