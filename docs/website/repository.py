# SPDX-License-Identifier: Apache-2.0
"""Pages of the files outside docs/: examples, committed results, and the project's own texts."""

import ast
import json
import re
from pathlib import Path

from website.markdown import fitted, for_site, place, title
from website.notebooks import NOTEBOOKS
from website.notebooks import page as notebook_page
from website.page import DOCS, ROOT, Page, heading, plain, table


def examples() -> list[Page]:
    """A page for each example, named after what it shows: what it is and its code, which says the rest; of a notebook, its
    cells with their outputs."""
    found = []
    for path in sorted((ROOT / "examples").rglob("*.py")):
        where, notebook = path.relative_to(ROOT), path.parent == NOTEBOOKS
        text = notebook_page(path) if notebook else _script(path.read_text(encoding="utf-8"), where)
        found.append(Page(where.with_suffix(".md").as_posix(), title(text), text, "Notebooks" if notebook else ""))
    return found


def _script(code: str, where: Path) -> str:
    about = " ".join((ast.get_docstring(ast.parse(code)) or "").partition("\n\n")[0].split())
    end = re.search(r": |(?<! al)\. ", about)
    shows, rest = (about[: end.start()], about[end.end() :]) if end else (about, "")
    rest = f"{rest[:1].upper()}{rest[1:]} " if rest else ""
    return f"# {plain(shows.rstrip('.'))}\n\n{plain(rest)}The file: `{where}`.\n\n{fitted(f'```python{chr(10)}{code}```')}\n"


def results() -> list[Page]:
    """Every committed result, with the pages that show it, and the pages of benchmarks/."""
    written = sorted((ROOT / "benchmarks").glob("*.md"))
    pages = {page: page.read_text(encoding="utf-8") for page in [*sorted(DOCS.rglob("*.md")), *written]}
    rows = []
    for path in result_files():
        name = path.relative_to(ROOT).as_posix()
        names = (name, f"/{path.parent.relative_to(ROOT).as_posix()})")  # itself, or a link to its folder
        shown = [
            f"[{heading(page)}]({place(page)})" for page, text in pages.items() if any(each in text for each in names)
        ]
        created = json.loads(path.read_text(encoding="utf-8")).get("created", "")[:10]
        rows.append((f"[{name}]({name})", created, f"{path.stat().st_size / 1024:.0f}", ", ".join(shown)))
    text = (
        "# Result files\n\nThe results of long measurements, as written by the programs that made them.\n\n"
        f"{table(('file', 'date', 'KiB', 'shown on'), rows)}\n"
    )
    tables = [Page(str(place(path)), heading(path), for_site(pages[path], path)) for path in written]
    return [Page("results.md", "Result files", text), *tables]


def result_files() -> list[Path]:
    """The committed results."""
    return sorted((ROOT / "benchmarks").rglob("*.json"))


def project() -> list[Page]:
    """The texts beside the README: the licence, changes, how to contribute, security."""
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    pages = [Page("project/license.md", "Licence", f"# Licence\n\n```text\n{licence}```\n")]
    for path in sorted(ROOT.glob("*.md")):
        where = place(path)
        if where is not None and where != Path("index.md"):
            pages.append(Page(where.as_posix(), heading(path), for_site(path.read_text(encoding="utf-8"), path)))
    return pages
