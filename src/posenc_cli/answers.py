# SPDX-License-Identifier: Apache-2.0
"""What the program answers without torch: help, list, completion and mistakes, from the table."""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from posenc_cli.arguments import INDENT, Described, Mistake, Parser, check_model, check_required, given, mistyped
from posenc_cli.cached import table
from posenc_cli.completion import SCRIPTS, proposals
from posenc_cli.left import instead
from posenc_cli.names import nearest, unknown_name

DONE, FAILED, USAGE, NOT_RUN = 0, 1, 2, 3
SHELLS = "bash, zsh or fish"
LINES = 'eval "$(posenc --print-completion bash)" in ~/.bashrc, the same with zsh in ~/.zshrc, posenc --print-completion fish | source in config.fish'
CODES = "Exit codes: 0 done; 1 failed, interrupted, or a problem was found; 2 bad usage; 3 the function that is checked could not be run."  # fmt: skip


def prepare_streams() -> None:
    """A terminal that cannot show ± shows ?."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """A line on a terminal for as long as something slow goes on."""
    shown = sys.stderr is not None and sys.stderr.isatty()
    if shown:
        print(f"{words} ...", end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print(" " * len(f"{words} ..."), end="\r", file=sys.stderr, flush=True)


def output_failed(error: OSError, command: str) -> int:
    """After a failed write nothing more is written, not even when Python exits; a reader that has left is no mistake."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        print(f"{command}: failed: {' '.join(str(error).split())}", file=sys.stderr)
    return FAILED


def answer(words: Sequence[str]) -> int | None:
    """Print what needs no torch, and give the exit code; None: nothing is printed, the command has to run.

    Raises:
        Mistake: bad usage.
        SystemExit: after printing a command's help.
    """
    if list(words) == ["--version"]:
        from posenc_version import version

        print(f"posenc {version()}")
        return DONE
    commands = table()["commands"]
    name, rest = (words[0], list(words[1:])) if words else ("", [])
    if name == "help" and rest:
        if rest[0] not in commands:
            raise Mistake(instead(rest[0]) or unknown_name("command", rest[0], commands, nearest(rest[0], commands)))
        name, rest = rest[0], ["--help"]
    if name not in commands:
        return _without_command(words)
    described = Described.from_json(name, commands[name])
    values = given(described, rest)
    if "config" not in values:
        check_required(described, values)
    if message := mistyped(described, values, table()["known"]):
        raise Mistake(message)
    if "print_config" not in values:
        check_model(values.get("model"))
    if name == "list" and not values.keys() & {"config", "print_config", "out"}:
        from posenc_cli.listing import answered

        return DONE if answered(values, table()) else None
    return None


def _completion(rest: Sequence[str]) -> int:
    """posenc --print-completion SHELL."""
    if len(rest) != 1:
        raise Mistake(f"name one shell, {SHELLS}, as in: posenc --print-completion bash")
    if rest[0] not in SCRIPTS:
        raise Mistake(unknown_name("shell", rest[0], SCRIPTS, nearest(rest[0], SCRIPTS)))
    print(SCRIPTS[rest[0]], end="")
    return DONE


def _without_command(words: Sequence[str]) -> int:
    """posenc --help, what shells ask, and errors."""
    commands = table()["commands"]
    if words and words[0] == "help":
        words = ["--help"]
    if words and words[0] == "--print-completion":
        return _completion(words[1:])
    if words and words[0] == "--complete":
        print("\n".join(proposals(words[1:], table())))
        return DONE
    if words and not words[0].startswith("-"):
        raise Mistake(instead(words[0]) or unknown_name("command", words[0], commands, nearest(words[0], commands)))
    about = {name: data["about"].splitlines()[0] for name, data in commands.items()}
    width = max(map(len, about))
    lines = [f"{INDENT}{name:{width}}  {text}" for name, text in about.items()]
    examples = [data["examples"][0] for data in commands.values() if data["examples"]][:4]
    parser = Parser(
        prog="posenc",
        usage="posenc COMMAND ...",
        description="Compare, extend and measure positional encodings.\n\nexamples:\n"
        + "\n".join(INDENT + each for each in examples)
        + "\n\ncommands:\n"
        + "\n".join(lines),
        epilog=f"posenc help COMMAND shows examples and the options of a command.\n{CODES}",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.add_argument(
        "--print-completion", metavar="SHELL", help=f"print what {SHELLS} reads to complete words: {LINES}"
    )
    parser.parse_args(words)
    parser.print_help()
    return USAGE
