"""docs/frequencies.md lists every schedule."""

import re
from pathlib import Path

from posenc import frequencies
from posenc.frequencies import SCHEDULES

PAGE = (Path(__file__).parents[2] / "docs" / "frequencies.md").read_text(encoding="utf-8")


def test_the_table_lists_every_schedule():
    lines = PAGE.split("## All of them")[1].split("\n## ")[0].splitlines()
    assert [re.findall("`(.*?)`", line)[0] for line in lines if line.startswith("| `")] == list(SCHEDULES)


def test_what_is_named_exists():
    named = set(re.findall(r"frequencies\.(\w+)\(", PAGE))
    assert {"stretch", "yarn"} <= named
    assert all(hasattr(frequencies, name) for name in named)
