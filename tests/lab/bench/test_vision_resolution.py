"""The page says of images at other resolutions what the committed results say."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOUND = json.loads((ROOT / "benchmarks/vision_resolution.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def benchmark():
    spec = spec_from_file_location("vision_resolution", ROOT / "benchmarks/vision_resolution.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("data", FOUND)
def test_the_tables_of_the_page_are_those_of_the_results(data, benchmark):
    assert f"\n{benchmark.table(FOUND[data])}\n" in (ROOT / "benchmarks/vision_resolution.md").read_text(
        encoding="utf-8"
    )


def test_the_page_says_what_larger_images_cost():
    variants = {variant["name"]: variant["sizes"][-1] for variant in FOUND["places"]["variants"]}

    def lost(name):
        change = variants[name]["change"]
        return f"{-100 * change['mean']:.0f} ± {50 * (change['high'] - change['low']):.0f}"

    page = " ".join((ROOT / "docs/vision-lab.md").read_text(encoding="utf-8").split())
    assert variants["axial_rope"]["size"] == 64
    assert f"with 2-D sinusoids loses {lost('grid_sinusoidal')} points of accuracy" in page
    assert f"with axial RoPE {lost('axial_rope')};" in page
    assert f"{lost('grid_sinusoidal + rescaled')} and {lost('axial_rope + rescaled')}, without retraining" in page
