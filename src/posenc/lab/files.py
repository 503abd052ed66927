# SPDX-License-Identifier: Apache-2.0
"""Files that are written completely or not at all."""

import os
import tempfile
from pathlib import Path

from posenc.errors import InputError
from posenc.pretrained.scratch import replacing


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: a reader, or a crash at any moment, sees the old content or the new one.

    Raises:
        OSError: the old content is still there.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    with replacing(path) as made, made.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class Folder:
    """A folder to write results into, created if it is missing.

    Raises:
        InputError: it cannot be created or written.
    """

    def __init__(self, directory: str | Path) -> None:
        if not str(directory):
            raise InputError("name a folder", directory="")
        self.directory: Path = Path(directory)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise InputError(str(why), "give a folder that can be written", directory=str(directory)) from None

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file, see `write_atomically`."""
        write_atomically(path := self.directory / name, content)
        return path
