"""The page of posenc analyze: its numbers, its words, and a browser that shows it without complaint."""

import re
from html import unescape

import pytest

from posenc.analysis import diff
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


def test_equal_schedules_make_a_page():
    text = page(diff("llama3", "yarn_paper:beta_fast=4:attention_factor=1"))
    assert "give the same frequencies in all 32 pairs" in text


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_a_browser_shows_it_without_complaint(new_tab, tmp_path, scheme, width):
    path = tmp_path / "report.html"
    path.write_text(page(FOUND, "posenc analyze yarn:beta_fast=16+resonance tapered:pairs=6 --length 2048"))
    tab = new_tab(color_scheme=scheme, viewport={"width": width, "height": 900})
    tab.goto(path.as_uri())
    assert tab.locator("#pairs tbody tr").count() == 32
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    columns = tab.locator("#columns").bounding_box()
    assert columns["x"] + columns["width"] <= width  # not as wide as the table, which scrolls
