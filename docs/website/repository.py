# SPDX-License-Identifier: Apache-2.0
"""What the site has of files outside docs/: copies of examples and results, and pages of the project's own texts."""

from pathlib import Path

from website.markdown import COPIED, for_site, place
from website.page import ROOT, Page, heading

LICENCE = ROOT / "LICENSE"


def files() -> list[Path]:
    """The licence, the examples, and the committed results with their tables and programs, which pages link to."""
    found = (path for name in ("benchmarks", "examples") for path in (ROOT / name).rglob("*") if path.suffix in COPIED)
    return [LICENCE, *sorted(path for path in found if path.is_file())]


def project() -> list[Page]:
    """The texts beside the README: how to contribute, changes, security."""
    pages = []
    for path in sorted(ROOT.glob("*.md")):
        where = place(path)
        if where is not None and where != Path("index.md"):
            pages.append(Page(where.as_posix(), heading(path), for_site(path.read_text(encoding="utf-8"), path)))
    return pages
