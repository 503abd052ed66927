"""Every difference of benchmarks/conform.md is judged on docs/conform.md, and what is called a bug has code that shows it."""

import contextlib
import importlib.metadata
import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "conform_peers"))
import judged  # noqa: E402

sys.path.pop(0)

ROWS = judged.judgements()
BLOCKS = judged.blocks()
DTYPE = re.compile(r"float32 values conform|(result in the wrong dtype: )?\w+ in, \w+ out.*")
"""A finding about the dtype of the result alone."""


def differences():
    """(package, version) and function of the table's rows that do not conform, but for those of the result's dtype alone."""
    table = (ROOT / "benchmarks" / "conform.md").read_text(encoding="utf-8").split("<!-- end of findings")[0]
    for line in table[table.index("|---") :].splitlines()[1:]:
        if line.startswith("| "):
            verdict, release, function, _ = line[2:].split(" | ")
            of_dtype = all(DTYPE.fullmatch(part) for part in verdict.partition(" (")[0].split("; "))
            if not verdict.startswith("conforms") and not of_dtype:
                yield tuple(release.rsplit(" ", 1)), function


def test_every_difference_is_judged_once():
    covered = [each for row in ROWS for each in row["covers"]]
    assert len(covered) == len(set(covered))
    assert set(covered) == {f"{package}: {function}" for (package, _), function in differences()}


def test_the_page_has_the_judgements():
    """If this fails: python benchmarks/conform_peers/judged.py --write."""
    assert "\n".join(judged.table()) in judged.PAGE.read_text(encoding="utf-8")


def test_every_bug_is_shown():
    titles = {block.title for block in BLOCKS}
    shown = [title for row in ROWS for title in row["shown"]]
    assert sorted(shown) == sorted(titles), "each text belongs to a row of the table, and no other"
    for row in ROWS:
        packages = {block.package for block in BLOCKS if block.title in row["shown"]}
        if row["judgement"] == "bug":
            assert {each.partition(":")[0] for each in row["covers"]} <= packages, row["verdict"]
        else:
            assert row["why"] or row["judgement"] == "authors", row["verdict"]


def test_code_is_of_the_releases_of_the_table():
    page = (ROOT / "benchmarks" / "conform.md").read_text(encoding="utf-8").split("<!-- end of findings")[0]
    for block in BLOCKS:
        assert f" | {block.package} {block.version} | " in page, block.title
        assert judged.essence(judged.promised(block)), block.title
        assert len(block.code.splitlines()) <= 20, block.title


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{block.package}-{at}" for at, block in enumerate(BLOCKS)])
def test_code_prints_what_its_comments_say(block):
    if not any(each.metadata["Name"] == block.package for each in importlib.metadata.distributions(name=block.package)):
        pytest.skip(f"{block.package} is not installed")
    if importlib.metadata.version(block.package) != block.version:
        pytest.skip(f"{block.package} {block.version} is not installed")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(block.code, {})
    assert judged.agrees(judged.promised(block), out.getvalue())


def test_other_numbers_do_not_agree():
    assert judged.agrees("# 0.5403, -1", "tensor([0.54031, -1.0000], dtype=torch.bfloat16)")
    assert not judged.agrees("# 0.5403, -1", "tensor([0.54031, 1.0000])")
    assert not judged.agrees("# 1, 2", "1")
    assert not judged.agrees("# True", "False")
