# SPDX-License-Identifier: Apache-2.0
"""Comparisons of images: the class of an image, tested at other resolutions than that of training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.blocks import Host
from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.lab.config import Preset, Run
from posenc.lab.results import Cell, Row
from posenc.lab.task import Arm, Scores, Task
from posenc.lab.vision import results, wording
from posenc.lab.vision.config import PRESETS, ImageSettings
from posenc.lab.vision.evaluate import arms, evaluate
from posenc.lab.vision.pictures import ImageBatch, ImageCorpus, Images
from posenc.lab.vision.sources import DATA_IMAGES, load


class VisionTask(Task[ImageSettings, ImageCorpus]):
    """A vision Transformer names the class of an image; under a size it reads images of so many pixels a side."""

    name = "vision"
    settings = ImageSettings
    presets: ClassVar[Mapping[str, Preset]] = PRESETS
    data = "places"
    reading: ClassVar[dict[str, Any]] = {"image_column": None, "label_column": None, "data_images": DATA_IMAGES}

    def load(self, source: str, settings: ImageSettings, **reading: Any) -> tuple[ImageCorpus, ImageSettings]:
        pictures = load(source, **self.reading | reading)
        corpus = ImageCorpus.of(pictures, settings)
        return corpus, replace(settings, channels=corpus.channels, num_classes=len(corpus.classes))

    def check(self, corpus: ImageCorpus, settings: ImageSettings) -> None:
        s = settings
        if (tuple(corpus.train.sizes), tuple(corpus.test.sizes)) != ((s.image_size,), s.test_sizes):
            raise InputError(
                f"settings with test_sizes={s.test_sizes}: the images were loaded for others; load them for these"
            )
        if (corpus.channels, len(corpus.classes)) != (s.channels, s.num_classes):
            raise InputError(
                f"settings with channels={s.channels}, num_classes={s.num_classes}: the images have {corpus.channels} and "
                f"{len(corpus.classes)}; take the settings that loading them gives"
            )
        if len(corpus.test) < s.images:
            raise InputError(
                f"--images {s.images}: of --data {corpus.name} {corpus.held_out} images are held out; give fewer, or more data"
            )

    def example(self, settings: ImageSettings, condition: int) -> Tensor:
        return torch.zeros(1, settings.channels, condition, condition)

    def draw(self, part: Images, settings: ImageSettings, generator: torch.Generator) -> ImageBatch:
        which = torch.randint(len(part), (settings.batch_size,), generator=generator)
        return part.batch(settings.image_size, which)

    def arms(self, name: str, encoding: Encoding, settings: ImageSettings) -> list[Arm]:
        return arms(name, encoding, settings)

    def evaluate(
        self,
        model: Host,
        arm: Arm,
        part: Images,
        settings: ImageSettings,
        on_batch: Callable[[int], None] = lambda tokens: None,
    ) -> Scores:
        return evaluate(model, arm, part, settings, on_batch)

    def ranked(self, cells: Mapping[Run, Cell], settings: ImageSettings) -> list[Row]:
        return results.ranked(cells, settings)

    def numbers(self, rows: Sequence[Row], corpus: ImageCorpus, settings: ImageSettings) -> dict[str, Any]:
        return results.numbers(rows, corpus.chance, settings)

    def answer(self, rows: Sequence[Row], corpus: ImageCorpus, settings: ImageSettings) -> list[str]:
        return wording.answer(rows, corpus, settings)

    def limits(self, rows: Sequence[Row], corpus: ImageCorpus, settings: ImageSettings) -> list[str]:
        return wording.limits(rows, corpus, settings)
