# SPDX-License-Identifier: Apache-2.0
"""Pages that are written for GitHub, made to say the same on the site."""

import os
import re
from html import escape
from pathlib import Path
from textwrap import wrap
from urllib.parse import parse_qsl, urlencode

from posenc.report.explorer import checked
from website import book
from website.page import DOCS, ROOT

LINK = re.compile(r"\[([^\[\]]*(?:\[[^\[\]]*\]\([^()]*\))?[^\[\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
"""A link, whose text may hold an image, or an image."""
PICTURE = re.compile(
    r'<picture><source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)"><img src="([^"]+)"([^>]*)></picture>'
)
BLOCK, CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL), re.compile(r"(`[^`]+`)")
OPENING = {"encodings.md": "encodings/index.md", "encodings.zh.md": "encodings/index.zh.md"}
"""Pages that open a section of generated ones -> its index on the site."""
RUNS = {
    "explore.md": "explorer.html", "predict.md": "predictor.html", "predict.zh.md": "predictor.html#lang=zh",
    "story.md": "story-live.html", "story.zh.md": "story-live.html#lang=zh",
}  # fmt: skip
"""Texts about a page that runs -> that page, which has them below: they have none of their own."""
COPIED = {".md": ".txt", ".json": ".json", ".py": ".py"}
"""Files of benchmarks/ and examples/ that pages link to, and how their copies on the site end: tables stay text."""
EXPLORE = re.compile(r"`posenc explore((?: --\w+ [^\s`]+)*)`")
"""A command whose page the site has."""
COLUMN = 80
"""Characters of code that fit into a page's column."""
LIVE = re.compile(r"^(?:(!\[[^\]]*\]\([^)]*\))\n)?<!-- explorer( instead)?: (\S+) -->$", re.MULTILINE)
"""A comment that stands for a part of the explorer in a state; of an image on the line above: "instead" where both show the same."""
NO_TAG = re.compile(r"<(?!!--|https?:|/?(?:div|figure|figcaption|details|summary|a|img|br|sub|sup|kbd|iframe)\b)")
"""What opens no element that these pages have: <q, k> is a product."""


def for_site(text: str, page: Path) -> str:
    """The text of one of the repository's pages with links that hold where the site has it, or give way to their text
    where it lacks what they lead to, pictures that follow the site's choice of light or dark, and no < that would be taken
    for an element.

    Raises:
        ValueError: a link to nothing.
    """

    def prose(part: str) -> str:
        part = PICTURE.sub(_of_scheme, LIVE.sub(lambda found: _live(found, page), part))
        words = CODE.split(LINK.sub(lambda found: _link(found, page), part))
        text = "".join(word if word.startswith("`") else NO_TAG.sub("&lt;", word) for word in words)
        return EXPLORE.sub(lambda found: _explorer(found, page), text)

    return "".join(fitted(part) if part.startswith("```") else prose(part) for part in BLOCK.split(text))


def _of_scheme(found: re.Match[str]) -> str:
    """A picture for GitHub, which follows the system's setting, as one image for light pages and one for dark ones."""
    dark, light, attributes = found.groups()
    lazy = f'{attributes} loading="lazy"'  # a browser fetches only the one that it shows
    return f'<img src="{light}#only-light"{lazy}><img src="{dark}#only-dark"{lazy} style="background: none">'


def _live(found: re.Match[str], page: Path) -> str:
    """A part of the explorer below an image, or in its place where there are scripts and a screen."""
    image, instead, state = found.groups(default="")
    given = dict(parse_qsl(state, strict_parsing=True))
    checked({name: int(value) if value.isdecimal() else value for name, value in given.items()})
    here = place(page)
    assert here is not None
    source = Path(os.path.relpath("explorer.html", here.parent)).as_posix()
    title = f"The explorer: {given['view']} of {given['encoding']}"
    state += "&lang=zh" if page.name.endswith(".zh.md") else ""
    frame = f'<iframe src="{source}#{escape(state)}" title="{title}" loading="lazy"></iframe>'
    return f'<div class="live{" instead" if instead else ""}" markdown="1">\n\n{image}\n\n{frame}\n\n</div>'


def fitted(block: str) -> str:
    """A block of Python or shell whose long comments stand above their lines, so that none is cut off at the width of the column;
    comments of a change are not aligned."""
    if block.startswith("```diff"):
        return re.sub(r"(\S) {3,}# ", r"\1  # ", block)
    if not block.startswith(("```python", "```py\n", "```sh\n")):
        return block
    lines = []
    for line in block.split("\n"):
        found = re.match(r"(\s*)(.*?\S)?\s{2,}# (.*)$|(\s*)# (.*)$", line) if len(line) > COLUMN else None
        if found is None or (found[2] or "x").strip(")]}") == "":
            lines.append(line)
            continue
        indent, comment = found[1] or found[4] or "", found[3] or found[5]
        lines += wrap(comment, COLUMN, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        lines += [indent + found[2]] if found[2] else []
    return "\n".join(lines)


def title(text: str) -> str:
    """The title that a page gives itself, as text."""
    found = re.search(r"^# (.*)$", text, flags=re.MULTILINE)
    return found[1].replace("`", "") if found else ""


def summary(text: str, most: int = 200) -> str:
    """The first sentences of a page's first paragraph, as text, for search engines and links elsewhere."""
    paragraphs = (each.strip() for each in re.split(r"\n\s*\n", BLOCK.sub("", text)))
    first = next((each for each in paragraphs if re.match(r"[^#<!|\[:{-]", each)), title(text))
    words = re.sub(r"[`*]|&lt;.*?&gt;", "", LINK.sub(lambda found: found[1], " ".join(first.split())))
    cut = words[:most]
    return words if len(words) <= most else cut[: max(cut.rfind(". ") + 1, 0) or cut.rfind(" ")]


def place(path: Path) -> Path | None:
    """Where the site's Markdown has a file of the repository; None: nowhere."""
    name = path.relative_to(ROOT)
    if path.is_relative_to(DOCS):
        found = path.relative_to(DOCS)
        if found.suffix == ".py":
            return None
        return Path((OPENING | RUNS).get(found.as_posix(), found))
    if name.as_posix() in ("README.md", "README.zh.md"):
        return Path("index.md")
    if name.parts[0] in ("benchmarks", "examples") and path.suffix in COPIED:  # a file, and no page
        return name.with_suffix(COPIED[path.suffix])
    if name.parts[0] == "examples" and path.is_dir():
        return Path("examples.md")
    if path.parent == ROOT and (path.suffix == ".md" or path.name == "LICENSE"):
        return Path("project", f"{path.stem.lower()}{path.suffix or '.txt'}")
    return None


def _explorer(found: re.Match[str], page: Path) -> str:
    """A command that writes the explorer, with a link to the site's in that state."""
    here, words = place(page), found[1].split()
    if here is None:
        return found[0]
    asked = {flag[2:]: value for flag, value in zip(words[::2], words[1::2], strict=True)}
    asked |= {"lang": "zh"} if page.name.endswith(".zh.md") else {}
    state = urlencode(asked, safe=":=")
    there = Path(os.path.relpath("explorer.html", here.parent)).as_posix()
    return f'<a href="{there}{"#" if state else ""}{escape(state)}">{found[0]}</a>'


def _link(found: re.Match[str], page: Path) -> str:
    text, target, anchor = found.groups(default="")
    if re.match(r"[a-z]+:", target):
        return found[0]
    path, here = (page.parent / target).resolve(), place(page)
    if not path.exists():
        raise ValueError(f"{page.relative_to(ROOT)}: the link to {target} leads nowhere")
    text = LINK.sub(lambda inner: _link(inner, page), text)
    there = place(path)
    if of_book := book.place(path, anchor):
        there, anchor = Path(of_book[0]), of_book[1]
    if there is None or here is None:
        return text
    if there.suffix == ".txt":
        anchor = ""
    address, _, state = there.as_posix().partition("#")
    if state:  # of a page that runs, which has its language there
        anchor = f"#{state}"
    return f"[{text}]({Path(os.path.relpath(address, here.parent)).as_posix()}{anchor})"
