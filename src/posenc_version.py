# SPDX-License-Identifier: Apache-2.0
"""posenc's version, without importing it. Between releases the commit belongs to it, where git knows it: 1.1.0.dev0+g1a2b3c4d5."""

import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

VERSION = "1.1.0.dev0"


@cache
def version() -> str:
    """In a clone `VERSION` and the commit; elsewhere what was installed, whose wheel has the commit that it was built from."""
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file():
        return VERSION + (_commit(root) if ".dev" in VERSION else "")
    try:
        return installed("posenc")
    except PackageNotFoundError:  # a copy of the files
        return VERSION


def _commit(root: Path) -> str:
    """ "+g1a2b3c4d5"; "" without git, or where the folder is in no clone."""
    if not (root / ".git").exists():
        return ""
    try:
        line = ["git", "-C", str(root), "rev-parse", "--short=9", "HEAD"]
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"+g{done.stdout.strip()}"
