"""Runs the snippets of docs/position_from_scratch.md in order, as one script. `make guide` writes their figures to
docs/images/position, and what they print into both editions."""

import io
import re
from contextlib import chdir, redirect_stdout
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGES = [DOCS / "position_from_scratch.md", DOCS / "position_from_scratch.zh.md"]
SNIPPET = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
"""A snippet, and what it prints."""


def run(page: Path, folder: Path) -> list[str]:
    """What each snippet of a page prints; the figures go to the folder's images/position."""
    names: dict[str, object] = {}
    printed = []
    with chdir(folder):
        for code, _ in SNIPPET.findall(page.read_text(encoding="utf-8")):
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(code, page.name, "exec"), names)
            printed.append(out.getvalue())
    return printed


def rewrite(page: Path, printed: list[str]) -> None:
    """Put what the snippets print below them."""
    texts = iter(f"\n\n```text\n{text}```" if text else "" for text in printed)
    new = SNIPPET.sub(lambda found: f"```python\n{found[1]}```{next(texts)}", page.read_text(encoding="utf-8"))
    page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    shown = run(PAGES[0], DOCS)
    for edition in PAGES:
        rewrite(edition, shown)
