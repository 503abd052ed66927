"""The measurements that decide which encoding is good at what: trainings by budget, rate, text, tokens, task and size.

    python benchmarks/experiments.py budget rate --out DIR [--seeds 1] [--share 1/2]

trains the models of these experiments that neither DIR nor benchmarks/experiments has yet, of each the shortest trainings first and of these the first seed, says
how long it will take, and adds what is finished to the archives in DIR/archives, a folder for each experiment and setting, also when it is
stopped (Ctrl-C, SIGTERM). Run again, it goes on; the archives of several machines, each with its share, are merged with --merge. One
process trains; more: --workers. DIR/archives has what benchmarks/experiments had, too: copied over it, it is what
python benchmarks/leaderboard.py writes into the pages.

--device cuda trains in float32 on a GPU, which the archives state; several workers share it, best through NVIDIA's MPS. These are
other runs than those of a CPU, and do not stand in one archive with them. A machine with another version of Python has other texts:
--texts gives it those of the first.
"""

import argparse
import math
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from posenc.errors import InputError
from posenc.lab.compare import Comparison, ComparisonStudy
from posenc.lab.data import Corpus
from posenc.lab.data.corpora import CORPORA
from posenc.lab.engines import InProcess, ProcessPool
from posenc.lab.experiment import Dataset, Execution, Experiment, Run
from posenc.lab.machine import check_present, describe
from posenc.lab.records import RunRecord
from posenc.lab.store import Store, identity
from posenc.lab.study import run
from posenc.lab.synthetic.tasks import TASKS
from posenc.lab.text import Settings
from posenc.pretrained.stopping import terminable
from posenc.report.terminal import Display

sys.path.append(str(Path(__file__).parent))
from archives import read, write
from replication import EXPERIMENTS as COMMITTED
from replication import findings

BASE = "rope:rope_theta=30"
"""RoPE with a base for a training length of 128."""
BASELINES = ("none", "rope", BASE, "alibi")
LEADERS = (
    "selective_attention", "stick_breaking", "kerple", "shaw", "dape", "sandwich", "fire", "grape_a", "fox", "projected_relative",
    "wall", "local_nope:window=16:every=2",
)  # fmt: skip
"""The twelve best of the leaderboard at the longest length, by their mean score."""
SIXTEEN = (*BASELINES, *LEADERS)
UP_TO_4096 = tuple(each for each in SIXTEEN if each != "dape")
"""`dape` passes every pair of tokens through a network: its evaluation outlasted a loan of a GPU."""
NINE = (*BASELINES[:2], "alibi", *LEADERS[:6])
# the experiments on rates, texts and sizes leave out what that on budgets has: the rates of TEXT, code, the smallest models
OTHER_RATES = 0.5, 1 / 1.4, 1.4, 2
RATES = {"learning_rate": (0.25, 0.35, *OTHER_RATES), "position_learning_rate": OTHER_RATES}
"""Over the default. Most encodings were best at half the learning rate, so that it has lower ones, too."""
NEW = (
    "n_back_1", "reverse", "parity", "selective_copy", "flip_flop", "indirect_indexing", "a5", "n_back_2", "n_back_3", "n_back_4",
)  # fmt: skip
"""Tasks of the leaderboard that have only these archives."""
TEXTS = ("prose", "code", "chinese")
NEAR = (2, 8, 32, 128, 512, 1024)
ARCHIVE_EVERY = 60
FAR = (2, 8, 32, 128, 512, 2048, 4096)
TEXT = Settings(steps=480, windows=200, contexts=NEAR)


@dataclass(frozen=True)
class Plan:
    """Trainings under one setting. folder: of their archives; that of a text begins with its name and a hyphen."""

    folder: str
    settings: Experiment
    data: str = "generated"
    encodings: tuple[str, ...] = SIXTEEN


@dataclass(frozen=True)
class Trials:
    """An experiment: what it asks, the plans, and seeds for each."""

    question: str
    plans: tuple[Plan, ...]
    seeds: int


def faster(rate: str, by: float) -> Settings:
    return TEXT.changed(**{rate: by * getattr(TEXT, rate)})


def of_task(name: str, steps: int | None = None) -> Plan:
    """For the steps of the task, unless others are given."""
    settings = TASKS[name]() if steps is None else TASKS[name]().changed(steps=steps)
    return Plan(f"{name}-{settings.steps}", settings)


def with_findings(name: str, steps: int | None = None) -> Plan:
    """A task with the encodings of the published findings about it, too."""
    named = [each for finding in findings() if finding.task == name for each in (finding.better, finding.worse)]
    return replace(of_task(name, steps), encodings=tuple(dict.fromkeys((*SIXTEEN, *named))))


EXPERIMENTS: dict[str, Trials] = {
    "budget": Trials(
        "does a lead survive training?",
        tuple(Plan(f"code-{steps}", TEXT.changed(steps=steps), "code") for steps in (120, 480, 1920)),
        4,
    ),
    "rate": Trials(
        "is a lead one of the learning rate?",
        tuple(
            Plan(f"code-{rate}-{by:.2f}", faster(rate, by), "code")
            for rate, others in RATES.items()
            for by in others
        ),
        2,
    ),
    "corpora": Trials("does the order depend on the text?", tuple(Plan(f"{text}-480", TEXT, text) for text in TEXTS if text != "code"), 3),
    "tokens": Trials(
        "bytes or tokens?",
        tuple(
            Plan(f"code-bpe{size}-{length}", TEXT.changed(tokenizer=f"bpe:{size}", length=length, batch_size=1536 // length, contexts=seen), "code")
            for size in (512, 4096)
            for length, seen in ((128, NEAR), (512, FAR))
        ),
        3,
    ),
    "far": Trials(
        "is text before the last 512 bytes read?",
        tuple(
            Plan(f"{text}-512", TEXT.changed(length=512, batch_size=3, contexts=FAR), text, UP_TO_4096) for text in TEXTS
        ),
        3,
    ),
    "recall": Trials("how many trainings learn to recall, and when?", (with_findings("recall", 2000),), 16),
    "tasks": Trials("where recency is not enough", tuple(map(with_findings, NEW)), 8),
    "sizes": Trials(
        "does the order change with size?",
        tuple(
            Plan(f"code-{name}M", settings, "code", NINE)
            for name, settings in (("1.9", TEXT.changed(dim=256, num_heads=8)), ("7.5", TEXT.changed(dim=512, num_heads=16)))
        ),
        3,
    ),
}  # fmt: skip


class Planned(ComparisonStudy):
    """The plans of experiments in one folder, one after another: of each the shortest trainings first, seed by seed, and within a seed
    plan by plan. experiments: the name of each plan's, by its settings and data, in their order. elsewhere: ids of runs that are left out."""

    def __init__(
        self,
        comparisons: Sequence[tuple[Comparison, Dataset]],
        experiments: Mapping[tuple[Experiment, str], str],
        elsewhere: Collection[str] = (),
    ) -> None:
        super().__init__(comparisons)
        self.experiments, self.elsewhere = experiments, elsewhere

    def check(self) -> None:
        """Every setting once: the steps and rates of a training change nothing."""
        checked = set[tuple[object, ...]]()
        for plan, corpus in self.comparisons:
            alike = plan.settings.changed(steps=1, learning_rate=1.0, position_learning_rate=1.0)
            if (key := (plan.encodings, plan.seeds, repr(alike), corpus.digest)) not in checked:
                plan.check(corpus)
            checked.add(key)

    def cells(self) -> list[Run]:
        order = list(dict.fromkeys(self.experiments.values()))
        return sorted(
            (cell for cell in super().cells() if cell.id not in self.elsewhere),
            key=lambda cell: (
                order.index(self.experiments[cell.settings, cell.data]), cell.settings.steps, cell.seed,
            ),
        )  # fmt: skip

    def describe(self, job: Sequence[Run]) -> str:
        return f"{job[0].settings.name}, {job[0].settings.steps} steps, {super().describe(job)}"

    def results(self, done: Mapping[Run, RunRecord]) -> dict[str, Any]:
        seconds = {f"{cell.settings.name} {cell.id}": record.training_seconds for cell, record in done.items()}
        return {"settings": {}, "training_seconds": seconds}


Comparisons = dict[tuple[Experiment, str], tuple["Plan", Comparison, Dataset]]
"""By settings and data."""


def comparisons(plans: Collection[Plan], seeds: int, device: str = "cpu", texts: Path | None = None) -> Comparisons:
    """The comparison of each plan. texts: see `loaded_from`."""
    made: Comparisons = {}
    loaded: dict[tuple[str, str], Dataset] = {}
    for plan in plans:
        key = plan.data, getattr(plan.settings, "tokenizer", repr(plan.settings))
        if key not in loaded:
            loaded[key] = loaded_from(texts, plan) if texts else plan.settings.load(plan.data)[0]
        corpus, settings = loaded[key], plan.settings
        if hasattr(settings, "vocab_size"):
            settings = replace(settings, vocab_size=corpus.vocab_size)
        made[settings, corpus.digest] = plan, Comparison(plan.encodings, seeds, settings, Execution(device)), corpus
    return made


def loaded_from(texts: Path, plan: Plan) -> Dataset:
    """The data of a plan, from a folder; what that does not have yet is loaded and written there. Its files are pickles."""
    if plan.data not in CORPORA:
        return plan.settings.load(plan.data)[0]
    folder = texts / f"{plan.data}-{plan.settings.tokenizer.replace(':', '')}"
    if not folder.exists():
        corpus = plan.settings.load(plan.data)[0]
        folder.mkdir(parents=True)
        torch.save(corpus, folder / "corpus.pt")
    loaded: Corpus = torch.load(folder / "corpus.pt", mmap=True, weights_only=False)
    return loaded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "experiments",
        nargs="+",
        choices=EXPERIMENTS,
        metavar="EXPERIMENT",
        help="; ".join(f"{n}: {e.question}" for n, e in EXPERIMENTS.items()),
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished runs")
    parser.add_argument("--seeds", type=int, help="trainings of each encoding (default: those of the experiment)")
    parser.add_argument("--share", default="1/1", help="train only this share, such as 1/4")
    parser.add_argument("--merge", nargs="*", default=[], help="first copy the runs of these folders")
    parser.add_argument("--workers", type=int, default=1, help="models trained at a time")
    parser.add_argument("--device", default="cpu", help="cpu (default), or cuda")
    parser.add_argument("--texts", type=Path, help="folder of the texts; those it does not have are written there")
    parser.add_argument("--dry", action="store_true", help="say what would be trained, and train nothing")
    options = parser.parse_args()
    if not options.dry:
        check_present(options.device)
    planned: Comparisons = {}
    experiment_of: dict[tuple[Experiment, str], str] = {}
    for name in options.experiments:
        trials = EXPERIMENTS[name]
        made = comparisons(trials.plans, options.seeds or trials.seeds, options.device, options.texts)
        if both := made.keys() & planned.keys():
            parser.error(f"{name} and {experiment_of[both.pop()]} have a setting in common: run one after the other")
        planned |= made
        experiment_of |= dict.fromkeys(made, name)
    if options.dry:
        for (settings, digest), (plan, comparison, corpus) in planned.items():
            count = len(comparison.runs(corpus))
            print(f"{plan.folder}: {count} runs of {settings.name}, {settings.steps} steps, data {digest[:12]}")
        return
    archives = options.out / "archives"
    known = set[str]()
    for key, (plan, *_) in planned.items():
        place = Path(experiment_of[key], plan.folder)
        if (COMMITTED / place).is_dir():
            known |= {identity(cell.facts) for cell in read(COMMITTED / place)}
            if not (archives / place).exists():
                shutil.copytree(COMMITTED / place, archives / place)
    study = Planned([(comparison, corpus) for _, comparison, corpus in planned.values()], experiment_of, known)
    part, _, parts = options.share.partition("/")
    machine = {name: value for name, value in describe(torch.device(options.device)).items() if name != "load"}

    class Archived(Display):
        """Adds finished runs to their archives once in `ARCHIVE_EVERY` seconds, in which a GPU finishes many."""

        def __init__(self) -> None:
            super().__init__()
            self.waiting: list[Run] = []
            self.written = -math.inf

        def finished(self, what: str, measured: Mapping[Any, Any], done: int) -> None:
            super().finished(what, measured, done)
            self.waiting += measured
            if time.monotonic() - self.written > ARCHIVE_EVERY:
                add(self.waiting)
                self.waiting, self.written = [], time.monotonic()

    def add(runs: Sequence[Run]) -> None:
        store = Store(options.out)
        by_folder: dict[Path, dict[Run, Any]] = {}
        for each in runs:
            stored = store.load(each.id, RunRecord)
            if stored is None:
                raise InputError(f"out={str(options.out)!r}: run {each.id} is gone; run the same command again")
            key = each.settings, each.data
            by_folder.setdefault(archives / experiment_of[key] / planned[key][0].folder, {})[each] = stored
        for folder, done in by_folder.items():
            write(folder, done, machine)

    engine = InProcess() if options.workers == 1 else ProcessPool(options.workers)
    try:
        with Archived() as progress, terminable():
            run(
                study, options.out, engine=engine, progress=progress, share=(int(part), int(parts)), merge=options.merge
            )
    finally:
        add([cell for cell in study.cells() if Store(options.out).load(cell.id, RunRecord) is not None])


if __name__ == "__main__":
    main()
