"""The report in a real browser: no console error, no network, theme and phone width; its words and numbers."""

import json
import re
from dataclasses import replace
from html import escape

import pytest

from posenc.lab import data
from posenc.lab.compare import Comparison, compare
from posenc.lab.engines import InProcess
from posenc.report.compare import page

HOSTILE = "<img src=x onerror=alert(1)>.txt"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    from lab.conftest import TEXT, TINY

    directory = tmp_path_factory.mktemp("report")
    comparison = Comparison(("none", "rope", "t5", "alibi"), 2, replace(TINY, factors=(1, 2, 4)))
    results = compare(
        comparison,
        data.corpus(TEXT, HOSTILE),
        directory,
        engine=InProcess(),
        command="posenc compare --data '<b>'",
        render=page,
    )
    return directory / "report.html", results


def test_it_is_one_file_with_every_number(report):
    path, results = report
    text = path.read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?http", text)
    for arm in results["arms"]:
        assert escape(arm["name"]) in text
        assert f"{arm['lengths'][0]['loss']['mean']:.3f}" in text
    for sentence in (*results["answer"], *results["limits"]):
        assert escape(sentence, quote=False) in text.replace("&#39;", "'").replace("&#34;", '"')
    assert results["data"]["sha256"] in text
    assert text == page(results)


def test_names_cannot_inject_markup(report):
    text = report[0].read_text()
    assert HOSTILE not in text
    assert escape(HOSTILE) in text
    assert "--data &#39;&lt;b&gt;&#39;" in text


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_a_browser_shows_it_without_complaint(report, new_tab, scheme, width):
    path, results = report
    tab = new_tab(color_scheme=scheme, viewport={"width": width, "height": 900})
    tab.goto(path.as_uri())
    tab.wait_for_function("document.querySelectorAll('.main-svg').length >= 3")
    assert tab.locator("#ranking tbody tr").count() == len(results["arms"])
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    lines = tab.evaluate("document.getElementById('plot-change').data.map(t => [t.name, Array.from(t.y)])")
    for arm, (name, ys) in zip(results["arms"], lines, strict=True):
        assert name == arm["name"]
        assert ys == pytest.approx([p["change"]["mean"] for p in arm["lengths"]])
    ink = tab.evaluate("document.getElementById('plot-change')._fullLayout.font.color")
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ink, ground) == (("#1c2430", "rgb(255, 255, 255)") if scheme == "light" else ("#e6eaf0", "rgb(18, 22, 28)"))
    if scheme == "light":
        tab.emulate_media(color_scheme="dark")
        tab.wait_for_function("document.getElementById('plot-change')._fullLayout.font.color === '#e6eaf0'")


@pytest.mark.browser
def test_the_curves_answer_to_the_reader(report, browser):
    path, results = report
    tab = browser.new_page()
    tab.goto(path.as_uri())
    tab.wait_for_function("document.querySelectorAll('.main-svg').length >= 3")
    tab.locator("#plot-position .updatemenu-button").nth(1).click()
    above = tab.evaluate("Array.from(document.getElementById('plot-position').data[0].y)")
    assert above == pytest.approx([0.0] * len(results["arms"][0]["by_position"]))
    tab.locator("#plot-change .legendtoggle").first.click()
    tab.wait_for_function("document.getElementById('plot-change').data[0].visible === 'legendonly'")
    tab.close()


def test_unfinished_and_lone_results_make_a_page(report):
    results = json.loads(json.dumps(report[1]))
    results["complete"], results["command"], results["extensions"] = False, "", []
    results["arms"] = results["arms"][:1]
    results["arms"][0]["encoding"] = "rope:rope_theta=1e+5+alibi"
    text = page(results)
    assert "Stopped early" in text
    assert "depends on m - n alone. Attention with linear biases" in text
    assert "Longer without retraining" not in text
