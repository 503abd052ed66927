"""The guide's table of models that were trained under a scaling is that of the committed results, and what it says of them holds."""

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = spec_from_file_location("trained_scaling", ROOT / "benchmarks/trained_scaling.py")
trained_scaling = module_from_spec(SPEC)
SPEC.loader.exec_module(trained_scaling)
RESULTS = json.loads((ROOT / "benchmarks/trained_scaling.json").read_text())


@pytest.mark.parametrize("page", ["extend.md", "extend.zh.md"])
def test_the_table_is_that_of_the_results(page):
    text = (ROOT / "docs/guides" / page).read_text(encoding="utf-8")
    rows = trained_scaling.table(RESULTS).splitlines()
    assert all(row in text for row in rows if row.startswith("| `"))
    assert len(re.findall(r"^\| `[a-z0-9+]+` \| \d", text, re.M)) == len(trained_scaling.METHODS)


def test_kept_is_better_than_discarded():
    """What the guide says: of the methods that are not trained with, within the context length in every seed."""
    for seeds in RESULTS["losses"].values():
        for seed in seeds:
            for method in ("yarn", "ntk", "linear"):
                assert seed[method][0] < seed[f"{method}+replace"][0]
