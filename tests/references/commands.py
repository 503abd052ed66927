"""posenc's commands, called in this process."""

from typing import Any

from posenc import cli


def run(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err
