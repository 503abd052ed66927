"""The page of posenc analyze: its numbers, its words, and a browser that shows it without complaint."""

import json
import re
from html import unescape

import pytest

from posenc.frequencies import create, diff, parse
from posenc.report.diff import page

FOUND = diff("yarn:beta_fast=16+resonance", "tapered:pairs=6", factor=4, length=2048)


def test_it_is_one_file_with_every_number():
    text = page(FOUND, "posenc analyze '<b>' ntk")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?http", text)
    assert len(text.encode()) < 5e5
    plain = unescape(text)
    for sentence in FOUND.sentences():
        assert sentence in plain
    for schedule in FOUND.schedules:
        assert f"<code>{schedule}</code>" in plain
    rows = re.findall(r"<tr>(<td>.*?)</tr>", text)
    assert [re.findall(r"<td>(.*?)</td>", row) for row in rows] == FOUND.rows()
    assert "posenc analyze &#39;&lt;b&gt;&#39; ntk" in text
    assert "To reproduce" not in page(FOUND)


def test_figures_hold_the_numbers():
    text = page(FOUND)
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', text, flags=re.DOTALL).group(1))
    stretch, waves, phase = (figures[name]["series"] for name in ("stretch", "wavelength", "phase"))
    assert [trace["name"] for trace in stretch] == ["A: yarn:beta_fast=16+resonance", "B: tapered:pairs=6"]
    assert [trace["name"] for trace in waves] == ["A: yarn:beta_fast=16+resonance", "B: tapered:pairs=6", "as trained"]
    assert stretch[0]["y"] == pytest.approx([pair.stretches[0] for pair in FOUND.pairs], rel=1e-4)
    assert stretch[1]["y"][-1] is None  # at rest
    assert waves[2]["y"][0] == pytest.approx(6.283185307, rel=1e-4)
    assert phase[0]["y"] == pytest.approx([pair.phase for pair in FOUND.pairs], rel=1e-4)


def test_equal_schedules_make_a_page():
    text = page(diff("llama3", "yarn_paper:beta_fast=4:attention_factor=1"))
    assert "give the same frequencies in all 32 pairs" in text


@pytest.mark.parametrize("second", ["yarn:factor=8:original_max_positions=2048:beta_fast=16", "default"])
def test_the_explorer_is_set_to_the_second_schedule(second):
    text = page(diff("ntk", second, head_dim=32, base=5e5, factor=8, length=2048))
    shown = json.loads(re.search(r'id="explorer-state">(.*?)</script>', text).group(1))
    assert shown["method"] == second.replace("default", "none")
    assert (shown["dim"], shown["base"], shown["trained"], shown["length"]) == (32, 5e5, 2048, 1024)


def test_what_the_explorer_cannot_show_leaves_it_out():
    for found in (FOUND.schedules[0], "yarn+resonance"):
        text = page(diff("ntk", found, factor=4, length=2048))
        assert ">Explore A <a" in text
        assert "Schedule shown" not in text
    assert ">Explore " not in page(diff("ntk", "yarn", head_dim=512))


@pytest.mark.browser
def test_the_explorer_shows_a_and_b_in_turn(new_tab, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page(diff("yarn:factor=8:beta_fast=16", "ntk", factor=4, length=512)))
    tab = new_tab(viewport={"width": 390, "height": 844})
    tab.goto(path.as_uri())
    assert tab.locator("#plot-stretch canvas").bounding_box()["y"] < 844  # on the first screen

    def frequencies():
        return tab.evaluate("Array.from(posenc.explorer.values().frequencies.invFreq)")

    for choice, schedule in (("A", "yarn:factor=8:beta_fast=16:original_max_positions=512"), ("B", "ntk:factor=4")):
        tab.get_by_role("radio", name=f"{choice}: ").check(force=True)
        tab.wait_for_function(f"document.getElementById('explorer-method').value === '{schedule.partition(':')[0]}'")
        expected = create(parse(schedule), 64, base=10000.0)
        assert frequencies() == pytest.approx(expected.inv_freq.tolist())


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_a_browser_shows_it_without_complaint(new_tab, tmp_path, scheme, width):
    path = tmp_path / "report.html"
    path.write_text(page(FOUND, "posenc analyze yarn:beta_fast=16+resonance tapered:pairs=6 --length 2048"))
    tab = new_tab(color_scheme=scheme, viewport={"width": width, "height": 900})
    tab.goto(path.as_uri())
    assert tab.evaluate("Object.keys(posenc.report.probes)") == ["stretch", "wavelength", "phase"]
    assert tab.locator("#pairs tbody tr").count() == 32
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    columns = tab.locator("#columns").bounding_box()
    assert columns["x"] + columns["width"] <= width  # not as wide as the table, which scrolls
