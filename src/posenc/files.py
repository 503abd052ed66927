"""Folders of results: every file is written whole or not at all."""

import os
from pathlib import Path

from posenc.errors import InputError


class Folder:
    """A folder to write results into, made if it is missing.

    Raises:
        InputError: it cannot be made or written.
    """

    def __init__(self, directory: str | Path) -> None:
        if not str(directory):
            raise InputError("--out '': name a folder")
        self.directory = Path(directory)
        probe = self.directory / f".probe-{os.getpid()}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise InputError(f"--out {directory}: {error.strerror}; give a folder that can be written") from None

    def write(self, name: str, text: str) -> Path:
        """Write a file whole: readers see the old one or the new one."""
        path = self.directory / name
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(exist_ok=True)
            scratch.write_text(text, encoding="utf-8", errors="backslashreplace")
            os.replace(scratch, path)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise InputError(
                f"--out {self.directory}: {error.strerror} while writing {name}; free space or give another folder"
            ) from None
        return path
