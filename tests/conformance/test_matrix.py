"""The page of all encodings in the docs is that of this code. What its marks say is tested in test_conformance."""

from pathlib import Path

import posenc
from posenc.backends import BACKENDS
from posenc.conformance import serves
from posenc.conformance.checks import CHECKS, SLOW
from posenc.conformance.fixtures import DECODER, EncodingUnderTest
from posenc.conformance.matrix import MARKS, declared, header, named
from posenc.conformance.suite import run

PAGE = (Path(__file__).parents[2] / "docs" / "encodings.md").read_text(encoding="utf-8")
AGAIN = "run: python -m posenc.conformance.matrix > docs/encodings.md"


def test_what_is_declared_is_on_the_page():
    assert "\n".join(declared()) in PAGE, AGAIN
    for name, check in CHECKS.items():
        assert f"- **{name.replace('_', ' ')}**: {' '.join(check.__doc__.split())}" in PAGE, AGAIN


def test_what_backends_must_serve_is_on_the_page():
    assert "\n".join(serves.table()) in PAGE, AGAIN
    assert set(serves.DECLARED) == set(BACKENDS)


def test_every_encoding_has_a_row_of_marks_that_are_true():
    assert "\n".join(header()) in PAGE, AGAIN
    start = PAGE.index(header()[0])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE[start:].split("\n\n")[0].splitlines()]
    assert [row[0].strip("`") for row in rows[2:]] == list(posenc.ENCODINGS), AGAIN
    assert not any(MARKS[False] in row for row in rows)
    for row in rows[2:]:
        tested = EncodingUnderTest(named(row[0].strip("`")))
        marked = {check for check, mark in zip(CHECKS, row[1:], strict=True) if mark == MARKS[None]}
        assert bool(marked - {"images_are_separate"}) == tested.encoding.needs_length
        assert all(run(check, tested).holds is None for check in marked if check not in SLOW)


def test_named_is_create():
    text = "rope:rope_theta=500+alibi"
    assert named(text)(DECODER).spec() == posenc.create(text, head_dim=4, num_heads=4).spec()
    assert named("log_n")(DECODER).train_length == 4
    assert named("log_n:train_length=7")(DECODER).train_length == 7
