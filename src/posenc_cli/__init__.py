# SPDX-License-Identifier: Apache-2.0
"""The program `posenc`. It is no part of the package posenc, whose import takes seconds: help, list, cite, completion and
mistakes are answered from table.json, which `python -m website.commands` in docs/ makes of the code."""

from posenc_cli.program import main

__all__ = ["main"]
