# SPDX-License-Identifier: Apache-2.0
"""What an index shows of posenc: its addresses, and README with complete links, once the repository has an address."""

import os
import re
from pathlib import Path
from typing import Any

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


def absolute(text: str, repository: str) -> str:
    """Markdown whose links and pictures are relative to the repository, with their addresses; #sections remain."""

    def complete(found: re.Match[str]) -> str:
        before, target = found.groups()
        if re.match(r"#|[a-z]+:", target):
            return found[0]
        return f"{before}{repository}/{'raw' if target.endswith(PICTURES) else 'blob'}/HEAD/{target}"

    return re.sub(r"(\]\(|\b(?:src|srcset|href)=\")([^)\"\s]+)", complete, text)
