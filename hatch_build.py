# SPDX-License-Identifier: Apache-2.0
"""What a build makes: the addresses and README that an index shows, once the repository has an address, and the table that the
program answers from without torch."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURES = (".svg", ".png", ".gif")


class CustomMetadataHook(MetadataHookInterface):
    """Reads REPOSITORY_URL, as in https://github.com/OWNER/posenc, and SITE_URL, where the built documentation is."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository, site = (os.environ.get(name, "").rstrip("/") for name in ("REPOSITORY_URL", "SITE_URL"))
        if repository:
            text = absolute(text, repository)
            metadata["urls"] = {
                "Source": repository,
                "Documentation": site or f"{repository}/blob/HEAD/docs/index.md",
                "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class CustomBuildHook(BuildHookInterface[Any]):
    """Puts table.json into a wheel. In an environment without torch, as pip's isolated ones are, the wheel is built without it,
    and makes it at first use; `python -m hatchling build` in an environment with torch makes it here."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard" or importlib.util.find_spec("torch") is None:
            return
        self.made = tempfile.TemporaryDirectory()
        path = Path(self.made.name) / "table.json"
        code = (
            "import json, sys; from posenc_cli.cached import made; json.dump(made(), open(sys.argv[1], 'w'), indent=1)"
        )
        paths = os.pathsep.join([str(Path(self.root) / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        subprocess.run([sys.executable, "-c", code, path], check=True, env={**os.environ, "PYTHONPATH": paths})
        build_data["force_include"][str(path)] = "posenc_cli/table.json"


def absolute(text: str, repository: str) -> str:
    """Markdown whose links and pictures are relative to the repository, with their addresses; #sections remain."""

    def complete(found: re.Match[str]) -> str:
        before, target = found.groups()
        if re.match(r"#|[a-z]+:", target):
            return found[0]
        return f"{before}{repository}/{'raw' if target.endswith(PICTURES) else 'blob'}/HEAD/{target}"

    return re.sub(r"(\]\(|\b(?:src|srcset|href)=\")([^)\"\s]+)", complete, text)
