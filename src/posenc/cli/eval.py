# SPDX-License-Identifier: Apache-2.0
"""posenc eval."""

import argparse
import os
import sys
from typing import Any

from posenc.cli.common import FAILED, TableFormatter, add_model, conclude, read_model, told
from posenc.cli.config import Digest, check_digest, record, recording
from posenc.cli.engine import add_engine, read_engine
from posenc.errors import InputError

SETTINGS = ("tasks", "methods", "lengths", "depths", "samples", "seeds", "generate", "batch_size", "text")


def add_eval(parser: argparse.ArgumentParser) -> None:
    from posenc.errors import summary
    from posenc.evals.config import PRESETS
    from posenc.tasks import TASKS

    width = max(map(len, TASKS))
    presets = (
        f"  {name:{width}}  {' '.join(s.tasks)}\n  {'':{width}}  under {' '.join(s.methods)}, at {' '.join(map(str, s.lengths))} "
        f"tokens, {s.samples * s.seeds} texts a cell, {'generated too' if s.generate else 'nothing generated'}"
        for name, s in PRESETS.items()
    )
    parser.formatter_class = TableFormatter
    parser.epilog = (
        "presets:\n" + "\n".join(presets) + "\n\n"
        "tasks:\n" + "\n".join(f"  {name:{width}}  {summary(task)}" for name, task in TASKS.items()) + "\n\n"
        "Tasks take options after colons (key_value:keys=digits); methods are those of `posenc extend`. The model as it\n"
        "is comes first, and where texts are longer than it was trained for, also the model with no more than the end\n"
        "of them to read (cut_off). An evaluation that was stopped goes on when the same command is given again."
    )
    add_model(parser)
    add, missing = parser.add_argument, argparse.SUPPRESS
    preset = " (default: the preset's)"
    add("--preset", default="standard", help="what is measured unless a flag says otherwise (below)")
    add("--tasks", nargs="+", metavar="TASK", default=missing, help="what to look for (below)" + preset)
    add("--methods", nargs="+", metavar="M", default=missing, help="ways to extend the model" + preset)
    add("--lengths", nargs="+", type=int, metavar="N", default=missing, help="of the texts, in tokens" + preset)
    text = "places of what is asked for, from 0 (start) to 1 (end)"
    add("--depths", nargs="+", type=float, metavar="D", default=missing, help=text + preset)
    add("--samples", type=int, metavar="N", default=missing, help="texts a cell" + preset)
    add("--seeds", type=int, metavar="N", default=missing, help="cells that differ in their texts alone" + preset)
    text = "answers are generated too, not only weighed"
    add("--generate", action=argparse.BooleanOptionalAction, default=missing, help=text + preset)
    text = "texts side by side (default: 1 on a CPU, where common beginnings are read once, else 8)"
    add("--batch-size", type=int, metavar="N", default=missing, help=text)
    text = "running text for tasks that take one (default: the language reference inside Python)"
    add("--text", metavar="FILE", default=missing, help=text)
    add(
        "--text-sha256",
        action=Digest,
        of=("text",),
        help="refuse a text with another SHA-256 than this, which the config.yaml of a run holds",
    )
    text = "refuse a model with another fingerprint than this, which the config.yaml of a run holds"
    add("--model-fingerprint", action=Digest, of=("model", "dtype"), help=text)
    text = "say where the model looks, too"
    add("--attention", action=argparse.BooleanOptionalAction, default=True, help=text)
    add_engine(parser)
    add("--out", default="posenc-eval", metavar="DIR", help="folder of results.json and report.html")
    add("--track", nargs="+", metavar="NAME", default=[], help="trackers of accelerate, as tensorboard or wandb")
    add("--json", action="store_true", help="print results.json instead of the tables")
    parser.set_defaults(run=run_eval)


def run_eval(options: argparse.Namespace, command: str) -> int:
    from dataclasses import asdict

    from posenc.engines import Interrupted
    from posenc.evals.config import digests, settings_of
    from posenc.evals.job import fingerprint
    from posenc.evals.run import evaluate
    from posenc.files import Folder
    from posenc.lab.launcher import launched
    from posenc.lab.tracking import Tracking
    from posenc.report.evaluation import Terminal, page

    if launched():
        raise InputError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: an evaluation is not divided over a launcher's processes; start it "
            "without one, with --engine ray where its cells should be spread over machines"
        )
    chosen = given(options)
    settings = settings_of(options.preset, **chosen)
    files = digests(settings.made())  # a mistake shows before a model is loaded
    resolved = asdict(settings) | {"preset": None}
    if settings.text in files:
        resolved["text_sha256"] = files[settings.text]
        check_digest(options, "text_sha256", f"--text {settings.text}", files[settings.text])
    engine = read_engine(options, local="here")
    Folder(options.out)
    tracking = Tracking(options.track, options.out)
    model, tokenizer = read_model(options)
    resolved |= {"device": str(next(model.parameters()).device), "model_fingerprint": fingerprint(model)}
    resolved["dtype"] = str(model.dtype).removeprefix("torch.")
    check_digest(options, "model_fingerprint", options.model, resolved["model_fingerprint"])
    with Terminal(options.out) as terminal, told(options.command):
        try:
            results = evaluate(
                model,
                tokenizer,
                preset=options.preset,
                directory=options.out,
                name=options.model,
                engine=engine,
                attention=options.attention,
                progress=recording(terminal.progress, lambda: record(options.out, options, **resolved)),
                command=command,
                render=page,
                **chosen,
            )
        except Interrupted:
            print("posenc eval: interrupted before a cell had finished; nothing was kept", file=sys.stderr)
            return FAILED
    if results["complete"]:
        tracking.evaluated(results)
    done = results["cells"]
    return conclude(options, results, terminal.show, done["finished"], done["planned"], "cells")


def given(options: argparse.Namespace) -> dict[str, Any]:
    """What was said of the evaluation's settings."""
    return {name: getattr(options, name) for name in SETTINGS if hasattr(options, name)}
