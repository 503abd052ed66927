# SPDX-License-Identifier: Apache-2.0
"""What the notebooks of examples/ print and draw, stored in docs/images/notebooks for their pages.

cd docs && python -m website.notebooks [NAME ...] runs them: half a minute each.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from textwrap import fill
from typing import Any
from unittest.mock import patch

from website.markdown import COLUMN
from website.page import DOCS, ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"
FOLDER = DOCS / "images" / "notebooks"
CELL = re.compile(r"^# %%(.*)\n((?:(?!# %%).*\n?)*)", re.MULTILINE)
"""A cell of a notebook that is a Python file: its kind and its content."""

MOST = 105
"""Characters of a line of a table; longer lines are sentences."""


@dataclass(frozen=True)
class Output:
    """Of a cell of code. code: its digest. printed: by it. figures: names of files in the folder."""

    code: str
    printed: str
    figures: list[str]


def cells(path: Path) -> list[tuple[bool, str]]:
    """Of a notebook, whether each cell is code, and its content without empty lines around it."""
    return [("markdown" not in kind, cell.strip()) for kind, cell in CELL.findall(path.read_text(encoding="utf-8"))]


def digest(code: str) -> str:
    """Equal for equal code."""
    return sha256(code.encode()).hexdigest()[:16]


def run(path: Path, folder: Path = FOLDER) -> list[Output]:
    """Run a notebook in an empty folder, and write its figures, and its outputs as NAME.json, into a folder."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("agg")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{path.stem}-*.svg"):
        old.unlink()
    found: list[Output] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.size": 12}
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty), matplotlib.rc_context(style):
        for code in (content for is_code, content in cells(path) if is_code):
            printed, figures = io.StringIO(), list[str]()
            with contextlib.redirect_stdout(printed), patch.object(pyplot, "show"):
                exec(compile(code, path.name, "exec"), names)
            for number in pyplot.get_fignums():
                figures.append(f"{path.stem}-{len(found)}-{len(figures)}.svg")
                no_date: Any = dict.fromkeys(("Date", "Creator"))
                pyplot.figure(number).savefig(folder / figures[-1], metadata=no_date)
            pyplot.close("all")
            found.append(Output(digest(code), printed.getvalue().rstrip(), figures))
    text = json.dumps([asdict(each) for each in found], ensure_ascii=False, indent=1)
    (folder / f"{path.stem}.json").write_text(text + "\n", encoding="utf-8")
    return found


def outputs(path: Path, folder: Path = FOLDER) -> list[Output]:
    """The stored outputs of a notebook's cells of code.

    Raises:
        ValueError: they are of other code.
    """
    stored = folder / f"{path.stem}.json"
    found = [Output(**each) for each in json.loads(stored.read_text(encoding="utf-8"))] if stored.exists() else []
    if [each.code for each in found] != [digest(content) for is_code, content in cells(path) if is_code]:
        raise ValueError(
            f"{path.name}: has changed since it was run: cd docs && python -m website.notebooks {path.stem}"
        )
    return found


def page(path: Path) -> str:
    """The notebook as Markdown: text as text, code as code, with what it printed and drew below."""
    shown, results, number = [], iter(outputs(path)), 0
    for is_code, content in cells(path):
        if not is_code:
            shown.append(re.sub(r"^# ?", "", content, flags=re.MULTILINE))
            continue
        result = next(results)
        shown.append(f"```python\n{content}\n```")
        shown += [f"```text\n{_wrapped(result.printed)}\n```"] if result.printed else []
        for name in result.figures:
            number += 1
            shown.append(f"![Figure {number}, drawn by the cell above](../../images/notebooks/{name})")
    return "\n\n".join(shown) + "\n"


def _wrapped(printed: str) -> str:
    """Text whose sentences fit into the column; lines of tables stay as they are."""
    lines = printed.split("\n")
    return "\n".join(fill(line, COLUMN, subsequent_indent="  ") if len(line) > MOST else line for line in lines)


if __name__ == "__main__":
    for notebook in sorted(NOTEBOOKS.glob("*.py")):
        if notebook.stem in (sys.argv[1:] or [notebook.stem]):
            run(notebook)
            print(notebook.stem, flush=True)
