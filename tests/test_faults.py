"""benchmarks/faults.md: every fault has a verdict, and the tests that it names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "benchmarks" / "faults.md").read_text(encoding="utf-8")
ROWS = [row.strip("| ").split(" | ") for row in PAGE.split("## Sweeps")[0].splitlines() if row.startswith("| ")]
FAULTS = [row for row in ROWS if row[0] != "fault"]


def test_every_fault_has_a_verdict():
    assert len(FAULTS) > 80
    for name, _, verdict in FAULTS:
        mended = re.match(r"(mended: tests/|gone with |not mended: )", verdict)
        assert mended, name
        assert len(verdict.split()) <= 25, name


def test_the_tests_that_are_named_exist():
    for file, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", PAGE):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"\ndef {name}(" in text, (file, name)
