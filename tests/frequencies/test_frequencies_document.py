"""docs/frequencies.md lists every schedule with its options."""

import re
from pathlib import Path

from posenc import frequencies
from posenc.frequencies import SCHEDULES, options_of

PAGE = (Path(__file__).parents[2] / "docs" / "frequencies.md").read_text(encoding="utf-8")


def test_the_table_lists_every_schedule_with_its_options():
    lines = PAGE.split("## All of them")[1].split("\n## ")[0].splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| `")]
    listed = {re.findall("`(.*?)`", row[0])[0]: re.findall("`(.*?)`", row[2]) for row in rows}
    assert listed == {name: list(options_of(name)) for name in SCHEDULES}


def test_what_is_named_exists():
    named = set(re.findall(r"frequencies\.(\w+)\(", PAGE))
    assert {"diff", "stretch", "yarn"} <= named
    assert all(hasattr(frequencies, name) for name in named)
