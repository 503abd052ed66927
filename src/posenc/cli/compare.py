"""posenc compare."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from posenc.cli.common import FAILED, conclude, told
from posenc.cli.config import Digest, check_digest, record, recording
from posenc.cli.engine import add_engine, read_engine
from posenc.errors import InputError, unknown

if TYPE_CHECKING:
    from posenc.lab.compare import Comparison
    from posenc.lab.data import Corpus


def add_compare(parser: argparse.ArgumentParser) -> None:
    from posenc.lab.config import PRESETS
    from posenc.lab.data import DATA_TOKENS

    parser.epilog = (
        "Encodings are named as `posenc list` shows them, with options after colons (rope:rope_theta=500000) and "
        "joined by + (rope+alibi). A comparison that was stopped goes on when the same command is given again."
    )
    add = parser.add_argument
    missing: Any = argparse.SUPPRESS
    add("--encodings", nargs="+", metavar="NAME", default=missing, help="what to compare (default: the preset's)")
    add("--preset", default="standard", help=f"size of the comparison: {', '.join(PRESETS)}")
    add(
        "--data",
        default="pydoc",
        metavar="TEXT",
        help="pydoc (Python's reference), text files or rows (.jsonl, .parquet), a folder or pattern of them, or "
        "hf:NAME[:CONFIG]",
    )
    add("--text-column", metavar="NAME", help="column of rows (default: text, or the only one with strings)")
    add("--data-tokens", type=int, metavar="N", default=DATA_TOKENS, help="how much is read (default: %(default)s)")
    add(
        "--tokenizer",
        metavar="NAME",
        default=missing,
        help="bytes (default), bpe:4096 (learned from the training text), or a Hugging Face tokenizer's name or folder",
    )
    add(
        "--packed",
        action="store_true",
        default=missing,
        help="fill training sequences with whole documents, each at positions of its own",
    )
    read = ("data", "text_column", "data_tokens", "tokenizer", "packed")
    add("--data-sha256", action=Digest, of=read, help="refuse a text that is another one; config.yaml says it")
    add("--out", default="posenc-compare", metavar="DIR", help="folder of results.json and report.html")
    add("--seeds", type=int, metavar="N", default=missing, help="trainings per encoding (default: the preset's)")
    for flag, kind, text in (
        ("--length", int, "training length in tokens (of the tokenizer: bytes, unless --tokenizer says otherwise)"),
        ("--steps", int, "training steps"),
        ("--batch-size", int, "texts per step"),
        ("--dim", int, "width of the model"),
        ("--num-layers", int, "layers of the model"),
        ("--num-heads", int, "attention heads"),
        ("--head-dim", int, "width of a head"),
        ("--learning-rate", float, "of Muon, for the model's matrices"),
        ("--adamw-learning-rate", float, "of AdamW, for embedding and norms"),
        ("--position-learning-rate", float, "of AdamW, for an encoding's tables"),
        ("--windows", int, "held-out passages"),
        ("--targets", int, "scored tokens at the end of each passage"),
    ):
        add(
            flag,
            type=kind,
            metavar="X" if kind is float else "N",
            default=missing,
            help=f"{text} (default: the preset's)",
        )
    add(
        "--factors",
        type=int,
        nargs="+",
        metavar="F",
        default=missing,
        help="test lengths over the training length (default: the preset's)",
    )
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
    with Terminal(options.out) as terminal, told(options.command):

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
    """What is compared, a preset with what was said in its place, and the text.

    Raises:
        InputError: what cannot be, does not fit into this machine, or is not the text that it was.
    """
    from dataclasses import fields, replace

    from posenc.lab.compare import Comparison, names
    from posenc.lab.config import PRESETS, Settings
    from posenc.lab.cost import check_affordable
    from posenc.lab.data import load
    from posenc.lab.parallel import processes

    if options.preset not in PRESETS:
        raise unknown("--preset", options.preset, PRESETS)
    preset = PRESETS[options.preset]
    given = {f.name: getattr(options, f.name) for f in fields(Settings) if hasattr(options, f.name)}
    if "factors" in given:
        given["factors"] = tuple(given["factors"])
    settings = replace(preset.settings, **given)
    check_affordable(settings, options.workers or 1, processes().world_size)
    corpus = load(
        options.data,
        settings.tokenizer,
        packed=settings.packed,
        text_column=options.text_column,
        max_tokens=options.data_tokens,
    )
    settings = replace(settings, vocab_size=corpus.vocab_size)
    check_affordable(settings, options.workers or 1, processes().world_size)
    check_digest(options, "data_sha256", f"--data {options.data}", corpus.digest)
    encodings = names(options.encodings) if hasattr(options, "encodings") else preset.encodings
    return Comparison(encodings, getattr(options, "seeds", preset.seeds), settings), corpus


def resolved(comparison: "Comparison", corpus: "Corpus") -> dict[str, Any]:
    """What config.yaml says instead of a preset and of what may change."""
    from dataclasses import asdict

    said = {"encodings": comparison.encodings, "seeds": comparison.seeds, "data_sha256": corpus.digest}
    return asdict(comparison.settings) | said | {"preset": None}
