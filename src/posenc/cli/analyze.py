# SPDX-License-Identifier: Apache-2.0
"""posenc analyze."""

import argparse
import json
import os
import re
import shutil
import textwrap
import time
from typing import TYPE_CHECKING, Any

from posenc.cli.common import DONE, TableFormatter, add_output, check_sizes, load_model
from posenc.cli.config import record
from posenc.errors import InputError, printable, unknown

if TYPE_CHECKING:
    from posenc.analysis.analyze import Analysis

WIDEST = 100
"""Characters of a line, where the terminal has room for them."""
SIZES = {"trained": (1, 2**20), "dim": (1, 2**14), "heads": (1, 1024), "head_dim": (1, 2**12), "steps": (0, 10**6)}


def add_analyze(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = TableFormatter
    parser.epilog = (
        "NAME is an encoding as `posenc list` shows it, with options after colons (rope:rope_theta=500), a position map\n"
        "after @ (rope@rerope:window=64) and several joined by +. MODULE:OBJECT is of yours: a function from (n,)\n"
        "positions to (n, dim) vectors, an Encoding or a class of one, or a table; MODULE may be a path to a .py file.\n"
        "MODEL is what `posenc extend` takes, or a folder with an encoder such as BERT."
    )
    add = parser.add_argument
    add("subject", metavar="NAME|MODULE:OBJECT|MODEL", help="what to analyse (below)")
    add("--length", type=int, metavar="N", default=512, help="positions to look at")
    add("--trained", type=int, metavar="N", help="trained length (default: a model's own, else --length)")
    add("--dim", type=int, metavar="N", help="width of the model's input (default: an object's own, else 64)")
    add("--heads", type=int, metavar="N", help="attention heads (default: an object's own, else 4)")
    add("--head-dim", type=int, metavar="N", help="width of a head (default: an object's own, else 64)")
    add("--steps", type=int, metavar="N", default=120, help="of the small model trained on the spot; 0: none is")
    add(
        "--dtypes",
        nargs="+",
        metavar="DTYPE",
        default=["bfloat16", "float16"],
        help="whose phase errors are measured (default: bfloat16 float16)",
    )
    add("--seed", type=int, metavar="N", default=0, help="of whatever is drawn")
    add_output(parser, also="and a page with figures, report.html,")
    parser.set_defaults(run=run_analyze)


def run_analyze(options: argparse.Namespace, command: str) -> int:
    from posenc.analysis.analyze import analyze
    from posenc.analysis.subject import subject_of
    from posenc.files import Folder
    from posenc.pretrained.load import needs
    from posenc.report.analysis import page, results
    from posenc.report.terminal import ShowsProgress
    from posenc.spec import printing_to_stderr

    needs("matplotlib", "lab")
    check_sizes(options, **SIZES)
    if options.out:
        options.out = os.path.abspath(options.out)  # the analysed code may change the folder
    shape = {"dim": options.dim, "num_heads": options.heads, "head_dim": options.head_dim}
    shape = {name: size for name, size in shape.items() if size is not None}
    started = time.perf_counter()
    with (
        printing_to_stderr(),
        ShowsProgress(options.out or ".") as shown,
    ):  # what the analysed code prints is not our answer
        thing, tokenizer = _found(options)
        subject = subject_of(
            thing,
            length=options.length,
            trained=options.trained,
            steps=options.steps,
            seed=options.seed,
            name=_name(options.subject),
            tokenizer=tokenizer,
            dtypes=options.dtypes,
            **shape,
        )
        folder = None if options.out is None else Folder(options.out)  # nothing is made for a subject that is wrong
        if folder is not None:
            record(folder, options)
        task = shown.bar.add_task("", total=None)

        def asked(title: str, done: int, count: int) -> None:
            shown.bar.update(task, description=title, completed=done, total=count)

        found = analyze(subject, progress=asked)
        numbers = results(found, command, time.perf_counter() - started)
        html = "" if folder is None else page(found, numbers, subject)
    if folder is not None:
        folder.write("analysis.json", json.dumps(numbers, indent=1))
        folder.write("report.html", html)
    print(json.dumps(numbers, indent=1) if options.json else printable(text(found, folder)))
    return DONE


def text(analysis: "Analysis", folder: Any = None) -> str:
    """The sentences section by section, what does not apply, and where the page is."""
    lines = [analysis.subject, *(["", *textwrap.wrap(analysis.note, _width())] if analysis.note else [])]
    for section in analysis.sections:
        lines += ["", section.title, *(_wrapped(sentence) for sentence in section.finding.sentences())]
    if analysis.left_out:
        lines += [
            "",
            "What does not apply",
            *(_wrapped(f"{' '.join(titles)} {why}") for why, titles in analysis.reasons.items()),
        ]
    if folder is not None:
        files = ("Report", "report.html"), ("Numbers", "analysis.json")
        lines += ["", *(f"{what + ':':8} {(folder.directory / name).resolve()}" for what, name in files)]
    return "\n".join(lines)


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, _width(), initial_indent="- ", subsequent_indent="  ")


def _width() -> int:
    return min(WIDEST, shutil.get_terminal_size((WIDEST, 0)).columns)


def _name(given: str) -> str:
    """What sentences call it: of a model's folder or file the last part."""
    from posenc.pretrained.load import path_of

    path = path_of(given)
    return path.resolve().name if path.exists() else given


def _found(options: argparse.Namespace) -> tuple[Any, Any]:
    """What the words stand for, and a model's tokenizer."""
    from posenc.encodings import ENCODINGS
    from posenc.pretrained.load import DEMO, path_of
    from posenc.spec import load_object, parse

    given: str = options.subject
    path, (_, colon, attribute) = path_of(given), given.rpartition(":")
    encoding = re.split("[:@+/]", given)[0].strip()
    if encoding in ENCODINGS:
        return given, None
    if not given.strip():
        raise InputError("subject '': name an encoding (posenc list), MODULE:OBJECT or a model")
    if given == DEMO or path.is_dir() or path.suffix == ".gguf":
        return load_model(given, options.command, encoders=True)
    if colon and all(part.isidentifier() for part in attribute.split(".")):
        return load_object(given), None
    if colon and ":" in parse(given).terms[0].name:  # a class with options, or in a sum
        return given, None
    if path.is_file():
        raise InputError(f"{given}: which object in it? Write {given}:NAME")
    if given.startswith(("/", "./", "../", "~")):
        raise InputError(f"{given}: no such file or folder")
    if given.count("/") == 1:
        return load_model(given, options.command, encoders=True)
    raise InputError(f"{unknown('encoding', encoding, ENCODINGS)}; or write MODULE:OBJECT, or name a model")
