# SPDX-License-Identifier: Apache-2.0
"""posenc extend."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.cli.common import DONE, FAILED, TableFormatter, add_model, add_output, emit, quiet, read_model
from posenc.errors import InputError, flag_of
from posenc.spec import literal

if TYPE_CHECKING:
    from posenc.pretrained.finetune import Finetuning
    from posenc.pretrained.verify import Verifier

FINETUNING = (
    ("--steps", int, "steps (default: 1000)"),
    ("--learning-rate", float, "of AdamW (default: 2e-5)"),
    ("--length", int, "tokens of a window (default: the new length)"),
    ("--batch-size", int, "windows a step (default: 1)"),
    ("--lora", int, "train adapters of this rank (peft) and merge them (default: all weights)"),
    ("--pose", bool, "skip positions, so that short windows see the whole new length (PoSE)"),
    ("--seed", int, "of the windows (default: 0)"),
    ("--checkpoint", str, "keep the training in this folder, so that the same command goes on from there"),
)
"""Flags that go to `posenc.pretrained.finetune.finetune` where they are given."""
LINE_SECONDS = 20.0
"""Between two lines on a training, where there is no terminal."""


def add_extend(parser: argparse.ArgumentParser) -> None:
    from posenc.pretrained.methods import METHODS

    width = max(map(len, METHODS))
    parser.formatter_class = TableFormatter
    parser.epilog = (
        "methods:\n" + "\n".join(f"  {name:{width}}  {method.summary}" for name, method in METHODS.items()) + "\n\n"
        "Methods take options after colons (yarn:beta_fast=16) or by --option, lists of numbers with commas\n"
        "(--option long_factor=1,1.5,2), and are joined by + (ntk+log_n). The loss on a text is\n"
        "measured before and after, beside that of the model as it was on a text cut to its trained length. With --out\n"
        "the model is saved so that plain transformers loads it, wherever that can be expressed."
    )
    add_model(parser)
    add = parser.add_argument
    add(
        "--method",
        metavar="M",
        help="how (below); of a vision model how tables are interpolated (default: as its source does)",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--factor", type=float, metavar="F", help="the new length over the trained one")
    length.add_argument("--target-length", type=int, metavar="N", help="the new length in tokens")
    length.add_argument(
        "--image-size", metavar="H[xW]", help="of a vision model: pixels of a square image, or height x width"
    )
    add("--window-size", type=int, metavar="N", help="with --image-size: patches of the windows of Swin and Swin v2")
    add(
        "--option",
        action="append",
        default=[],
        metavar="K=V",
        help="an option of the method, a list as 1,1.5,2; may be given again",
    )
    add("--text", metavar="FILE", help="what is read to verify (default: the language reference inside Python)")
    add("--verify-tokens", type=int, metavar="N", help="tokens of it (default: what about a minute allows)")
    add("--verify", action=argparse.BooleanOptionalAction, default=True, help="measure the loss before and after")
    train = parser.add_argument_group(
        "fine-tuning at the new length, before the model is verified and saved"
    ).add_argument
    train("--finetune", metavar="FILE", help="a text to train on, which is not the one that verifies")
    for flag, kind, text in FINETUNING:
        missing: Any = argparse.SUPPRESS
        if kind is bool:
            train(flag, action="store_true", default=missing, help=text)
        else:
            metavar = {float: "X", str: "DIR"}.get(kind, "N")
            train(flag, type=kind, metavar=metavar, default=missing, help=text)
    add_output(parser, out="save the model into this folder, and the JSON with it")
    parser.set_defaults(run=run_extend)


def run_extend(options: argparse.Namespace, command: str) -> int:
    from posenc.pretrained.export import to_hf
    from posenc.pretrained.extend import extend
    from posenc.pretrained.finetune import prepared
    from posenc.pretrained.precision import AUTO, HALF, STEPS_LOST, chosen_because, widen
    from posenc.pretrained.resuming import Checkpoint, remove
    from posenc.pretrained.verify import TUNED
    from posenc.report.terminal import ShowsProgress

    if options.image_size is not None:
        return _resized(options, command)
    if options.method is None:
        raise InputError(
            "--method: how is the model to be extended? Name a method (posenc extend --help), or --image-size"
        )
    if options.window_size is not None:
        raise InputError(f"--window-size {options.window_size}: is for vision models, give --image-size with it")
    given, training = _options(options.option), _training(options)
    if options.verify_tokens is not None and options.verify_tokens < 2:
        raise InputError(f"--verify-tokens {options.verify_tokens}: must be at least 2")
    text = None if options.text is None else _read(options.text, "--text")  # before anything is loaded
    _check_out(options.out)
    model, tokenizer = read_model(options)
    if tokenizer is None and (options.verify or training is not None):
        raise InputError(f"{options.model}: it has no tokenizer to read a text with; give --no-verify, no --finetune")

    def extended() -> Any:
        return extend(model, options.method, factor=options.factor, target_length=options.target_length, **given)

    report = extended()  # a mistake shows before anything is measured
    if training is not None and training.get("lora") is None and options.dtype == AUTO and model.dtype in HALF:
        widen(model, STEPS_LOST)
    if training is not None:
        settings, rows = prepared(model, _read(options.finetune, "--finetune"), tokenizer, **training)
        if "checkpoint" in training:
            Checkpoint(training["checkpoint"], 1, model, rows, settings).check()
    results: dict[str, Any] = {"command": command, "model": options.model, "extension": report.to_dict()}
    tuned: Finetuning | None = None
    results["precision"] = chosen_because(model)
    told: list[object] = [report, f"computed in {results['precision']}"]
    with ShowsProgress(options.out or ".") as shown:
        reader = _before_and_after(options, text, model, tokenizer, report, extended, shown) if options.verify else None
        if training is not None:
            tuned = _finetuned(model, tokenizer, options.finetune, training, shown)
            if not tuned.complete:
                at = f"interrupted after {len(tuned.losses)} of {tuned.settings['steps']} steps"
                goes_on = "checkpoint" in training
                then = (
                    "the same command goes on from there" if goes_on else "the model as it is now is measured and saved"
                )
                print(f"posenc extend: {at}; {then}", file=sys.stderr)
                if goes_on:
                    return FAILED
            if reader is not None:
                reader.read(TUNED, model, shown.counter(TUNED))
            results["finetuning"] = tuned.to_dict()
            told.append(tuned)
    if reader is not None:
        found = reader.result()
        results["verification"] = found.to_dict()
        options.verify_tokens = len(reader.ids)  # a minute's tokens are other ones another time
        told.append(found)
    if options.out is not None:
        with quiet():
            saved = to_hf(model, options.out, tokenizer)
        results["saved"] = saved.to_dict()
        told.append(saved)
        if training is not None and "checkpoint" in training:
            remove(training["checkpoint"])
    emit(options, results, "\n\n".join(map(str, told)))
    return DONE if tuned is None or tuned.complete else FAILED


def _resized(options: argparse.Namespace, command: str) -> int:
    """The same for a vision model and another image size."""
    from posenc.pretrained.vision.resize import resize

    for name in ("option", "text", "verify_tokens", "finetune"):
        if getattr(options, name):
            raise InputError(f"{flag_of(name)}: is for language models, leave it out beside --image-size")
    _training(options)  # what belongs to --finetune is refused without it
    sides = options.image_size.lower().split("x")
    if not 1 <= len(sides) <= 2 or not all(side.isdecimal() and len(side) < 10 for side in sides):
        raise InputError(f"--image-size {options.image_size}: write pixels, as 384 or 384x512 (height x width)")
    size = tuple(map(int, sides)) if len(sides) == 2 else int(sides[0])
    _check_out(options.out)
    model, _ = read_model(options)
    report = resize(model, size, window_size=options.window_size, method=options.method, verify=options.verify)
    told = [str(report)]
    if options.out is not None:
        with quiet():
            model.save_pretrained(options.out)
        told.append(f"saved to {options.out}: transformers.{type(model).__name__}.from_pretrained loads it")
    return emit(options, {"command": command, "model": options.model, "resizing": report.to_dict()}, "\n\n".join(told))


def _check_out(out: str | None) -> None:
    """Refuse a folder that a model cannot be written to."""
    from posenc.files import Folder

    if out is not None and not out.isprintable():  # tokenizers writes to no path that is not Unicode
        raise InputError(f"--out {out!r}: has characters that cannot be shown; name another folder")
    if out is not None and any(Folder(out).directory.iterdir()):
        raise InputError(f"--out {out}: has something in it; name a new folder")


def _options(written: Sequence[str]) -> dict[str, Any]:
    for item in written:
        if not item.partition("=")[1]:
            raise InputError(f"--option {item}: write key=value")
    return {key: literal(value) for key, _, value in (item.partition("=") for item in written)}


def _training(options: argparse.Namespace) -> dict[str, Any] | None:
    """What was said on fine-tuning; None: it is not wanted."""
    names = [flag.removeprefix("--").replace("-", "_") for flag, _, _ in FINETUNING]
    given = {name: getattr(options, name) for name in names if hasattr(options, name)}
    if options.finetune is None:
        if given:
            raise InputError(f"{flag_of(next(iter(given)))}: is for fine-tuning, give --finetune FILE with it")
        return None
    _read(options.finetune, "--finetune")  # before anything is loaded
    if options.verify and options.text is not None and Path(options.text).resolve() == Path(options.finetune).resolve():
        raise InputError(f"--text {options.text}: the model is trained on it; give another, which it has not seen")
    return given


def _before_and_after(
    options: argparse.Namespace,
    text: str | None,
    model: Any,
    tokenizer: Any,
    report: Any,
    extended: Callable[[], object],
    shown: Any,
) -> "Verifier":
    """Read the text with the model as it was loaded, and again extended."""
    from posenc.pretrained.extend import restore
    from posenc.pretrained.learned_table import has_learned_table
    from posenc.pretrained.verify import AS_LOADED, EXTENDED, verifier
    from posenc.tasks.haystack import pydoc

    restore(model)
    wanted = report.new_length or 2 * report.trained_length
    text = pydoc() if text is None else text
    name = options.text or "the language reference in Python's standard library"
    reader = verifier(model, tokenizer, name, text, wanted, options.verify_tokens)
    ends = reader.past_training and has_learned_table(model)  # there is no row for what comes next
    arms = [*([] if ends else [AS_LOADED]), *([reader.cut] if reader.past_training else []), EXTENDED]
    for index, arm in enumerate(arms):
        if arm == EXTENDED:
            extended()
        reader.read(arm, model, shown.counter(arm))
        shown.line(index + 1, len(arms), f"{arm}, {len(reader.ids)} tokens")
    return reader


def _finetuned(model: Any, tokenizer: Any, file: str, training: dict[str, Any], shown: Any) -> "Finetuning":
    from posenc.pretrained.finetune import finetune

    told = shown.counter("fine-tuning")
    steps = int(training.get("steps", signature(finetune).parameters["steps"].default))
    started, last, first = time.perf_counter(), [0.0], list[int]()

    def progress(step: int, loss: float) -> None:
        first[:] = first or [step - 1]  # those of an earlier command
        told(step, steps, f"fine-tuning, loss {loss:.3f}")
        now = time.perf_counter() - started
        if step == steps or now - last[0] >= LINE_SECONDS:
            last[0] = now
            left = now * (steps - step) / (step - first[0])
            shown.line(step, steps, f"fine-tuning, loss {loss:.3f}", left)

    return finetune(model, _read(file, "--finetune"), tokenizer, **training, progress=progress)


def _read(path: str, argument: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{argument} {path}: {error.strerror}; give a readable text file") from None
