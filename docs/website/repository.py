"""Pages of what the repository holds beside docs/: examples, committed results, and the project's own texts."""

import ast
import json
from pathlib import Path

from website.markdown import for_site, place
from website.page import DOCS, ROOT, Page, heading, plain, table


def examples() -> list[Page]:
    """A page for each example: what it says of itself, and its code."""
    return [_notebook(p) if p.suffix == ".ipynb" else _script(p) for p in sorted((ROOT / "examples").glob("*.[pi]*y*"))]


def _script(path: Path) -> Page:
    code = path.read_text(encoding="utf-8")
    about = ast.get_docstring(ast.parse(code)) or path.stem
    first, _, rest = about.partition("\n\n")
    text = f"# {path.name}\n\n{plain(first)}\n\n{plain(rest)}\n\n```sh\npython examples/{path.name}\n```\n\n"
    return Page(f"examples/{path.stem}.md", path.name, f"{text}```python\n{code}```\n")


def _notebook(path: Path) -> Page:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    shown = [
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell, text in zip(cells, texts, strict=True)
    ]
    return Page(f"examples/{path.stem}.md", path.name, "\n\n".join(shown) + "\n")


def results() -> Page:
    """Every committed result, and which pages tell of it."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
    rows = []
    for path in result_files():
        name = path.relative_to(ROOT).as_posix()
        told = [
            f"[{heading(page)}]({page.relative_to(DOCS).as_posix()})" for page, text in pages.items() if name in text
        ]
        created = json.loads(path.read_text(encoding="utf-8")).get("created", "")[:10]
        rows.append((f"[{name}]({name})", created, f"{path.stat().st_size / 1024:.0f}", ", ".join(told)))
    text = (
        "# The files behind it\n\nEvery number of these pages that took long to measure is in a file of the repository, "
        f"with the machine, the versions and the seeds it was measured with.\n\n"
        f"{table(('file', 'made', 'KiB', 'told in'), rows)}\n"
    )
    return Page("results.md", "The files behind it", text)


def result_files() -> list[Path]:
    """The committed results."""
    return sorted((ROOT / "benchmarks").rglob("*.json"))


def project() -> list[Page]:
    """The texts beside the README: the licence, changes, how to contribute, security."""
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    pages = [Page("project/license.md", "Licence", f"# Licence\n\n```text\n{licence}```\n")]
    for path in sorted(ROOT.glob("*.md")):
        where = place(path)
        if where is not None and path.name != "README.md":
            pages.append(Page(where.as_posix(), heading(path), for_site(path.read_text(encoding="utf-8"), path)))
    return pages
