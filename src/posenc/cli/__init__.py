# SPDX-License-Identifier: Apache-2.0
"""The command line. Exit codes: 0 done, 1 failed or interrupted, 2 bad usage; a user's mistake is one line."""

import argparse
import io
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from typing import Any, NoReturn

from posenc import __version__
from posenc.cli.analyze import add_analyze
from posenc.cli.bench import add_bench
from posenc.cli.catalogue import add_cite, add_list
from posenc.cli.common import FAILED, USAGE, HelpFormatter
from posenc.cli.compare import add_compare
from posenc.cli.config import add_config, parse
from posenc.cli.conform import add_conform
from posenc.cli.diff import add_diff
from posenc.cli.doctor import add_doctor
from posenc.cli.eval import add_eval
from posenc.cli.explore import add_explore
from posenc.cli.extend import add_extend
from posenc.cli.refusal import check_arguments, nothing_empty, one_line
from posenc.errors import InputError, unknown

COMMANDS: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
    "list": (add_list, "Every encoding, schedule, method and task: what it is, its paper, its options."),
    "compare": (
        add_compare,
        "Train the same small Transformer with each encoding and test it past its training length.",
    ),
    "analyze": (add_analyze, "Say and show what an encoding, a function of yours or a model does with positions."),
    "extend": (add_extend, "Make a pretrained model read longer texts, or larger images; verify it and save it."),
    "eval": (add_eval, "Measure what a pretrained model finds in long texts, as it is and extended."),
    "doctor": (add_doctor, "Say what a pretrained model's positions are, and what is wrong with them."),
    "conform": (add_conform, "Hold a function of yours against the authors' formulas and say what is wrong."),
    "diff": (add_diff, "Two frequency schedules of RoPE side by side: what each does to every pair of channels."),
    "bench": (add_bench, "Measure speed and memory against the packages installed here."),
    "explore": (add_explore, "Write the interactive page: every encoding and extension, computed in the browser."),
    "cite": (add_cite, "BibTeX of an encoding's papers."),
}


class _Parser(argparse.ArgumentParser):
    """Takes a flag's whole name alone: what is short for one today may be short for two tomorrow."""

    def __init__(self, **said: Any) -> None:
        super().__init__(**said, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def build(name: str, add_help: bool = True) -> argparse.ArgumentParser:
    """The parser of one command."""
    add, text = COMMANDS[name]
    parser = _Parser(prog=f"posenc {name}", description=text, formatter_class=HelpFormatter, add_help=add_help)
    add(parser)
    add_config(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Of the processes of a launcher, the first alone prints."""
    try:
        if os.environ.get("RANK", "0") == "0":
            return _main(argv)
        with open(os.devnull, "w", encoding="utf-8") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
            return _main(argv)
    finally:
        if argv is None:  # Ctrl-C while Python ends is its end at once, not a traceback of what cleans up
            with suppress(ValueError):  # in another thread than the first
                signal.signal(signal.SIGINT, signal.SIG_DFL)


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ± shows ?
    parser = _Parser(
        prog="posenc",
        description="Positional encodings, compared, extended and measured.",
        epilog="posenc COMMAND --help says what a command takes. Exit code 0: done; 1: stopped, or something was found "
        "wrong; 2: refused.",
    )
    parser.add_argument("--version", action="version", version=f"posenc {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, (_, help_text) in COMMANDS.items():
        commands.add_parser(name, help=help_text)
    named = f"posenc {arguments[0]}" if arguments and arguments[0] in COMMANDS else "posenc"
    try:
        if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
            raise unknown("command", arguments[0], COMMANDS)
        check_arguments(arguments)
        if not arguments or arguments[0] not in COMMANDS:
            parser.parse_args(arguments)
            parser.print_help()
            return USAGE
        options = parse(partial(build, arguments[0]), arguments[1:])
        options.command, options.typed = arguments[0], shlex.join(["posenc", *arguments])
        run: Callable[[argparse.Namespace, str], int] = options.run
        with nothing_empty([out] if (out := getattr(options, "out", None)) else []):
            code = run(options, options.typed)
        if sys.stdout is not None:  # it was closed by whoever called us
            sys.stdout.flush()
        return code
    except InputError as error:
        print(f"{named}: error: {one_line(error)}", file=sys.stderr)
        return USAGE
    except OSError as error:
        with suppress(OSError, AttributeError):  # nothing more goes there, nor is it tried again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # whoever read our output has left
            print(f"{named}: failed: {one_line(error)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"{named}: interrupted", file=sys.stderr)
        return FAILED
    except MemoryError:
        print(f"{named}: failed: out of memory; ask for less, or on a machine with more", file=sys.stderr)
        return FAILED
    except RuntimeError as error:
        print(f"{named}: failed: {one_line(error)}", file=sys.stderr)
        return FAILED
