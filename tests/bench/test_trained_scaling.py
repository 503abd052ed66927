"""The guide's table of models that were trained under a scaling is that of the committed results, and what it says of them holds."""

import json
import re
from pathlib import Path

import pytest
import trained_scaling

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks/trained_scaling.json").read_text())


@pytest.mark.parametrize("page", ["extend.md", "extend.zh.md"])
def test_the_table_is_that_of_the_results(page):
    text = (ROOT / "docs/guides" / page).read_text(encoding="utf-8")
    rows = trained_scaling.table(RESULTS).splitlines()
    assert all(row in text for row in rows if row.startswith("| `"))
    assert len(re.findall(r"^\| `[a-z0-9+]+` \| \d", text, re.M)) == len(trained_scaling.METHODS)


def mean(scaling, method, part):
    seeds = RESULTS["losses"][scaling]
    return sum(seed[method][part] for seed in seeds) / len(seeds)


def test_what_the_guide_says_of_it():
    for scaling, seeds in RESULTS["losses"].items():
        for method in ("yarn", "mrrope", "llama3"):
            assert all(seed[method][1] < seed["none"][1] for seed in seeds)
            assert mean(scaling, method, 0) - mean(scaling, "none", 0) < 0.0115
        for method in ("ntk", "linear"):
            assert all(seed[f"{method}+replace"][1] > seed["none"][1] for seed in seeds)
        for method in ("yarn", "ntk", "llama3", "linear"):
            same = 0.002 if (scaling, method) == ("yarn", "yarn") else 0
            assert all(mean(scaling, method, part) < mean(scaling, f"{method}+replace", part) + same for part in (0, 1))
    assert [mean(scaling, "ntk", 1) < mean(scaling, "none", 1) for scaling in RESULTS["losses"]] == [True, True, False]
