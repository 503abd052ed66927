"""The gallery of encodings: every one has a card, what it shows is computed, and two can be compared."""

import json
import re
from html import unescape

import pytest
import torch
from website import gallery
from website.encodings import declared
from website.markdown import for_site
from website.page import DOCS

import posenc
from posenc.encodings import ENCODINGS
from posenc.encodings.catalogue import FAMILIES, family

FEW = ("alibi", "window", "axial_rope", "stick_breaking", "pose")
"""Whose pictures take little time, of five families."""


@pytest.fixture
def few(monkeypatch):
    """A gallery of these alone."""
    rows = {name: declared()[name] for name in FEW}
    monkeypatch.setattr(gallery, "declared", lambda: rows)
    monkeypatch.setattr(gallery, "ENCODINGS", {name: ENCODINGS[name] for name in FEW})


def test_every_encoding_has_a_title_a_family_and_values_of_all_filters_but_memory(monkeypatch):
    monkeypatch.setattr(gallery, "memory", lambda _: "fused")
    for name, row in declared().items():
        assert row["title"] == ENCODINGS[name].title != "", name
        found = gallery.facets(row)
        assert all(value in gallery.FACETS[facet] for facet, value in found.items()), name
        assert found["family"] == family(ENCODINGS[name])
    assert {row["family"] for row in declared().values()} == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "key"),
    [("rope", "rotary"), ("xpos", "rotary"), ("t5", "bias"), ("fire", "bias"), ("sinusoidal", "absolute"), ("fox", "content"),
     ("swin", "grid"), ("m_rope", "grid"), ("window", "visible"), ("pose", "augment"), ("none", "none"), ("shaw", "scores")],
)  # fmt: skip
def test_families_are_those_that_people_know(name, key):
    assert family(ENCODINGS[name]) == key


def test_a_class_that_declares_nothing_has_a_family_and_its_own_name():
    class Fade(posenc.Encoding):
        def bias(self, q, k, positions, layer=0):
            return None

    class Turn(posenc.Rotary):
        pass

    assert (family(Fade), family(Turn), Turn.title, Turn.family) == ("scores", "rotary", "", "")


def test_what_is_drawn_is_computed():
    lines = torch.tensor(gallery.curve("alibi"), dtype=torch.float64)
    assert lines.shape[1] == len(gallery.DISTANCES)
    far = torch.tensor(gallery.DISTANCES, dtype=torch.float64)
    torch.testing.assert_close(lines, lines[:, 1:2] * far)
    assert {-slope for slope in lines[:, 1].tolist()} == {4.0**-k for k in range(1, 5)}  # of four heads
    assert gallery.curve("window") == gallery.curve("stick_breaking") == []
    row = gallery.around("axial_rope")[7, 7:]
    torch.testing.assert_close(torch.tensor(gallery.curve("axial_rope")[0]), (row - row[0]).to(torch.float32))


def test_memory_grows_as_the_library_says():
    assert [gallery.memory(name) for name in ("alibi", "cope", "dape")] == ["fused", "blocks", "blocks"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_card_has_a_picture_a_sentence_and_a_link(few, language):
    html = gallery.gallery(language)
    cards = re.findall(r"<li .*?</li>", html)
    assert len(cards) == len(FEW)
    for card in cards:
        name = re.search(r'data-name="(\w+)"', card)[1]
        assert f'<a href="{name}.html"><code>{name}</code></a>' in card
        assert re.search(r"<svg .*?<(polyline|image|circle) ", card)
        assert re.search(r'<p class="what"[^>]*>.{15,}\.</p>', card)
        assert "nan" not in card
        assert len(card) < 20_000
    words = json.loads(unescape(re.search(r'data-words="(.*?)"><ul', html)[1]))
    assert set(words["facets"]) == set(gallery.FACETS)
    assert [set(words) - {"facets"}] == [set(gallery.WORDS["en"])] == [set(gallery.WORDS["zh"])]


@pytest.mark.parametrize("page", ["encodings.md", "encodings.zh.md"])
def test_the_page_has_a_place_for_the_gallery(page):
    text = for_site((DOCS / page).read_text(encoding="utf-8"), DOCS / page)
    assert f"<!-- gallery: {'zh' if '.zh' in page else 'en'} -->" in text


@pytest.mark.browser
def test_cards_are_filtered_found_and_compared(few, tmp_path, new_tab):
    head = "<!doctype html><html lang=en><meta charset=utf-8><title>t</title><div class=md-typeset>"
    (tmp_path / "index.html").write_text(f"{head}{gallery.gallery('en')}</div>", encoding="utf-8")
    (tmp_path / gallery.SCRIPT).write_text(gallery.script(), encoding="utf-8")
    tab = new_tab(viewport={"width": 360, "height": 800})
    tab.goto((tmp_path / "index.html").as_uri())
    shown = lambda: tab.locator(".cards > li:visible").evaluate_all("all => all.map(one => one.dataset.name)")  # noqa: E731
    assert sorted(shown()) == sorted(FEW)
    assert not tab.get_by_label("Images and video").is_visible()  # on a phone, cards come first
    tab.get_by_text("Filters", exact=True).click()
    tab.get_by_label("Images and video").check()
    assert shown() == ["axial_rope"]
    tab.get_by_label("Relative bias").check()
    assert sorted(shown()) == ["alibi", "axial_rope"]
    assert tab.locator(".shown").inner_text().startswith("2 of 5 encodings.")
    tab.get_by_role("searchbox").fill("线性偏置")
    assert shown() == ["alibi"]
    tab.get_by_role("button", name="Clear all").click()
    tab.get_by_label("Compare: alibi").check()
    assert tab.locator(".versus").is_hidden()
    tab.get_by_label("Compare: axial_rope").check()
    assert tab.locator(".versus polyline.first").count() == 1 + len(gallery.curve("alibi"))
    assert tab.locator(".versus thead th").count() == 2
    assert tab.evaluate("location.hash") == "#compare=alibi,axial_rope"
    tab.goto(f"{(tmp_path / 'index.html').as_uri()}#compare=window,pose&family=visible,nothing&search=window")
    tab.reload()
    assert shown() == ["window"]
    assert "window, pose" in tab.locator(".versus").inner_text()
    assert tab.locator(".versus .plot").count() == 0
    tab.get_by_role("button", name="Close").click()
    assert tab.evaluate("location.hash") == "#search=window&family=visible"
    tab.get_by_role("searchbox").fill("no such encoding")
    assert tab.locator(".shown").inner_text() == "No encoding has all of this."
