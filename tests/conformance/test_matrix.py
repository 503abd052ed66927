"""What benchmarks/encodings.md says of an encoding holds. That its marks are right is tested in test_conformance."""

import sys
from pathlib import Path

import posenc
from posenc.conformance.checks import CHECKS, SLOW
from posenc.conformance.fixtures import DECODER, EncodingUnderTest, named
from posenc.conformance.suite import run_check

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))  # where the site's builder is
from website import conformance

PAGE = conformance.PAGE.read_text(encoding="utf-8")


def test_the_marks_of_each_row_are_true():
    start = PAGE.index(conformance.header())
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE[start:].split("\n\n")[0].splitlines()]
    assert {row[0].strip("`") for row in rows[2:]} <= set(posenc.ENCODINGS)  # a new one is not measured yet
    assert not any(conformance.MARKS[False] in row for row in rows)
    for row in rows[2:]:
        tested = EncodingUnderTest(named(row[0].strip("`")))
        marked = {check for check, mark in zip(CHECKS, row[1:], strict=True) if mark == conformance.MARKS[None]}
        refused = {check for check in marked if not check.startswith(("packed_images", "prefixes_are", "slices_of"))}
        assert bool(refused) == tested.encoding.needs_length
        assert all(run_check(check, tested).passed is None for check in marked if check not in SLOW)


def test_named_is_create():
    text = "rope:rope_theta=500+alibi"
    assert named(text)(DECODER).spec() == posenc.create(text, head_dim=4, num_heads=4).spec()
    assert named("log_n")(DECODER).train_length == 4
    assert named("window+chunks")(DECODER).spec() == posenc.create("window:before=2+chunks:size=3").spec()
    assert named("log_n:train_length=7")(DECODER).train_length == 7
