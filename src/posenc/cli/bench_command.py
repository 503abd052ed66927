# SPDX-License-Identifier: Apache-2.0
"""posenc bench."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from posenc.cli.command import Command, record
from posenc.cli.common import run_study
from posenc_cli.answers import FAILED
from posenc_cli.arguments import How


@dataclass(kw_only=True)
class Bench(Command):
    """Measure speed and memory against the packages installed here."""

    examples: ClassVar = ("posenc bench --quick", "posenc bench alibi --n 512 --mode forward")
    asks: ClassVar = True

    cases: Annotated[
        tuple[str, ...], "what to measure (default: all but frontier)", How("CASE", positional=True, names="case")
    ] = ()
    lengths: Annotated[tuple[int, ...], "tokens (default: the preset's, by case and mode)", How("N", flag="n")] = ()
    modes: Annotated[
        tuple[Literal["forward", "train", "decode"], ...],
        "what is timed (default: the preset's)",
        How("MODE", flag="mode"),
    ] = ()
    dtypes: Annotated[
        tuple[Literal["float32", "bfloat16"], ...], "of the tensors (default: the preset's)", How("DTYPE", flag="dtype")
    ] = ()
    quick: Annotated[bool, "short sequences and few rounds: a first look"] = False
    device: Annotated[str | None, "cpu or cuda (default: cuda where there is one)"] = None
    wall: Annotated[bool, "wall time, as with several threads; otherwise processor time"] = False
    memory: Annotated[bool, "measure peak memory too"] = True
    out: Annotated[str, "folder of results.json, table.md and report.html", How("DIR")] = "posenc-bench"

    @classmethod
    def groups(cls) -> dict[str, type]:
        from posenc.lab.bench.measure import BenchSettings, Effort

        return {"how it is measured": BenchSettings, "effort (default: the preset's)": Effort}

    @classmethod
    def epilog(cls) -> str:
        from posenc.lab.bench.cases import CASES

        width = max(map(len, CASES))
        return (
            "cases:\n" + "\n".join(f"  {name:{width}}  {case.summary}" for name, case in CASES.items()) + "\n\n"
            "A family stands for its cases: attention, rotary, call, tables; frontier, the encodings of 2024 to 2026, is measured "
            "only where it is named. One thread and processor time by default, which other programs hardly affect. A benchmark "
            "that was stopped continues when the same command is run again. Exit code 1: stopped, or a candidate without a "
            "package failed or differs from the formula."
        )

    def run(self) -> int:
        import torch

        from posenc.lab.bench import study
        from posenc.lab.bench.measure import BenchSettings, Effort
        from posenc.lab.bench.study import QUICK, QUICK_EFFORT, STANDARD, plan
        from posenc.lab.machine import check_present
        from posenc.lab.study import run
        from posenc.report.bench import files, show
        from posenc.report.terminal import Display

        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        check_present(device)
        given: dict[str, Any] = dict(self.given)
        changed = {name: given.pop(name) for name in ("rounds", "patience") if name in given}
        effort = replace(QUICK_EFFORT if self.quick else Effort(), **changed)
        clock = "cuda" if device != "cpu" else "wall" if self.wall or given.get("threads", 1) > 1 else "cpu"
        settings = BenchSettings(device=device, clock=clock, effort=effort, **given)
        preset = QUICK if self.quick else STANDARD
        trials = plan(self.cases, self.lengths, self.modes, self.dtypes, self.memory, preset)
        resolved = {"device": device, "threads": settings.threads, "peers": settings.peers}
        resolved |= {"flush_denormal": settings.flush_denormal, "rounds": effort.rounds, "patience": effort.patience}
        code, results = run_study(
            self,
            Display(yes=self.yes),
            lambda progress: run(
                study.BenchStudy(trials, settings),
                self.out,
                progress=progress,
                command=self.typed,
                pages=files,
                begin=lambda: record(self.out, self, **resolved),
            ),
            show,
            "trials",
        )
        ours = [row for trial in results.get("trials", ()) for row in trial["rows"] if row["package"] is None]
        return FAILED if any(row["status"] in ("failed", "differs") for row in ours) else code
