"""Pages that are written for GitHub, made to say the same on the site."""

import os
import re
from pathlib import Path

from website.page import DOCS, ROOT

LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
BLOCK, CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL), re.compile(r"(`[^`]+`)")
NO_TAG = re.compile(r"<(?!!--|https?:|/?(?:div|figure|figcaption|details|summary|a|img|br|sub|sup|kbd)\b)")
"""What opens no element that these pages have: <q, k> is a product."""


def for_site(text: str, page: Path) -> str:
    """The text of a page of docs/ with links out of docs/ led to where the site has the same, and no < that would be
    taken for an element.

    Raises:
        ValueError: a link to nothing, or to something that the site does not have.
    """

    def prose(part: str) -> str:
        words = CODE.split(LINK.sub(lambda found: _link(found, page), part))
        return "".join(word if word.startswith("`") else NO_TAG.sub("&lt;", word) for word in words)

    return "".join(part if part.startswith("```") else prose(part) for part in BLOCK.split(text))


def _link(found: re.Match[str], page: Path) -> str:
    opening, target, anchor, closing = found.groups(default="")
    if re.match(r"[a-z]+:", target):
        return found[0]
    path = (page.parent / target).resolve()
    if not path.exists():
        raise ValueError(f"{page.relative_to(ROOT)}: the link to {target} leads nowhere")
    if path.is_relative_to(DOCS):
        return found[0]
    return opening + Path(os.path.relpath(DOCS / _in_site(path, page), page.parent)).as_posix() + anchor + closing


def _in_site(path: Path, page: Path) -> str:
    """Where the site has a file of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.md"
    if name.startswith("benchmarks"):
        return name if path.suffix == ".json" else "results.md"
    if name.startswith("examples"):
        return f"{path.with_suffix('').relative_to(ROOT).as_posix()}.md" if path.is_file() else "examples.md"
    if path.parent == ROOT and path.is_file():
        return f"project/{path.stem.lower()}.md"
    raise ValueError(f"{page.relative_to(ROOT)}: links to {name}, which the site does not have")
