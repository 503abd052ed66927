"""The findings table of docs/conform.md holds for the packages that are installed here, at the versions it names."""

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PEERS = ROOT / "benchmarks" / "conform_peers"
TABLE = [
    line for line in (ROOT / "docs" / "conform.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")
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
    written = [line for line in TABLE if line.startswith(f"| {package} |")]
    assert f"| {importlib.metadata.version(package)} |" in written[0], (
        "run benchmarks/conform_peers/run.py --write docs/conform.md"
    )
    assert [_words(line) for line in tested] == [_words(line) for line in written]


def _words(line):
    """Without the measured numbers, which may differ by a rounding from machine to machine."""
    return re.sub(r"by up to [\d.e+]+|position \d+ on|\d+ of 4096", "", line)
