# SPDX-License-Identifier: Apache-2.0
"""posenc predict."""

import sys
import time
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from posenc.cli.command import Command
from posenc.cli.common import check_limits, target, write_page
from posenc_cli.arguments import How

FILE = "posenc-predict.html"


@dataclass(kw_only=True)
class Predict(Command):
    """Train small models and write a page in which they predict, past their training length.

    A page for the browser. It takes seconds for each encoding, on one core."""

    asks: ClassVar = True
    examples: ClassVar = ("posenc predict --open", "posenc predict rope alibi t5 --data book.txt")

    encodings: Annotated[
        tuple[Literal["rope", "alibi", "none", "sinusoidal", "t5"], ...],
        "models to train",
        How("ENCODING", positional=True),
    ] = ("rope", "alibi", "none", "sinusoidal")
    data: Annotated[str, "the text to learn: pydoc (Python's reference), text files, a folder, or hf:NAME[:CONFIG]"] = (
        "pydoc"
    )
    length: Annotated[int, "training length in bytes"] = 128
    steps: Annotated[int, "training steps"] = 120
    seed: Annotated[int, "seed of the training"] = 0
    lang: Annotated[Literal["en", "zh"], "language of the page: English or Chinese"] = "en"
    out: Annotated[str, "the file to write", How("FILE.html")] = FILE
    open: Annotated[bool, "show it in the browser"] = False

    def run(self) -> int:
        from posenc.lab.text import Settings
        from posenc.lab.transformer import Transformer
        from posenc.report.predict import MOST_BYTES, page, trained
        from posenc.report.terminal import Display

        check_limits(self, length=(8, MOST_BYTES // 2), steps=(1, 10**6), seed=(0, 2**31))
        where, begun = target(self.out, FILE), time.perf_counter()

        def report(name: str, model: Transformer, losses: list[float]) -> None:
            loss = sum(losses[-10:]) / len(losses[-10:])
            seconds = time.perf_counter() - begun
            print(f"posenc predict: {name}: {loss:.2f} nats per byte after {seconds:.0f} s", file=sys.stderr)

        settings = Settings(length=self.length, steps=self.steps, targets=min(64, self.length), factors=(1, 2))
        steps = self.steps * len(set(self.encodings))
        with Display(yes=self.yes) as shown:
            count = shown.counter("training")
            models, texts = trained(
                self.encodings, self.data, settings, self.seed, report, lambda step: count(step, steps)
            )
        return write_page(self, where, page(models, texts, self.length, self.lang), encodings=list(models))
