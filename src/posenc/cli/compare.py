"""posenc compare."""

import argparse
import sys
from typing import Any

from posenc.cli.common import FAILED, conclude, told
from posenc.errors import unknown


def add_compare(parser: argparse.ArgumentParser) -> None:
    from posenc.lab.config import PRESETS

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
        help="pydoc (Python's reference), a text file or folder, or hf:NAME[:CONFIG]",
    )
    add("--out", default="posenc-compare", metavar="DIR", help="folder of results.json and report.html")
    add("--seeds", type=int, metavar="N", default=missing, help="trainings per encoding (default: the preset's)")
    for flag, kind, text in (
        ("--length", int, "training length in bytes"),
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
        ("--targets", int, "scored bytes at the end of each passage"),
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
    add("--workers", type=int, metavar="N", default=missing, help="models trained at a time (default: one per core)")
    text = "keep trainings on their way this often, for a killed comparison to go on from there; 0: never"
    add("--checkpoint-every", type=float, metavar="MINUTES", default=10.0, help=text)
    add("--json", action="store_true", help="print results.json instead of the table")
    parser.set_defaults(run=run_compare)


def run_compare(options: argparse.Namespace, command: str) -> int:
    from dataclasses import fields, replace

    from posenc.lab.compare import Comparison, compare, names
    from posenc.lab.config import PRESETS, Settings
    from posenc.lab.data import load
    from posenc.lab.sweep import Interrupted
    from posenc.report.page import page
    from posenc.report.terminal import Terminal

    if options.preset not in PRESETS:
        raise unknown("--preset", options.preset, PRESETS)
    preset = PRESETS[options.preset]
    given = {f.name: getattr(options, f.name) for f in fields(Settings) if hasattr(options, f.name)}
    if "factors" in given:
        given["factors"] = tuple(given["factors"])
    comparison = Comparison(
        names(options.encodings) if hasattr(options, "encodings") else preset.encodings,
        getattr(options, "seeds", preset.seeds),
        replace(preset.settings, **given),
    )
    corpus = load(options.data)
    with Terminal(options.out) as terminal, told(options.command):
        try:
            workers = getattr(options, "workers", None)
            results = compare(
                comparison,
                corpus,
                options.out,
                workers=workers,
                checkpoint_minutes=options.checkpoint_every,
                progress=terminal.progress,
                command=command,
                render=page,
            )
        except Interrupted:
            print("posenc compare: interrupted before a run had finished; nothing was kept", file=sys.stderr)
            return FAILED
    done = results["runs"]
    return conclude(options, results, terminal.show, done["finished"], done["planned"], "runs")
