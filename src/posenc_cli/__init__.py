# SPDX-License-Identifier: Apache-2.0
"""The program `posenc`. It is no part of the package posenc, whose import takes seconds: help, list, completion and
mistakes are answered from a table that is made of the code, see `posenc_cli.cached`."""

from posenc_cli.program import main

__all__ = ["main"]
