"""CHANGELOG.md states what left as posenc itself answers, and stays short.

PYTHONPATH=src python tests/test_changelog.py    # writes the table of what left
"""

import re
from pathlib import Path

from posenc_cli.left import LEFT

PAGE = Path(__file__).parents[1] / "CHANGELOG.md"
BEGIN, END = "<!-- left: written by python tests/test_changelog.py -->\n", "<!-- end of left -->"
MOST = 60
"""Lines of a release."""


def table():
    """What left, and what to use instead: the names of one answer in one row."""
    by_answer = {}
    for name, instead in LEFT.items():
        by_answer.setdefault(instead, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {instead} |" for instead, names in by_answer.items()]
    return "\n".join(["| what left | instead |", "| --- | --- |", *rows, ""])


def written(text):
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def test_every_name_that_left_stands_in_the_changelog():
    text = PAGE.read_text(encoding="utf-8")
    assert text == written(text)
    for path in re.findall(r"(?:benchmarks|docs|examples)/[\w/.-]*\w", text):
        assert (PAGE.parent / path).exists(), path


def test_a_release_is_short():
    text = PAGE.read_text(encoding="utf-8")
    releases = re.split(r"^(?=## \[)", text, flags=re.MULTILINE)[1:]
    assert releases[0].startswith("## [Unreleased]")
    for release in releases:
        by_hand = re.sub(rf"{re.escape(BEGIN)}.*{END}", "", release, flags=re.DOTALL)
        assert len(by_hand.splitlines()) <= MOST, release.splitlines()[0]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
