# SPDX-License-Identifier: Apache-2.0
"""The tables of benchmarks/synthetic.md against the committed results."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOUND = json.loads((ROOT / "benchmarks/synthetic.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("task", FOUND["tasks"])
def test_the_page_has_the_committed_numbers(task):
    page = (ROOT / "benchmarks/synthetic.md").read_text(encoding="utf-8")
    table = page.split(f"| `{task}`, accuracy")[1].split("\n\n")[0].strip().splitlines()[2:-1]
    expected = []
    for arm in FOUND["tasks"][task]["arms"]:
        points = [(point["accuracy"], point["group"]) for point in arm["lengths"]]
        shares = [f"{100 * a['mean']:.0f} ± {50 * (a['high'] - a['low']):.0f} ({group})" for a, group in points]
        exact = [f"{100 * point['exact']['mean']:.0f}" for point in arm["lengths"][:2]]
        expected.append("| " + " | ".join([f"`{arm['name']}`", *shares, *exact]) + " |")
    assert table == expected
