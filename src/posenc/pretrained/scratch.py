# SPDX-License-Identifier: Apache-2.0
"""Temporary folders, and files and folders that appear completely or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = ".posenc-"


@contextmanager
def scratch(beside: str | Path | None = None) -> Iterator[Path]:
    """A new folder, removed at the end. beside: the folder to make it in; by default the system's for temporary files."""
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=beside, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path for a new file or folder. At the end it takes the target's place in one step: a reader, or a crash at any moment,
    sees the old content or the new one. A folder can only replace an empty one.

    Raises:
        OSError: the old content is still there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch(target.parent) as folder:
        made = folder / target.name
        yield made
        os.replace(made, target)
