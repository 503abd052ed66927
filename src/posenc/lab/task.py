# SPDX-License-Identifier: Apache-2.0
"""What differs between comparisons of text and of images, in one place: settings, data, the test, and the numbers and words
made of it. Everything else in the lab knows a task by this alone."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from posenc.blocks import Host
from posenc.encoding import Encoding
from posenc.lab.config import Preset, Recipe, Run
from posenc.positions import Positions

if TYPE_CHECKING:
    from posenc.lab.results import Cell, Row


class Batch(Protocol):
    """Examples of one step; rows depend on nothing but themselves, so processes may share them out."""

    @property
    def inputs(self) -> Tensor:
        """(batch, ...) what the model is given."""

    @property
    def targets(self) -> Tensor:
        """(batch, ...) the class that each row of the model's logits is scored by."""

    @property
    def scored(self) -> int:
        """How many targets there are."""

    @property
    def positions(self) -> Positions | None:
        """Where the inputs are; None: the model's own idea of it."""

    def rows(self, which: slice | Tensor) -> Self:
        """Some of the examples."""

    def to(self, device: torch.device) -> Self: ...


class Corpus(Protocol):
    """Data to train on and some that is held out. digest: equal for equal data."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def train(self) -> Any: ...
    @property
    def test(self) -> Any: ...

    def facts(self) -> dict[str, object]:
        """What results say of the data."""


@dataclass(frozen=True)
class Arm:
    """One way to use a trained model: its name, and the encoding and the positions it takes under a condition."""

    name: str
    at: Callable[[int], Encoding]
    trained: bool = True
    positions: Callable[[int], Positions | None] = lambda condition: None


@dataclass(frozen=True, eq=False)
class Scores:
    """What one arm scored. paired: condition -> (examples,) loss in nats. by_position: (examples, bins) likewise, where the
    task has bins. also: what else is measured -> condition -> (examples,)."""

    paired: dict[int, Tensor]
    by_position: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    also: dict[str, dict[int, Tensor]] = field(default_factory=dict)


S = TypeVar("S", bound=Recipe)
C = TypeVar("C", bound=Corpus)


class Task(ABC, Generic[S, C]):
    """A kind of comparison.

    name: of --task. settings: what one may say of it. presets: named sizes. data: what it reads unless told otherwise.
    reading: how, with what counts unless told otherwise.
    """

    name: ClassVar[str]
    settings: type[S]
    presets: ClassVar[Mapping[str, Preset]]
    data: ClassVar[str]
    reading: ClassVar[Mapping[str, Any]]

    @abstractmethod
    def load(self, source: str, settings: S, **reading: Any) -> tuple[C, S]:
        """The data behind a name, and the settings with what the data decide. reading: what is said in place of `self.reading`.

        Raises:
            InputError: there is no such data, or it cannot be read.
        """

    @abstractmethod
    def check(self, corpus: C, settings: S) -> None:
        """Refuse data that do not serve the settings.

        Raises:
            InputError: with what is missing.
        """

    @abstractmethod
    def example(self, settings: S, condition: int) -> Tensor:
        """An input of one example, of the shape that it has under a condition."""

    @abstractmethod
    def draw(self, part: Any, settings: S, generator: torch.Generator) -> Batch:
        """The examples of one training step, from a part of a corpus: a function of its arguments alone."""

    @abstractmethod
    def arms(self, name: str, encoding: Encoding, settings: S) -> list[Arm]:
        """The model as trained, and further ways to use the same weights."""

    @abstractmethod
    def evaluate(
        self, model: Host, arm: Arm, part: Any, settings: S, on_batch: Callable[[int], None] = lambda tokens: None
    ) -> Scores:
        """Test one arm on the held-out part; on_batch is told how many tokens have been read."""

    @abstractmethod
    def ranked(self, cells: Mapping[Run, "Cell"], settings: S) -> "list[Row]":
        """The arms of finished runs, the best first."""

    @abstractmethod
    def numbers(self, rows: "Sequence[Row]", corpus: C, settings: S) -> dict[str, Any]:
        """The measured part of results.json, for ranked arms."""

    @abstractmethod
    def answer(self, rows: "Sequence[Row]", corpus: C, settings: S) -> list[str]:
        """What a reader wants to know first, for ranked arms."""

    @abstractmethod
    def limits(self, rows: "Sequence[Row]", corpus: C, settings: S) -> list[str]:
        """What the comparison does not show, as far as it can be computed from what was run."""
