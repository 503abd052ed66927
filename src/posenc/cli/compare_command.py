# SPDX-License-Identifier: Apache-2.0
"""posenc compare."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from posenc.cli.command import record, settings_in
from posenc.cli.common import StudyCommand, refuse_launcher, run_study
from posenc.errors import InputError, listed
from posenc_cli.arguments import How

if TYPE_CHECKING:
    from posenc.lab.compare import Comparison
    from posenc.lab.experiment import Dataset, Experiment, Preset


@dataclass
class Data:
    """How data are read; None: the task's default."""

    text_column: Annotated[str | None, "text: column of rows (default: text, or the only one with strings)"] = None
    data_tokens: Annotated[int | None, "text: how much is used (default: 50 million tokens)"] = None


@dataclass(kw_only=True)
class Compare(StudyCommand):
    """Train the same small Transformer with each encoding and test it past its training length."""

    examples: ClassVar = (
        "posenc compare --preset quick",
        "posenc compare --encodings rope alibi rope+alibi",
        "posenc compare --data book.txt --encodings rope fade.py:Fade",
    )

    task: Annotated[
        tuple[str, ...],
        "text: predict the next token; copy, reverse, recall, addition, sort, dyck, parity, induction, "
        "flip_flop, n_back_1 to n_back_4, selective_copy, indirect_indexing or a5: answer generated questions; "
        "several: one table of all (default: text, or the preset's)",
        How("NAME", names="training task"),
    ] = ()
    encodings: Annotated[
        tuple[str, ...], "what to compare (default: the preset's)", How("NAME", code=True, names="encoding")
    ] = ()
    preset: Annotated[Literal["quick", "standard", "leaderboard", "gpu"], "size of the comparison"] = "standard"
    data: Annotated[
        str | None,
        "text: pydoc (default; Python's reference), prose, code (default of preset gpu) or chinese (split by file, without copies), a text file or rows (.jsonl, .parquet), a folder of them, "
        "or hf:NAME[:CONFIG]",
        How("NAME"),
    ] = None
    out: str = "posenc-compare"
    share: Annotated[
        str,
        "train one share of the models here: 1/4 is the first of four, for the first of four machines",
        How("I/N", rare=True),
    ] = "1/1"
    merge: Annotated[
        tuple[str, ...],
        "first copy the trained models' results from these folders, such as those of other shares, or from archives: "
        "benchmarks/leaderboard of posenc's repository for --preset leaderboard",
        How("DIR", rare=True),
    ] = ()
    seeds: Annotated[int | None, "trainings per encoding (default: the preset's)"] = None
    rates: Annotated[
        tuple[float, ...],
        "train each encoding at so many times the learning rates, as in 0.5 1 2, and report it at its best",
        How("FACTOR"),
    ] = ()
    workers: Annotated[int | None, "models trained at a time (default: one per core)"] = None
    device: Annotated[Literal["cpu", "cuda"], "where models are trained and tested; on cuda one after the other"] = (
        "cpu"
    )
    precision: Annotated[Literal["float32", "bfloat16"], "bfloat16: autocast, parameters stay float32"] = "float32"
    compiled: Annotated[bool, "compile the passes of the training with torch.compile"] = False

    @classmethod
    def groups(cls) -> dict[str, type]:
        from posenc.lab.experiment import Experiment
        from posenc.lab.synthetic.experiment import Synthetic
        from posenc.lab.text import Settings

        return {
            "model and training (default: the preset's)": Experiment,
            "--task text (default: the preset's)": Settings,
            "generated tasks (default: the preset's)": Synthetic,
            "reading --data": Data,
        }

    @classmethod
    def epilog(cls) -> str:
        return (
            "Encodings are named as `posenc list` shows them, with options after colons (rope:rope_theta=500000) and joined "
            "by + (rope+alibi); a class in a file is FILE:CLASS (fade.py:Fade), in a module MODULE:CLASS. A comparison "
            "that was stopped continues when the same command is run again."
        )

    def run(self) -> int:
        from posenc.lab.compare import compare
        from posenc.lab.engines import InProcess, ProcessPool
        from posenc.lab.leaderboard import compare_tasks
        from posenc.report import compare as report
        from posenc.report import leaderboard
        from posenc.report.terminal import Display

        refuse_launcher("a comparison")
        alone = self.device != "cpu"
        if alone and self.workers not in (None, 1):
            raise InputError("on cuda, models are trained one after the other", "leave it out", workers=self.workers)
        engine = InProcess() if alone else ProcessPool() if self.workers is None else ProcessPool(self.workers)
        comparisons = self.read()
        one = len(comparisons) == 1

        def work(progress: Display) -> dict[str, Any]:
            more: dict[str, Any] = {
                "engine": engine, "progress": progress, "command": self.typed,
                "begin": lambda: record(self.out, self), "share": _share(self.share), "merge": self.merge,
            }  # fmt: skip
            if one:
                return compare(*comparisons[0], self.out, pages=report.files, **more)
            return compare_tasks(comparisons, self.out, pages=leaderboard.files, **more)

        return run_study(self, Display(), work, report.show if one else leaderboard.show_tasks, "runs")

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks to be compared."""
        from posenc.lab.leaderboard import TASKS

        return self.task or (TASKS if self.preset == "leaderboard" else ("text",))

    def written(self) -> list[str]:
        from posenc.report.leaderboard import file_of

        return [*super().written(), *map(file_of, self.tasks)]

    def planned(self, task: str) -> tuple[tuple[str, ...], int, "Experiment", str]:
        """Encodings, seeds, settings and data of a task: the preset's, with the given ones replaced."""
        from posenc.lab.compare import experiment, names

        kind = experiment(task)
        if self.preset not in kind.presets:
            raise InputError(
                f"task {task} has none of this name", f"give {listed(list(kind.presets))}", preset=self.preset
            )
        preset: Preset = kind.presets[self.preset]
        changed = {name: value for name, value in self.given.items() if name not in kind.data_options}
        encodings = names(self.encodings) if self.encodings else preset.encodings
        seeds = preset.seeds if self.seeds is None else self.seeds
        return encodings, seeds, preset.settings.changed(**changed), self.data or preset.data or kind.data

    def config(self) -> dict[str, Any]:
        if len(self.tasks) > 1:
            return super().config() | {"task": self.tasks}
        from posenc.lab.compare import experiment
        from posenc.lab.experiment import Experiment

        kind = experiment(self.tasks[0])
        encodings, seeds, settings, data = self.planned(self.tasks[0])
        resolved = {"task": self.tasks, "encodings": encodings, "seeds": seeds, "preset": None, "data": data}
        every = {name: value for name, value in Experiment.to_dict(settings).items() if value != []}
        return super().config() | every | {**kind.data_options} | self._reading(kind) | resolved

    def _reading(self, kind: type["Experiment"]) -> dict[str, Any]:
        return {name: value for name, value in self.given.items() if name in kind.data_options}

    def read(self) -> "list[tuple[Comparison, Dataset]]":
        """The comparison of every task, and its data."""
        return [self._read(task) for task in self.tasks]

    def _read(self, task: str) -> "tuple[Comparison, Dataset]":
        from posenc.lab.compare import Comparison, experiment
        from posenc.lab.experiment import Execution
        from posenc.lab.machine import check_present

        kind = experiment(task)
        for name in self.given:
            if name not in (*settings_in(kind), *kind.data_options):
                raise InputError("is for other tasks", f"leave it out of --task {task}", argument=name)
        encodings, seeds, settings, data = self.planned(task)
        check_present(self.device)
        settings.check_largest()
        corpus, settings = settings.load(data, **self._reading(kind))
        settings.check_largest()
        execution = Execution(self.device, self.precision, self.compiled)
        return Comparison(encodings, seeds, settings, execution, tuple(self.rates)), corpus


def _share(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal()):
        raise InputError("write two numbers, as in 1/4 for the first of four shares", share=text)
    return int(part), int(parts)
