"""What programs write into pages and pictures from committed results is what is committed: regenerated, the diff is empty."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from website.page import ROOT

WRITERS = (
    "ablations.py",
    "early.py judge --write",
    "frontier.py",
    "law_fit.py --write",
    "longer.py",
    "pictures.py",
    "quoted.py",
    "rule.py judge --write",
    "six_programs.py --write",
    "conform_peers/judged.py",
)
"""Programs of benchmarks/ that write from results alone, without a measurement."""
PAGES = (".md", ".svg", ".json", ".html")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the repository without its history."""
    made = tmp_path_factory.mktemp("copy")
    for name in ("benchmarks", "docs", "examples", "tests"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    for name in ("README.md", "README.zh.md", "pyproject.toml"):
        shutil.copy(ROOT / name, made)
    (made / "src").symlink_to(ROOT / "src")
    return made


@pytest.mark.parametrize("writer", WRITERS)
def test_generated_parts_are_what_their_program_writes(writer, copy):
    """If this fails: run the program in the repository, and look at the diff."""
    program, *options = writer.split()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, copy / "benchmarks" / program, *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=copy, env=environment)
    assert done.returncode == 0, done.stderr
    written = (path for name in ("benchmarks", "docs") for path in (copy / name).rglob("*") if path.suffix in PAGES)
    changed = [path.relative_to(copy) for path in written if path.read_bytes() != committed(path, copy)]
    assert changed == []


def committed(path, copy):
    there = ROOT / path.relative_to(copy)
    return there.read_bytes() if there.exists() else None


ESTIMATE = re.compile(r"(\d+\.\d+) ± (\d+\.\d+)")
QUOTED = ("ablations.md", "claims.md", "longer_context.md")


def halves(text):
    """Half widths by mean, both as they are printed, of what has two digits and more."""
    found = {}
    for mean, half in ESTIMATE.findall(text):
        if float(mean.replace(".", "")) >= 20:
            found.setdefault(mean, set()).add(half)
    return found


@pytest.mark.parametrize("name", QUOTED)
def test_a_difference_has_the_interval_of_the_page_that_is_linked(name):
    """Except between the methods of one archive that its tables do not set side by side."""
    page = ROOT / "docs" / name
    text = page.read_text(encoding="utf-8")
    links = {page.parent / link for link in re.findall(r"\]\(([\w./]+\.md)", text)}
    there = halves("\n".join(link.read_text(encoding="utf-8") for link in links if link.exists()))
    text = re.sub(r"<!-- longer_stories15M_findings.*end of longer_stories15M_findings", "", text, flags=re.DOTALL)
    own = halves(text)
    assert [(mean, own[mean], there[mean]) for mean in own.keys() & there.keys() if not own[mean] <= there[mean]] == []
