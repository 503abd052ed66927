"""The explorer as a file, as a part of another page, and what neither takes."""

import re
from html import unescape

import pytest

from posenc.errors import InputError
from posenc.report import explorer
from report.explorer_page import state, values


@pytest.mark.browser
def test_a_page_that_holds_it_keeps_its_address(visit, tmp_path):
    path = tmp_path / "host.html"
    block = explorer.block({"encoding": "rope", "method": "yarn:beta_fast=8"})
    path.write_text(
        f"<!doctype html><meta charset=utf-8><link rel=icon href='data:,'><h2 id=cost>x</h2>{block}", encoding="utf-8"
    )
    tab = visit("cost", path)
    assert state(tab)["method"] == "yarn:beta_fast=8"
    assert tab.locator(".note").is_hidden()
    tab.fill("#explorer-length", "200")
    assert tab.evaluate("[location.hash, history.length]") == ["#cost", 2]
    shared = values(tab)["address"]
    assert shared.startswith("#explorer:")
    assert state(visit(shared[1:], path))["length"] == 200
    assert tab.evaluate("getComputedStyle(document.querySelector('h2')).color") == "rgb(0, 0, 0)"


@pytest.mark.browser
def test_a_view_alone_has_its_controls_and_tells_its_host_its_height(visit, new_tab, explorer_file, tmp_path):
    tab = visit("view=waves&encoding=rope&method=linear&dim=64", viewport={"width": 340, "height": 800})
    shown = tab.locator(".view:visible")
    assert [figure.get_attribute("data-view") for figure in shown.all()] == ["waves"]
    fields = tab.locator(".controls > .fields > .field:visible label").all_inner_texts()
    assert fields == ["Channels (head_dim)", "Training length", "Base (rope_theta)", "Extension method", "Factor"]
    assert tab.locator(".line, .presets, .buttons, h1").filter(visible=True).count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth") == 340
    says = tab.locator(".view:visible .see").inner_text()
    tab.fill("#explorer-factor", "8")
    tab.wait_for_function("says => document.querySelector('[data-view=waves] .see').innerText !== says", arg=says)
    assert tab.evaluate("history.length") == 2
    host = tmp_path / "host.html"
    listen = "addEventListener('message', event => { document.title = event.data.explorerHeight; })"
    address = f"{explorer_file.as_uri()}#view=bias&encoding=alibi"
    host.write_text(f"<link rel=icon href='data:,'><script>{listen}</script><iframe src='{address}'></iframe>")
    tab = new_tab()
    tab.goto(host.as_uri())
    tab.wait_for_function("Number(document.title) > 300")


@pytest.mark.browser
def test_the_line_of_tokens_alone(visit):
    tab = visit("view=line&encoding=rope&method=linear", viewport={"width": 700, "height": 800})
    fields = tab.locator(".field:visible").evaluate_all("all => all.map(one => one.dataset.field)")
    assert fields == ["encoding", "method", "factor"]
    assert tab.locator(":is(.view, .weights, .code, .save, h1):visible").count() == 0
    assert tab.locator(".side:visible .faces li").count() == 8  # as trained, and under the method
    tab.get_by_role("slider", name="Token you", exact=True).press("End")
    tab.wait_for_function("posenc.explorer.values().tokens[1].position === 127")


@pytest.mark.browser
def test_without_scripts_a_sentence_stands_there(visit):
    tab = visit(java_script_enabled=False)
    assert "turned off" in tab.locator("noscript").inner_text()
    assert tab.locator(".layout").is_hidden()


def test_it_says_what_is_not_drawn():
    text = unescape(explorer.page())
    for reason, names in explorer.settings()["undrawn"].items():
        assert f"{', '.join(names)}: <span>{reason}</span>." in text


def test_it_is_one_file_and_nothing_breaks_out_of_it():
    text = explorer.page({"tokens": "</script><b>"})
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?http", text)
    assert "</script><b>" not in text
    assert len(re.findall(r'id="explorer"', text)) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"encoding": "shaws"}, "unknown encoding in the explorer 'shaws'"),
        (
            {"encoding": "swin:init_std=1"},
            "encoding='swin:init_std=1': the explorer does not draw it, since its positions have",
        ),
        ({"method": "yran"}, "did you mean 'yarn'"),
        ({"dim": 63}, "dim=63: dim of a code, head_dim of a rotation; two make a pair; an even number from 4 to 256"),
        ({"length": 8.5}, "an integer from 8 to 1024"),
        ({"base": float("nan")}, "base=nan"),
        ({"heads": True}, "heads=True"),
        ({"curve": "line"}, "unknown curve 'line'"),
        ({"depth": 3}, "unknown field of the explorer 'depth'"),
    ],
)
def test_a_state_that_cannot_be_shown_is_refused(given, message):
    with pytest.raises(InputError, match=re.escape(message)):
        explorer.page(given)
