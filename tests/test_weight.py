"""How many lines each folder may have: the numbers in weight.json, which only fall."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE = ROOT / "weight.json"
CORE = {"attention", "backends", "bias", "distributed", "encoding", "encodings", "frequencies", "positions", "testing"}
"""Folders that are counted with the modules at the root of the package."""


def lines_by_folder(root):
    """Lines of Python in each folder of the package and in the tests."""
    counts = Counter()
    package = root / "src/posenc"
    for path in package.rglob("*.py"):
        folder = path.relative_to(package).parts[0]
        counts["core" if folder in CORE or folder.endswith(".py") else folder] += _lines(path)
    counts["tests"] = sum(map(_lines, (root / "tests").rglob("*.py")))
    return counts


def _lines(path):
    return path.read_bytes().count(b"\n")


def too_heavy(counts, weights):
    """The folders with more lines than they may have, and those without a number."""
    return [
        f"{name}: {n} lines, {weights.get(name, 0)} allowed" for name, n in counts.items() if n > weights.get(name, 0)
    ]


def risen(weights, earlier):
    """The numbers that are above any that the file had before."""
    least = {
        name: min(each[name] for each in earlier if name in each) for name in weights if any(name in e for e in earlier)
    }
    return [f"{name}: {weights[name]}, it was {n}" for name, n in least.items() if weights[name] > n]


def test_no_folder_has_more_lines_than_it_may():
    assert too_heavy(lines_by_folder(ROOT), json.loads(FILE.read_text())) == []


def test_no_number_rises():
    git = ["git", "-C", str(ROOT)]
    done = subprocess.run([*git, "log", "--format=%H", "--", FILE.name], capture_output=True, text=True)
    commits = done.stdout.split()
    if done.returncode or not commits:
        pytest.skip("no history")
    files = [subprocess.run([*git, "show", f"{c}:{FILE.name}"], capture_output=True, text=True) for c in commits]
    assert risen(json.loads(FILE.read_text()), [json.loads(f.stdout) for f in files if f.returncode == 0]) == []


def test_what_is_too_heavy_is_named(tmp_path):
    (tmp_path / "src/posenc/lab").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "src/posenc/lab/a.py").write_text("1\n2\n")
    (tmp_path / "src/posenc/one.py").write_text("1\n")
    counts = lines_by_folder(tmp_path)
    assert counts == {"lab": 2, "core": 1, "tests": 0}
    assert too_heavy(counts, {"lab": 1, "core": 1, "tests": 0}) == ["lab: 2 lines, 1 allowed"]
    assert too_heavy(counts, {"lab": 2}) == ["core: 1 lines, 0 allowed"]
    assert risen({"lab": 2, "new": 3}, [{"lab": 2}, {"lab": 1}]) == ["lab: 2, it was 1"]
