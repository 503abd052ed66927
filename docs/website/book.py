# SPDX-License-Identifier: Apache-2.0
"""The guide as a book: docs/position_from_scratch.md is one script on one page; on the site its code is folded, its formulas are drawn,
and each chapter has an address: a page of the English edition, a heading of the Chinese one."""

import re
from functools import cache
from pathlib import Path
from textwrap import indent

from website.page import DOCS, formulas

GUIDE = DOCS / "position_from_scratch.md"
CHAPTER = re.compile(r"^## (\d+)\. (.*)$", re.MULTILINE)
CODE = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)
MATH = re.compile(r"^```math\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
WORDS = {
    "": {"code": "Show the code", "chapters": "Chapters", "contents": "All chapters", "script": "Snippets go on from the chapters before."},
    ".zh": {"code": "显示代码"},
}  # fmt: skip


@cache
def addresses() -> dict[int, str]:
    """The name of each chapter's page by its number, from its English title."""
    found = CHAPTER.findall(GUIDE.read_text(encoding="utf-8"))
    return {int(n): f"position-{int(n):02}-{re.sub(r'[^a-z]+', '-', words.lower()).strip('-')}" for n, words in found}


def edition(path: Path) -> str | None:
    """Of the guide's source at a path, the ending of its pages; None: it is another page."""
    return {GUIDE.name: "", "position_from_scratch.zh.md": ".zh"}.get(path.name) if path.parent == DOCS else None


def place(path: Path, anchor: str) -> tuple[str, str] | None:
    """Where a link to a heading of the guide leads, the page and the anchor in it; None: as any other link."""
    ending, found = edition(path), re.match(r"#(\d+)-", anchor)
    if found is None or ending is None:
        return None
    return (f"{path.stem}.md", f"#chapter-{found[1]}") if ending else (f"{addresses()[int(found[1])]}.md", "")


def chapters(text: str, ending: str) -> dict[str, str]:
    """The pages of an edition, whose text is made for the site, by their paths: the page before the first chapter, which lists
    them, and the chapters; of the Chinese one, a page."""
    words, parts = WORDS[ending], re.split(r"^(?=## \d+\. )", text, flags=re.MULTILINE)
    if ending:
        text = CHAPTER.sub(r"## \1. \2 {#chapter-\1}", re.sub(r"\]\(#(\d+)-[^)]*\)", r"](#chapter-\1)", text))
        return {f"{GUIDE.stem}{ending}.md": _shown(text, words)}
    titles = {int(number): title for number, title in CHAPTER.findall(text)}
    listed = "\n".join(f"{number}. [{title}]({addresses()[number]}.md)" for number, title in titles.items())
    found = {GUIDE.name: f"{_shown(parts[0], words).rstrip()}\n\n## {words['chapters']}\n\n{listed}\n"}
    for number, part in zip(titles, parts[1:], strict=True):
        here = re.sub(r"\]\(#(\d+)-[^)]*\)", lambda to: f"]({addresses()[int(to[1])]}.md)", part)
        head, body = here.split("\n", 1)
        note = f"[{words['contents']}]({GUIDE.name}). {words['script']}"
        found[f"{addresses()[number]}.md"] = f"{head[1:]}\n{_shown(body, words).rstrip()}\n\n*{note}*\n"
    return found


def _shown(text: str, words: dict[str, str]) -> str:
    """With code behind a line that opens it, and formulas drawn."""
    text = CODE.sub(lambda code: f'??? note "{words["code"]}"\n\n{indent(code[0], "    ")}', text)
    return MATH.sub(lambda math: formulas(math[1].split("\n\n")), text)
