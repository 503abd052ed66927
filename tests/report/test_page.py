"""The report in a real browser: no console error, no network, theme and phone width; its words and numbers."""

import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

from posenc.lab import data
from posenc.lab.compare import Comparison, compare, experiment
from posenc.lab.engines import InProcess
from posenc.lab.text import Settings
from posenc.report.compare import page, styles, trade_off
from posenc.report.html import asset
from posenc.report.leaderboard import _tenths

TABLES = asset("sorting.js") + (Path(__file__).parents[2] / "docs/website/tables.js").read_text(encoding="utf-8")
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
        pages=lambda results: {"report.html": page(results)},
    )
    return directory / "report.html", results


def test_a_box_around_a_table_gets_an_input_a_choice_and_sorted_columns(new_tab):
    rows = {"b": "reversed", "a": "confirmed", "c": "reversed", "d": "Loose"}
    cells = "".join(f"<tr><td><a></a>{claim}</td><td>{verdict}</td></tr>" for claim, verdict in rows.items())
    tab = new_tab()
    tab.set_content(
        f'<div class="sortable" data-find="Find" data-all="all"><table><thead><tr><th>claim</th><th>verdict</th></tr></thead><tbody>{cells}</tbody>'
        f"</table></div><script>{TABLES}</script>"
    )

    def claims():
        return tab.locator("tbody tr:visible td:first-child").all_inner_texts()

    assert claims() == [*"bacd"]
    assert tab.locator("option").all_inner_texts() == ["all", "reversed"]
    tab.select_option("select", "reversed")
    assert claims() == [*"bc"]
    tab.fill("input", "C")
    assert claims() == [*"c"]
    tab.fill("input", "")
    tab.select_option("select", "")
    for expected in ("abcd", "dcba"):
        tab.click("th button >> nth=0")
        assert claims() == [*expected]


def test_it_is_one_file_with_every_number(report):
    path, results = report
    text = path.read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?http", text)
    for variant in results["variants"]:
        assert escape(variant["name"]) in text
        assert f"{variant['lengths'][0]['loss']['mean']:.3f}" in text
    for sentence in (*results["answer"], *results["limits"]):
        assert escape(sentence, quote=False) in text.replace("&#39;", "'").replace("&#34;", '"')
    assert results["data"]["sha256"] in text
    assert text == page(results)
    assert len(text.encode()) < 5e5


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_a_browser_shows_it_without_complaint(report, new_tab, scheme, width):
    path, results = report
    tab = new_tab(color_scheme=scheme, viewport={"width": width, "height": 900})
    tab.goto(path.as_uri())
    assert tab.evaluate("Object.keys(posenc.report.probes).sort()") == ["change", "training"]
    assert tab.locator("#ranking tbody tr").count() == len(results["variants"])
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("document.querySelector('#ranking').scrollWidth") <= width
    further = tab.locator("#ranking thead .more").first
    assert further.is_visible() == (width > 400)
    if width < 400:
        tab.get_by_label("All columns").first.check()
        assert further.is_visible()
    lines = tab.evaluate("posenc.report.shown.change.series.map(one => [one.name, one.y])")
    for variant, (name, ys) in zip(results["variants"], lines, strict=True):
        assert name == variant["name"]
        assert ys == pytest.approx([p["loss"]["mean"] for p in variant["lengths"]], rel=1e-4)
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 22, 28)")
    dark = "posenc.draw.theme(document.querySelector('.plot')).ink"
    assert tab.evaluate(dark) == ("#1c2430" if scheme == "light" else "#e6eaf0")
    painted = (
        "document.querySelector('#plot-change canvas').getContext('2d').getImageData(0, 0, 300, 300).data.some(v => v)"
    )
    assert tab.evaluate(painted)


@pytest.mark.browser
def test_the_curves_answer_to_the_reader(report, new_tab):
    path, results = report
    tab = new_tab()
    tab.goto(path.as_uri())
    tab.locator("#by-size input[type=checkbox]").first.press("Space")
    names = "posenc.report.shown.change.series.map(one => one.name)"
    assert tab.evaluate(names) == [variant["name"] for variant in results["variants"][1:]]
    tab.locator("#plot-change canvas").press("ArrowRight")
    read = tab.locator("#plot-change output").inner_text()
    assert read.startswith(f"{results['variants'][1]['name']}: ")
    tab.locator("#plot-change summary").press("Enter")
    tab.locator("#plot-change tbody th").last.wait_for()  # the table is made when it is opened
    heads = tab.locator("#plot-change thead th").all_inner_texts()
    assert heads == ["length in the test, bytes", *(variant["name"] for variant in results["variants"][1:])]
    sizes = tab.locator("#plot-change tbody th").all_inner_texts()
    assert sizes == ["16", "32", "64"]
    tab.goto(f"{path.as_uri()}#only=rope&only=none")
    tab.reload()
    assert set(tab.evaluate(names)) == {"none", "rope"}


def test_unfinished_and_lone_results_make_a_page(report):
    results = json.loads(json.dumps(report[1]))
    results["complete"], results["command"], results["extensions"] = False, "", []
    results["variants"] = results["variants"][:1]
    results["variants"][0]["encoding"] = "rope:rope_theta=1e+5+alibi"
    text = page(results)
    assert "Stopped early" in text


def test_the_scatter_has_the_number_of_what_is_far_from_all_others():
    s = Settings()
    losses = [1.3 + 0.05 * at for at in range(15)] + [4.7]
    variants = []
    for at, loss in enumerate(losses):
        point = {"loss": {"mean": loss, "low": loss - 0.1, "high": loss + 0.1}}
        variants.append(
            {"name": f"e{at}", "encoding": f"e{at}", "trained": True, "lengths": [point] * len(s.conditions)}
        )
    found = trade_off(variants, s, styles(variants))["series"]
    assert max(each["y"][0] for each in found) == pytest.approx(losses[-2])
    assert all(abs(each["y"][0] - loss) < 1e-9 for each, loss in zip(found[:-1], losses, strict=False))
    assert [each["label"] for each in found[:-1]] == [True] * 15
    assert found[-1]["label"] == "e15 4.700, 4.700"
    assert "4.700 (4.600 to 4.800)" in found[-1]["texts"][0]
    few = trade_off(variants[-3:], s, styles(variants))["series"]
    assert few[-1]["y"][0] == pytest.approx(4.7)
    assert few[-1]["label"] is True


@pytest.mark.parametrize(("mean", "tenths"), [(0.2, 0), (0.1, 0), (0.6, 5), (1.0, 10)])
def test_the_colour_of_a_score_is_how_far_it_is_from_guessing(mean, tenths):
    point = {"chance": 0.2, "accuracy": {"mean": mean}}
    assert _tenths(point, experiment("copy")().criterion) == tenths
    assert _tenths(point | {"chance": None}, experiment("copy")().criterion) == 0
