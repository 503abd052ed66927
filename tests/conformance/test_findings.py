"""The findings table of benchmarks/conform.md holds for the packages that are installed here, at the versions it names."""

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "conform_peers"
TABLE = [
    line
    for line in (ROOT / "benchmarks" / "conform.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ")
]


@pytest.mark.parametrize("name", ["transformers", "rotary_embedding_torch"])
def test_the_table_matches_the_installed_packages(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(PEERS))
    before = set(sys.modules)
    import run

    tested, missing = run.rows(sorted(path.stem for path in PEERS.glob(f"peer_{name}*.py")))
    for module in set(sys.modules) - before:
        if module in ("run", "shared") or module.startswith("peer_"):
            del sys.modules[module]
    assert not missing
    package = name.replace("_", "-")
    written = [line for line in TABLE if f" | {package} {importlib.metadata.version(package)} | " in line]
    assert written, "run benchmarks/conform_peers/run.py --write benchmarks/conform.md"
    assert [_words(line) for line in sorted(tested, key=run.conforms)] == [_words(line) for line in written]


def test_the_page_counts_the_verdicts():
    lines = TABLE[1 : TABLE.index(TABLE[0], 1)]  # up to those of earlier releases
    passed = sum(line.startswith("| conforms") for line in lines)
    not_run = sum(line.startswith("| could not be run") for line in lines)
    packages = {line.split(" | ")[1].split()[0] for line in lines}
    page = (ROOT / "docs" / "conform.md").read_text(encoding="utf-8")
    counts = (
        f"Of {len(lines)} functions of {len(packages)} packages, {passed} conform, "
        f"{len(lines) - passed - not_run} do not and {not_run} could not be run."
    )
    assert counts in page


def test_pages_that_show_its_picture_count_its_packages():
    lines = TABLE[1 : TABLE.index(TABLE[0], 1)]
    packages = str(len({line.split(" | ")[1].split()[0] for line in lines}))
    counts = {
        page: re.findall(r"(\d+) (?:packages a mark|packages compare|个软件包)", page.read_text(encoding="utf-8"))
        for page in (*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md"))
    }
    stated = {page: found for page, found in counts.items() if found}
    assert stated
    assert {number for found in stated.values() for number in found} == {packages}, stated


def _words(line):
    """Without the measured numbers, which may differ by a rounding from machine to machine."""
    return re.sub(r"by up to [\d.e+]+|position \d+ on|\d+ of 4096", "", line)
