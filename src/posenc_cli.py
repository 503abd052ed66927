# SPDX-License-Identifier: Apache-2.0
"""The program `posenc`. It is no part of the package posenc, whose import takes seconds: `posenc --version` does without."""

import sys

from posenc_version import version


def main() -> int:
    """Run one command; returns the exit code."""
    if sys.argv[1:] == ["--version"]:
        print(f"posenc {version()}")
        return 0
    from posenc.cli import main

    return main()
