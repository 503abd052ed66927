"""benchmarks/encodings.md matches the code. That its marks are right is tested in test_conformance."""

import sys
from pathlib import Path

import posenc
from posenc.conformance.checks import CHECKS, SLOW
from posenc.conformance.fixtures import DECODER, EncodingUnderTest, named
from posenc.conformance.suite import run_check

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))  # where the site's builder is
from website import conformance

PAGE = conformance.PAGE.read_text(encoding="utf-8")
AGAIN = "run: make encodings"


def test_what_is_declared_is_on_the_page():
    before, _, after = conformance.TEXT.partition("{declared}")
    assert PAGE.startswith(before + conformance.declared()), AGAIN
    assert after.partition("{marks}")[0] + conformance.header() in PAGE, AGAIN
    assert conformance.checks() in PAGE, AGAIN
    assert PAGE.endswith(f"\n{conformance.serves()}\n"), AGAIN


def test_every_encoding_has_a_row_of_marks_that_are_true():
    start = PAGE.index(conformance.header())
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE[start:].split("\n\n")[0].splitlines()]
    assert [row[0].strip("`") for row in rows[2:]] == list(posenc.ENCODINGS), AGAIN
    assert not any(conformance.MARKS[False] in row for row in rows)
    for row in rows[2:]:
        tested = EncodingUnderTest(named(row[0].strip("`")))
        marked = {check for check, mark in zip(CHECKS, row[1:], strict=True) if mark == conformance.MARKS[None]}
        refused = marked - {"packed_images_are_separate", "prefixes_are_bidirectional"}
        assert bool(refused) == tested.encoding.needs_length
        assert all(run_check(check, tested).passed is None for check in marked if check not in SLOW)


def test_named_is_create():
    text = "rope:rope_theta=500+alibi"
    assert named(text)(DECODER).spec() == posenc.create(text, head_dim=4, num_heads=4).spec()
    assert named("log_n")(DECODER).train_length == 4
    assert named("log_n:train_length=7")(DECODER).train_length == 7
