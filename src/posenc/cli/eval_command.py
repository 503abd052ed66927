# SPDX-License-Identifier: Apache-2.0
"""posenc eval."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from posenc.cli.command import record
from posenc.cli.common import StudyCommand, WithModel, refuse_launcher, run_study
from posenc.errors import InputError


@dataclass(kw_only=True)
class Eval(WithModel, StudyCommand):
    """Measure retrieval (passkey, needle in a haystack ...) and perplexity of a pretrained model on long contexts."""

    examples: ClassVar = (
        "posenc eval demo --preset quick",
        "posenc eval my-llm --tasks passkey --methods yarn --times 2",
        "posenc eval demo --tasks needle --lengths 1024 4096",
    )

    preset: Annotated[
        Literal["quick", "standard", "longer"] | None, "what is measured, unless flags change it, see below"
    ] = "standard"
    out: str = "posenc-eval"

    @classmethod
    def groups(cls) -> dict[str, type]:
        from posenc.lab.evals.config import EvaluationSettings

        return {"what is measured (default: the preset's)": EvaluationSettings}

    @classmethod
    def epilog(cls) -> str:
        from posenc.lab.evals.config import PRESETS, texts_a_cell

        width = max(map(len, PRESETS))
        presets = (
            f"  {name:{width}}  {' '.join(s.tasks)}\n"
            + " " * (width + 4)
            + f"under {' '.join(s.methods)}, at {_lengths(s)}, {texts_a_cell(s.samples, s.seeds)}, "
            f"{'answers generated too' if s.generate else 'nothing generated'}"
            for name, s in PRESETS.items()
        )
        return (
            "presets:\n" + "\n".join(presets) + "\n\n"
            "posenc list --kind tasks shows the tasks, which take options after colons (key_value:keys=digits), and posenc list --kind "
            "methods the methods. The "
            "unmodified model comes first (none), and past its context length also the unmodified model on "
            "truncated input (truncation). An evaluation that was stopped continues when the same command is run again."
        )

    def config(self) -> dict[str, Any]:
        from posenc.lab.evals.config import settings_of

        settings = asdict(settings_of(self.preset, **self.given))
        if settings["times"]:
            del settings["lengths"]
        return super().config() | settings | {"preset": None}

    def run(self) -> int:
        from posenc.lab.evals.config import material, settings_of
        from posenc.lab.evals.study import evaluate
        from posenc.report.evaluate import files, show
        from posenc.report.terminal import Display

        refuse_launcher("an evaluation")
        settings = settings_of(self.preset, **self.given)
        tasks = settings.made()  # a mistake shows before a model is loaded
        for name, task in tasks.items():
            try:
                material(task)
            except InputError as error:
                given = settings.text is not None and error.value == settings.text
                raise (error.about(text=settings.text) if given else error.about(tasks=name)) from None
        model, tokenizer = self.load()
        resolved = {"device": str(next(model.parameters()).device), "dtype": str(model.dtype).removeprefix("torch.")}
        return run_study(
            self,
            Display(),
            lambda progress: evaluate(
                model,
                tokenizer,
                preset=self.preset,
                directory=self.out,
                name=self.model,
                progress=progress,
                command=self.typed,
                pages=files,
                begin=lambda: record(self.out, self, **resolved),
                **self.given,
            ),
            show,
            "cells",
        )


def _lengths(settings: Any) -> str:
    """As in "512 1024 tokens", or "2 4 8 times the context length"."""
    if settings.times:
        return f"{' '.join(f'{times:g}' for times in settings.times)} times the context length"
    return f"{' '.join(map(str, settings.lengths))} tokens"
