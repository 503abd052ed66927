# SPDX-License-Identifier: Apache-2.0
"""The command line. Exit codes: 0 done, 1 failed or interrupted, 2 bad usage, 3 what conform tests could not be
run; an error of the user's is one line."""

from posenc.cli.commands import COMMANDS, main

__all__ = ["COMMANDS", "main"]
