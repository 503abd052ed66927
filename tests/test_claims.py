# SPDX-License-Identifier: Apache-2.0
"""docs/claims.md has the numbers that benchmarks/claims.py computes."""

import json
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


def test_the_recurrent_networks_numbers_are_those_of_the_results():
    page = (ROOT / "docs/claims.md").read_text(encoding="utf-8").split("## A recurrent network")[1]
    results = json.loads((ROOT / "benchmarks/recurrent_network.json").read_text(encoding="utf-8"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in page.splitlines() if " | " in line]
    table = runpy.run_path(str(ROOT / "benchmarks/recurrent_network.py"))["table"](results).splitlines()[2:-2]
    for shown, row in zip(cells[1:], table, strict=True):
        made = [cell.strip() for cell in row.strip("|").split("|")][1:]
        *losses, short, _, long, short_token, _, long_token = made  # the page leaves out 512
        assert shown == [*losses, f"{short}, {long}", f"{short_token}, {long_token}"]
    assert len(cells) == 4
    seeds = results["models"]
    assert {len(each) for each in seeds.values()} == {3}
    gru, rope, none = ([run["loss"] for run in seeds[name].values()] for name in ("gru", "rope", "none"))
    assert all(
        a[at] < b[at] for at in ("128", "1024") for other in (rope, none) for a, b in zip(gru, other, strict=True)
    )
    contexts = [run["context"] for each in seeds.values() for run in each.values()]
    assert max(each["last 16"] - each["in order"] for each in contexts) < 0.04
    assert "gains more than 0.04 nats from bytes before the last 16" in page
    steps = results["costs"]["gru"]["step_ms"]["2048"] / results["costs"]["rope"]["step_ms"]["2048"]
    assert f"{steps:.1f} times RoPE's processor time" in page
