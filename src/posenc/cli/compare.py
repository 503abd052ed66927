# SPDX-License-Identifier: Apache-2.0
"""posenc compare."""

import argparse
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from posenc.cli.common import FAILED, conclude, told
from posenc.cli.config import Digest, check_digest, record, recording
from posenc.cli.engine import add_engine, read_engine
from posenc.errors import InputError, flag_of, unknown

if TYPE_CHECKING:
    from posenc.lab.compare import Comparison
    from posenc.lab.task import Corpus

Flags: TypeAlias = tuple[tuple[str, Any, str], ...]
METAVARS: dict[Any, str] = {int: "N", float: "X", str: "NAME"}


SHARED: Flags = (
    ("steps", int, "training steps"),
    ("batch-size", int, "texts or images per step"),
    ("dim", int, "width of the model"),
    ("num-layers", int, "layers of the model"),
    ("num-heads", int, "attention heads"),
    ("head-dim", int, "width of a head"),
    ("learning-rate", float, "of Muon, for the model's matrices"),
    ("adamw-learning-rate", float, "of AdamW, for embedding and norms"),
    ("position-learning-rate", float, "of AdamW, for an encoding's tables"),
)
"""Settings of every task: flag, type, and what it is."""

OWN: dict[str, Flags] = {
    "text": (
        ("length", int, "training length in tokens (of the tokenizer: bytes, unless --tokenizer says otherwise)"),
        ("factors", [int], "test lengths over the training length"),
        ("windows", int, "held-out passages"),
        ("targets", int, "scored tokens at the end of each passage"),
        (
            "tokenizer",
            str,
            "bytes (default), bpe:4096 (learned from the training text), or a Hugging Face tokenizer's name or folder",
        ),
        ("packed", bool, "fill training sequences with whole documents, each at positions of its own"),
    ),
    "vision": (
        ("image-size", int, "pixels of a training image's side"),
        ("patch-size", int, "pixels of a patch's side"),
        ("test-sizes", [int], "sides of the test images; that of training is always among them"),
        ("images", int, "held-out images that are tested"),
    ),
}
"""Settings of one task, which another one refuses."""

READING: dict[str, Flags] = {
    "text": (
        ("text-column", str, "column of rows (default: text, or the only one with strings)"),
        ("data-tokens", int, "how much is read (default: 50 million tokens)"),
    ),
    "vision": (
        ("image-column", str, "column of rows with the images (default: image, or the only one that can be)"),
        ("label-column", str, "column of rows with their classes (default: label, or the only one that can be)"),
        ("data-images", int, "how many images are drawn or read (default: 5000)"),
    ),
}
"""How the data of one task are read."""


def add_compare(parser: argparse.ArgumentParser) -> None:
    from posenc.lab.config import PRESETS
    from posenc.lab.tasks import TASKS

    parser.epilog = (
        "Encodings are named as `posenc list` shows them, with options after colons (rope:rope_theta=500000) and "
        "joined by + (rope+alibi); a class of your own is FILE:CLASS (fade.py:Fade) or MODULE:CLASS. A comparison that was stopped goes on when the same command is given again."
    )
    add = parser.add_argument
    missing: Any = argparse.SUPPRESS
    add("--task", default="text", help="text: predict the next token; vision: name the class of an image")
    add("--encodings", nargs="+", metavar="NAME", default=missing, help="what to compare (default: the preset's)")
    add("--preset", default="standard", help=f"size of the comparison: {', '.join(PRESETS)}")
    add(
        "--data",
        default=missing,
        metavar="NAME",
        help="text: pydoc (default; Python's reference), text files or rows (.jsonl, .parquet), a folder or pattern of "
        "them, or hf:NAME[:CONFIG]; vision: places (default; drawn, the class is where a shape is from another), digits "
        "(scikit-learn's), a folder with a sub-folder of images per class, .parquet or hf:NAME[:CONFIG]",
    )
    read = tuple(_name(flag) for task in TASKS for flag, *_ in READING[task])
    text = "refuse data with another SHA-256 than this, which the config.yaml of a run holds"
    add("--data-sha256", action=Digest, of=("task", "data", "tokenizer", "packed", *read), help=text)
    add("--out", default="posenc-compare", metavar="DIR", help="folder of results.json and report.html")
    add("--seeds", type=int, metavar="N", default=missing, help="trainings per encoding (default: the preset's)")
    _add_flags(parser, "", SHARED)
    for task in TASKS:
        _add_flags(parser, f"{task}: ", (*OWN[task], *READING[task]))
    add("--workers", type=int, metavar="N", help="models trained at a time (default: one per core)")
    add_engine(parser)
    add(
        "--parallel",
        choices=("ddp", "fsdp"),
        help="how processes that torchrun or accelerate launch started divide each training (default: ddp, or what the "
        "accelerate config says)",
    )
    text = "how many of those processes share each sequence, for long ones; the others share the batch"
    add("--sequence-shards", type=int, metavar="N", default=1, help=text)
    add("--track", nargs="+", metavar="NAME", default=[], help="trackers of accelerate, as tensorboard or wandb")
    text = "keep trainings on their way this often, for a killed comparison to go on from there; 0: never"
    add("--checkpoint-every", type=float, metavar="MINUTES", default=10.0, help=text)
    add("--json", action="store_true", help="print results.json instead of the table")
    parser.set_defaults(run=run_compare)


def _add_flags(parser: argparse.ArgumentParser, of: str, flags: Flags) -> None:
    """Settings, none of which has a default here: where one is not given, the preset's counts."""
    for flag, kind, text in flags:
        more: dict[str, Any] = {"type": kind, "metavar": METAVARS.get(kind)} if isinstance(kind, type) else {}
        if kind is bool:
            more = {"action": "store_true"}
        elif isinstance(kind, list):
            more = {"type": kind[0], "nargs": "+", "metavar": METAVARS[kind[0]]}
        said = "" if "(default" in text or kind is bool else " (default: the preset's)"
        parser.add_argument(f"--{flag}", default=argparse.SUPPRESS, help=f"{of}{text}{said}", **more)


def _name(flag: str) -> str:
    return flag.replace("-", "_")


def run_compare(options: argparse.Namespace, command: str) -> int:
    from posenc.lab.launcher import together

    with together(options.parallel, options.sequence_shards):
        return _run(options, command)


def _run(options: argparse.Namespace, command: str) -> int:
    from dataclasses import replace

    from posenc.engines import Interrupted
    from posenc.lab.compare import compare
    from posenc.lab.config import Run
    from posenc.lab.launcher import launched
    from posenc.lab.store import Cell
    from posenc.lab.tracking import Tracking
    from posenc.report.page import page
    from posenc.report.terminal import Terminal

    for flag, differs in (("workers", options.workers), ("engine", options.engine != "local")):
        if differs and launched():
            raise InputError(
                f"--{flag} {getattr(options, flag)}: the processes that a launcher started train each model together; leave it "
                "out, or start one process"
            )
    engine = read_engine(options, workers=options.workers)
    comparison, corpus = read_comparison(options)
    tracking = Tracking(options.track, options.out)
    with Terminal(options.out, lambda: share_of_quick(options, comparison)) as terminal, told(options.command):

        def finished(run: Run, cell: Cell) -> None:
            terminal.progress.finished(run, cell)
            tracking.finished(run, cell)

        try:
            telling = replace(terminal.progress, finished=finished)
            results = compare(
                comparison,
                corpus,
                options.out,
                engine=engine,
                checkpoint_minutes=options.checkpoint_every,
                progress=recording(telling, lambda: record(options.out, options, **resolved(comparison, corpus))),
                command=command,
                render=page,
            )
        except Interrupted:
            print("posenc compare: interrupted before a run had finished; nothing was kept", file=sys.stderr)
            return FAILED
    done = results["runs"]
    return conclude(options, results, terminal.show, done["finished"], done["planned"], "runs")


def read_comparison(options: argparse.Namespace) -> "tuple[Comparison, Corpus]":
    """What is compared, a preset with what was said in its place, and the data.

    Raises:
        InputError: what cannot be, does not fit into this machine, or is not the data that they were.
    """
    from posenc.lab.compare import Comparison, names
    from posenc.lab.cost import check_affordable
    from posenc.lab.parallel import processes
    from posenc.lab.tasks import TASKS

    if options.task not in TASKS:
        raise unknown("--task", options.task, TASKS)
    task = TASKS[options.task]
    for other in TASKS.keys() - {task.name}:
        if foreign := _given(options, (*OWN[other], *READING[other])):
            raise InputError(
                f"{flag_of(next(iter(foreign)))}: is for --task {other}; leave it out of --task {task.name}"
            )
    if options.preset not in task.presets:
        raise unknown("--preset", options.preset, task.presets)
    preset = task.presets[options.preset]
    settings = preset.settings.changed(**_given(options, (*SHARED, *OWN[task.name])))
    check_affordable(settings, options.workers or 1, processes().world_size)
    reading = {**task.reading, **_given(options, READING[task.name])}
    vars(options).update({"data": getattr(options, "data", task.data), **reading})  # for config.yaml
    corpus, settings = task.load(options.data, settings, **reading)
    check_affordable(settings, options.workers or 1, processes().world_size)
    check_digest(options, "data_sha256", f"--data {options.data}", corpus.digest)
    encodings = names(options.encodings) if hasattr(options, "encodings") else preset.encodings
    return Comparison(encodings, getattr(options, "seeds", preset.seeds), settings), corpus


def share_of_quick(options: argparse.Namespace, comparison: "Comparison") -> float | None:
    """The work of this command with --preset quick over that of the comparison; None where it is not less, or where the
    other flags do not fit that preset."""
    from posenc.lab.config import Run
    from posenc.lab.measure import work
    from posenc.lab.tasks import TASKS

    task = TASKS[options.task]
    quick = task.presets["quick"]
    try:
        settings = quick.settings.changed(**_given(options, (*SHARED, *OWN[task.name])))
    except InputError:
        return None
    encodings = comparison.encodings if hasattr(options, "encodings") else quick.encodings
    small, all_of_it = (
        seeds * sum(work(Run(name, 0, shape, "")) for name in names)
        for seeds, names, shape in (
            (getattr(options, "seeds", quick.seeds), encodings, settings),
            (comparison.seeds, comparison.encodings, comparison.settings),
        )
    )
    return small / all_of_it if small < all_of_it else None


def _given(options: argparse.Namespace, flags: Flags) -> dict[str, Any]:
    """What was said of these settings."""
    names = (_name(flag) for flag, *_ in flags)
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def resolved(comparison: "Comparison", corpus: "Corpus") -> dict[str, Any]:
    """What config.yaml says instead of a preset and of what may change."""
    said = {"encodings": comparison.encodings, "seeds": comparison.seeds, "data_sha256": corpus.digest}
    return comparison.settings.said() | said | {"preset": None}
