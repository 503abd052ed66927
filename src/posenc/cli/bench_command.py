# SPDX-License-Identifier: Apache-2.0
"""posenc bench."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from posenc.cli.command import record
from posenc.cli.common import StudyCommand, run_study
from posenc_cli.arguments import How


@dataclass(kw_only=True)
class Bench(StudyCommand):
    """Measure what encodings cost in attention on this machine, against attention without position."""

    examples: ClassVar = ("posenc bench", "posenc bench alibi fade.py:Fade --n 512 --mode forward")

    encodings: Annotated[
        tuple[str, ...], "what to measure", How("NAME", positional=True, code=True, names="encoding")
    ] = ("rope", "alibi", "t5")
    lengths: Annotated[tuple[int, ...], "tokens", How("N", flag="n")] = (128, 512, 2048)
    modes: Annotated[
        tuple[Literal["forward", "train"], ...],
        "one pass without gradients, or forward and backward",
        How("MODE", flag="mode"),
    ] = ("forward", "train")
    out: str = "posenc-bench"

    @classmethod
    def groups(cls) -> dict[str, type]:
        from posenc.lab.bench import BenchSettings

        return {"how it is measured": BenchSettings}

    @classmethod
    def epilog(cls) -> str:
        return (
            "Each encoding is measured in posenc, and as a dense bias that is passed to SDPA, where it is a rotation or a bias. "
            "One thread and processor time by default, which other programs hardly affect. A benchmark that was stopped "
            "continues when the same command is run again. Other packages, and memory: python benchmarks/bench in the repository."
        )

    def run(self) -> int:
        from posenc.lab.bench import BenchSettings, BenchStudy
        from posenc.lab.study import run
        from posenc.report.bench import files, show
        from posenc.report.terminal import Display

        study = BenchStudy(self.encodings, self.lengths, self.modes, BenchSettings(**self.given))

        def work(progress: Display) -> dict[str, object]:
            begin = lambda: record(self.out, self)  # noqa: E731
            return run(study, self.out, progress=progress, command=self.typed, pages=files, begin=begin)

        return run_study(self, Display(), work, show, "trials")
