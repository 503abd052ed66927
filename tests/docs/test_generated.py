"""What programs write into pages and pictures from committed results is what is committed: regenerated, the diff is empty."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from website.page import ROOT

WRITERS = (
    "ablations.py", "early.py judge --write", "frontier.py", "law_fit.py --write", "longer.py", "pictures.py",
    "quoted.py", "rule.py judge --write", "six_programs.py --write", "conform_peers/judged.py",
)  # fmt: skip
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


def estimates(text):
    """Means and half widths as they are printed, where the mean has two digits and more."""
    found = re.findall(r"(\d+\.\d+) ± (\d+\.\d+)", text)
    return {(mean, half) for mean, half in found if float(mean.replace(".", "")) >= 20}


@pytest.mark.parametrize("name", ["ablations", "claims", "longer_context"])
def test_a_difference_has_the_interval_of_the_page_that_is_linked(name):
    """Except between methods of one archive that its tables do not set side by side."""
    text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    links = {ROOT / "docs" / link for link in re.findall(r"\]\(([\w./]+\.md)", text)}
    there = set().union(*(estimates(link.read_text(encoding="utf-8")) for link in links))
    here = estimates(re.sub(r"<!-- (longer_stories15M_findings): .*end of \1", "", text, flags=re.DOTALL))
    assert [each for each in here - there if each[0] in dict(there)] == []
