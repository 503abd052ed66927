# SPDX-License-Identifier: Apache-2.0
"""posenc's version, without importing it. Between releases the commit belongs to it, where git knows it, and whether files
differ from the commit: 2.0.0.dev0+g1a2b3c4d5, 2.0.0.dev0+g1a2b3c4d5.dirty."""

import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

VERSION = "2.0.0.dev0"


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
    """ "+g1a2b3c4d5", with ".dirty" where src has other files than the commit; "" without git, or where the folder is in no
    clone."""
    if not (root / ".git").exists():
        return ""
    try:
        commit = _git(root, "rev-parse", "--short=9", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", "src")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"+g{commit}.dirty" if changed else f"+g{commit}"


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
