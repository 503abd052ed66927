# SPDX-License-Identifier: Apache-2.0
"""Pages that are written for GitHub, made to say the same on the site."""

import os
import re
from pathlib import Path

from website.page import DOCS, ROOT

LINK = re.compile(r"\[([^\[\]]*(?:\[[^\[\]]*\]\([^()]*\))?[^\[\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
"""A link, whose text may hold an image, or an image."""
BLOCK, CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL), re.compile(r"(`[^`]+`)")
NO_TAG = re.compile(r"<(?!!--|https?:|/?(?:div|figure|figcaption|details|summary|a|img|br|sub|sup|kbd)\b)")
"""What opens no element that these pages have: <q, k> is a product."""


def for_site(text: str, page: Path) -> str:
    """The text of one of the repository's pages with links that hold where the site has it, or give way to their text
    where it lacks what they lead to, and no < that would be taken for an element.

    Raises:
        ValueError: a link to nothing.
    """

    def prose(part: str) -> str:
        words = CODE.split(LINK.sub(lambda found: _link(found, page), part))
        return "".join(word if word.startswith("`") else NO_TAG.sub("&lt;", word) for word in words)

    return "".join(part if part.startswith("```") else prose(part) for part in BLOCK.split(text))


def place(path: Path) -> Path | None:
    """Where the site's Markdown has a file of the repository; None: nowhere."""
    name = path.relative_to(ROOT)
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    if name.as_posix() in ("README.md", "README.zh.md"):
        return Path("index.md")
    if name.parts[0] == "benchmarks":
        return name if path.suffix in (".json", ".md") else Path("results.md")
    if name.parts[0] == "examples":
        return name.with_suffix(".md") if path.is_file() else Path("examples.md")
    if path.parent == ROOT and (path.suffix == ".md" or path.name == "LICENSE"):
        return Path("project", f"{path.stem.lower()}.md")
    return None


def _link(found: re.Match[str], page: Path) -> str:
    text, target, anchor = found.groups(default="")
    if re.match(r"[a-z]+:", target):
        return found[0]
    path, here = (page.parent / target).resolve(), place(page)
    if not path.exists():
        raise ValueError(f"{page.relative_to(ROOT)}: the link to {target} leads nowhere")
    text = LINK.sub(lambda inner: _link(inner, page), text)
    there = place(path)
    if there is None or here is None:
        return text
    return f"[{text}]({Path(os.path.relpath(there, here.parent)).as_posix()}{anchor})"
