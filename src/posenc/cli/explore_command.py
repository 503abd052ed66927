# SPDX-License-Identifier: Apache-2.0
"""posenc explore."""

import sys
import time
from dataclasses import asdict, dataclass, fields, make_dataclass
from types import SimpleNamespace
from typing import Annotated, ClassVar, Literal

from posenc.cli.command import Command
from posenc.cli.common import check_limits, target, write_page
from posenc.errors import InputError
from posenc_cli.arguments import How

USUAL = {"": "in order", "False": "off"}
"""How the help writes a default."""
SHARED = ("length", "lang")
"""Settings of both pages; for --predict the length is that of the training, in bytes."""


@dataclass
class Prediction:
    """How --predict trains."""

    data: Annotated[str, "the text to learn: pydoc (Python's reference), text files, a folder, or hf:NAME[:CONFIG]"] = (
        "pydoc"
    )
    steps: Annotated[int, "training steps (default: 120)"] = 120
    seed: Annotated[int, "seed of the training (default: 0)"] = 0


@dataclass(kw_only=True)
class Explore(Command):
    """Write the interactive page: encodings and extensions, computed in the browser.

    With --predict, the page in which small models that are trained now predict past their training length."""

    examples: ClassVar = (
        "posenc explore --open",
        "posenc explore --encoding rope --method yarn --factor 4",
        "posenc explore --predict rope alibi t5 --data book.txt",
    )

    predict: Annotated[
        tuple[Literal["rope", "alibi", "none", "sinusoidal", "t5"], ...],
        "train a model with each of these, seconds on one core, and write the page in which they predict",
        How("ENCODING"),
    ] = ()
    out: Annotated[
        str | None, "the file to write (default: posenc-explorer.html, or posenc-predict.html)", How("FILE.html")
    ] = None
    open: Annotated[bool, "show it in the browser"] = False

    def check_out(self) -> None:
        """A page is one file."""

    @classmethod
    def groups(cls) -> dict[str, type]:
        from posenc.report.explorer import fields

        kinds = {"integer": int, "number": float, "boolean": bool}
        hints = (
            (
                name,
                Annotated[
                    kinds.get(field["kind"], str),
                    f"{field['meaning']} (default: {USUAL.get(str(field['default']), field['default'])})",
                ],
            )
            for name, field in fields().items()
        )
        return {"what the page shows first": make_dataclass("State", hints), "with --predict": Prediction}

    @classmethod
    def epilog(cls) -> str:
        return (
            "The file works offline, and everything can be changed in it. Encodings and methods take options after colons, "
            "as in --method yarn:beta_fast=16. With --predict, --length is the training length in bytes, and --lang the language."
        )

    def run(self) -> int:
        of_training = {field.name for field in fields(Prediction)}
        for name in self.given:
            if self.predict and name not in of_training | {*SHARED}:
                raise InputError("is for the other page, leave it out beside --predict", argument=name)
            if not self.predict and name in of_training:
                raise InputError("is for --predict, leave it out", argument=name)
        from posenc.report.explorer import page

        file = "posenc-predict.html" if self.predict else "posenc-explorer.html"
        where = target(file if self.out is None else self.out, file)
        if self.predict:
            return write_page(self, where, self._predicting(), encodings=list(dict.fromkeys(self.predict)))
        return write_page(self, where, page(self.given), state=dict(self.given))

    def _predicting(self) -> str:
        """The page of the trained models."""
        from posenc.lab.text import Settings
        from posenc.lab.transformer import Transformer
        from posenc.report.predict import LANGUAGES, MOST_BYTES, page, trained
        from posenc.report.terminal import Display

        begun = time.perf_counter()
        given = {"length": 128, "lang": LANGUAGES[0], **asdict(Prediction()), **self.given}
        limits = {"length": (8, MOST_BYTES // 2), "steps": (1, 10**6), "seed": (0, 2**31)}
        check_limits(SimpleNamespace(**given), **limits)
        if given["lang"] not in LANGUAGES:
            raise InputError(f"must be {' or '.join(LANGUAGES)}", lang=given["lang"])

        def report(name: str, model: Transformer, losses: list[float]) -> None:
            loss = sum(losses[-10:]) / len(losses[-10:])
            seconds = time.perf_counter() - begun
            print(f"posenc explore: {name}: {loss:.2f} nats per byte after {seconds:.0f} s", file=sys.stderr)

        length, steps = given["length"], given["steps"]
        settings = Settings(length=length, steps=steps, targets=min(64, length), factors=(1, 2))
        most = steps * len(set(self.predict))
        with Display() as shown:
            count = shown.counter("training")
            models, texts = trained(
                self.predict, given["data"], settings, given["seed"], report, lambda step: count(step, most)
            )
        return page(models, texts, length, given["lang"])
