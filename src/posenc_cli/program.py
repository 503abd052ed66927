# SPDX-License-Identifier: Apache-2.0
"""The program `posenc`: what needs no torch is answered here, the rest by `posenc.cli`."""

import sys

from posenc_cli.answers import DONE, FAILED, USAGE, answer, output_failed, prepare_streams, waiting
from posenc_cli.arguments import Mistake
from posenc_cli.cached import table
from posenc_cli.names import printable


def main() -> int:
    """Run one command; returns the exit code."""
    words = sys.argv[1:]
    prepare_streams()
    try:
        code = answer(words)
        if sys.stdout is not None:  # the caller may have closed it
            sys.stdout.flush()
    except Mistake as error:
        print(f"{_prog(words)}: error: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return USAGE
    except OSError as error:
        failed = output_failed(error, _prog(words))
        return DONE if isinstance(error, BrokenPipeError) else failed  # an answer of which a reader wanted the start
    except KeyboardInterrupt:
        print(f"{_prog(words)}: interrupted", file=sys.stderr)
        return FAILED
    if code is not None:
        return code
    with waiting(f"{_prog(words)}: importing PyTorch"):
        from posenc.cli import main
    return main()


def _prog(words: list[str]) -> str:
    """What a message begins with."""
    return f"posenc {words[0]}" if words and words[0] in table()["commands"] else "posenc"
