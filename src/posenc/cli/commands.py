# SPDX-License-Identifier: Apache-2.0
"""The commands by name, and the program that runs one of them."""

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from posenc.cli.analyze_command import Analyze
from posenc.cli.bench_command import Bench
from posenc.cli.check_command import Check
from posenc.cli.command import Command, parse, with_flags
from posenc.cli.common import one_line, remove_empty_dirs
from posenc.cli.compare_command import Compare
from posenc.cli.doctor_command import Doctor
from posenc.cli.eval_command import Eval
from posenc.cli.explore_command import Explore
from posenc.cli.extend_command import Extend
from posenc.cli.list_command import List
from posenc.errors import InputError, import_failed
from posenc.lab.messages import TRACEBACK, located, users_line
from posenc.pretrained.stopping import terminable
from posenc_cli.answers import DONE, FAILED, USAGE, answer, output_failed, prepare_streams
from posenc_cli.arguments import Mistake, check_model

COMMANDS: dict[str, type[Command]] = {
    "list": List,
    "compare": Compare,
    "analyze": Analyze,
    "extend": Extend,
    "eval": Eval,
    "doctor": Doctor,
    "check": Check,
    "bench": Bench,
    "explore": Explore,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        return _main(argv)
    finally:
        if argv is None:  # Ctrl-C while Python exits ends it at once, without a traceback of what cleans up
            with suppress(ValueError):  # in another thread than the first
                signal.signal(signal.SIGINT, signal.SIG_DFL)


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    command = COMMANDS.get(arguments[0]) if arguments else None
    prog = f"posenc {arguments[0]}" if command else "posenc"

    def say(what: str, error: object = None) -> None:
        if isinstance(error, BaseException) and os.environ.get(TRACEBACK, "0") not in ("", "0"):
            traceback.print_exception(error, file=sys.stderr)
        print(f"{prog}: {what}", file=sys.stderr)

    try:
        if command is None:
            return answer(arguments) or DONE
        options = parse(command, arguments[1:], shlex.join(["posenc", *arguments]))
        check_model(getattr(options, "model", None))
        with terminable(), remove_empty_dirs(getattr(options, "out", None)):
            options.check_out()
            code = options.run()
        if sys.stdout is not None:  # the caller may have closed it
            sys.stdout.flush()
        return code
    except InputError as error:
        say(f"error: {one_line(with_flags(error, command) if command else error)}", error)
        return USAGE
    except Mistake as error:
        say(f"error: {one_line(error)}", error)
        return USAGE
    except OSError as error:
        return output_failed(error, prog)
    except KeyboardInterrupt:
        say("interrupted")
    except MemoryError as error:
        say("failed: out of memory; use smaller sizes, or a machine with more memory", error)
    except Exception as error:
        line = users_line(error)
        if line is None and (why := import_failed(error)) is not None:
            say(f"failed: {one_line(why)}", error)
            return FAILED
        if line is None and not isinstance(error, RuntimeError):
            raise  # a bug of ours
        say(f"failed: {one_line(error if line is None else located(error))}", error)
    return FAILED
