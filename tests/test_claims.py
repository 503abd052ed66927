# SPDX-License-Identifier: Apache-2.0
"""docs/claims.md has the numbers that benchmarks/claims.py computes."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_has_every_number(capsys):
    runpy.run_path(str(ROOT / "benchmarks/claims.py"))["main"]()
    page = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    printed = re.findall(r"-?\d+(?:\.\d+)?", capsys.readouterr().out)
    assert len(printed) == 19
    assert [number for number in printed if not re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]\d)", page)] == []
