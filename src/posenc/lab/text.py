# SPDX-License-Identifier: Apache-2.0
"""Comparisons of text: the next token, tested past the training length."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.blocks import Host
from posenc.encoding import Encoding
from posenc.lab import results, wording
from posenc.lab.config import PRESETS, Preset, Run, Settings
from posenc.lab.data import DATA_TOKENS, Batch, Corpus, Text, check_long_enough, draw, load
from posenc.lab.evaluate import arms, evaluate
from posenc.lab.results import Cell, Row
from posenc.lab.task import Arm, Scores, Task


class TextTask(Task[Settings, Corpus]):
    """A decoder predicts the next token; under a factor it reads texts that are so many times as long as in training."""

    name = "text"
    settings = Settings
    presets: ClassVar[Mapping[str, Preset]] = PRESETS
    data = "pydoc"
    reading: ClassVar[dict[str, Any]] = {"text_column": None, "data_tokens": DATA_TOKENS}

    def load(self, source: str, settings: Settings, **reading: Any) -> tuple[Corpus, Settings]:
        said = self.reading | reading
        corpus = load(
            source, settings.tokenizer, packed=settings.packed, text_column=said["text_column"],
            max_tokens=said["data_tokens"],
        )  # fmt: skip
        return corpus, replace(settings, vocab_size=corpus.vocab_size)

    def check(self, corpus: Corpus, settings: Settings) -> None:
        check_long_enough(corpus, settings)

    def example(self, settings: Settings, condition: int) -> Tensor:
        return torch.zeros(1, settings.tokens_at(condition), dtype=torch.long)

    def draw(self, part: Text | Tensor, settings: Settings, generator: torch.Generator) -> Batch:
        return draw(part, settings, generator)

    def arms(self, name: str, encoding: Encoding, settings: Settings) -> list[Arm]:
        return arms(name, encoding, settings)

    def evaluate(
        self,
        model: Host,
        arm: Arm,
        part: Text | Tensor,
        settings: Settings,
        on_batch: Callable[[int], None] = lambda tokens: None,
    ) -> Scores:
        return evaluate(model, arm, part, settings, on_batch)

    def ranked(self, cells: Mapping[Run, Cell], settings: Settings) -> list[Row]:
        return results.ranked(cells, settings)

    def numbers(self, rows: Sequence[Row], corpus: Corpus, settings: Settings) -> dict[str, Any]:
        return results.numbers(rows, settings, corpus.bytes_per_token)

    def answer(self, rows: Sequence[Row], corpus: Corpus, settings: Settings) -> list[str]:
        return wording.answer(rows, settings)

    def limits(self, rows: Sequence[Row], corpus: Corpus, settings: Settings) -> list[str]:
        return wording.limits(rows, settings) + wording.text_limits(corpus, settings)
