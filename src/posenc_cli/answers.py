# SPDX-License-Identifier: Apache-2.0
"""What the program answers without torch: help, list, cite, completion and mistakes, from table.json."""

import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from posenc_cli.arguments import INDENT, Described, Mistake, Parser, check_required, columns, given, laid_out, mistyped
from posenc_cli.names import nearest, unknown_name

DONE, FAILED, USAGE, NOT_RUN = 0, 1, 2, 3
SHELLS = ("bash", "zsh", "fish")
COMPLETION = """\
usage: posenc completion SHELL

Print the script with which a shell completes commands, options and names, of encodings too. SHELL is bash, zsh or fish.

examples:
  bash:  posenc completion bash > ~/.local/share/bash-completion/completions/posenc
  zsh:  posenc completion zsh > ~/.zfunc/_posenc, where ~/.zfunc is in $fpath before compinit
  fish:  posenc completion fish > ~/.config/fish/completions/posenc.fish"""
CODES = "Exit codes: 0 done; 1 failed, interrupted, or a problem was found; 2 bad usage; 3 the function that conform tests could not be run."  # fmt: skip


def prepare_streams() -> None:
    """A terminal that cannot show ± shows ?."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


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
    commands = table()["commands"]
    name, rest = (words[0], list(words[1:])) if words else ("", [])
    if name == "help" and rest:
        name, rest = rest[0], ["--help"]
    if name == "completion":
        return _completion(rest)
    if name not in commands:
        return _without_command(words)
    described = Described.from_json(name, commands[name])
    values = given(described, rest)
    if "config" not in values:
        check_required(described, values)
    if message := mistyped(described, values, table()["known"]):
        raise Mistake(message)
    if name in ("list", "cite") and not values.keys() & {"config", "print_config", "out"}:
        from posenc_cli.listing import answered

        return answered(name, values, table())
    return None


def _completion(rest: Sequence[str]) -> int:
    if "--help" in rest or "-h" in rest:
        print(laid_out(COMPLETION, columns()))
        return DONE
    if len(rest) != 1 or rest[0] not in SHELLS:
        near = nearest(rest[0], SHELLS) if rest else []
        message = unknown_name("shell", rest[0], SHELLS, near) if len(rest) == 1 else "name one shell, as in: posenc completion bash"  # fmt: skip
        raise Mistake(message)
    print((Path(__file__).parent / f"completion.{rest[0]}").read_text(encoding="utf-8"), end="")
    return DONE


def _without_command(words: Sequence[str]) -> int:
    """posenc --help, posenc --version, and errors."""
    commands = table()["commands"]
    if words == ["--version"]:
        from posenc_version import version

        print(f"posenc {version()}")
        return DONE
    if words and not words[0].startswith("-"):
        known = [*commands, "completion"]
        raise Mistake(unknown_name("command", words[0], known, nearest(words[0], known)))
    about = {name: data["about"].splitlines()[0] for name, data in commands.items()}
    about["completion"] = "Print the script with which bash, zsh or fish completes commands, options and names."
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
        epilog=f"posenc COMMAND --help shows examples and all options of a command.\n{CODES}",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.parse_args(words)
    parser.print_help()
    return USAGE


@cache
def table() -> dict[str, Any]:
    """What table.json has: "commands", "known" names, and the rows of `posenc list`."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "table.json").read_text(encoding="utf-8"))
    return found
