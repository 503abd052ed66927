"""The explorer in Chinese: every sentence has a Chinese one with the same values, and the page shows it."""

import json
import re
from pathlib import Path

import pytest

from posenc.report import explorer
from posenc.report.explorer import SCRIPTS, settings
from posenc.report.html import asset
from report.explorer_page import go, redrawn, state

WORDS = json.loads(asset("explorer/chinese.json"))
PLURALS = (
    "pair", "time", "bucket", "{0}, {1} position{2} before it", "{0}, {1} position{2} after it", "{0}{1} turn{4} {2} {3}°"
)  # fmt: skip
"""What is looked up in the singular and the plural, by `say`."""
STATES = [
    *(f"step={step}" for step in range(1, 9)),
    "encoding=rope&method=yarn&length=256", "encoding=rope&method=streaming:recent=60&length=256", "encoding=alibi&length=256",
    "encoding=t5&length=256", "encoding=deberta_v2", "encoding=window:before=15", "encoding=fire", "encoding=stick_breaking",
    "encoding=integer", "encoding=binary", "encoding=none&position_only=true", "encoding=kerple", "encoding=rope&bidirectional=true",
]  # fmt: skip


def templates(code):
    """The English of every t`...` in a script, its values numbered."""
    found = []

    def read(at, counts):
        text, values = "", 0
        while code[at] != "`":
            if not code.startswith("${", at):
                text, at = text + code[at], at + 1
                continue
            text, values, depth, at = f"{text}{{{values}}}", values + 1, 1, at + 2
            while depth:
                if code[at] == "`":
                    at = read(at + 1, code[at - 1] == "t")
                    continue
                if code[at] in "\"'":  # a string, whose brackets count for nothing
                    at = code.index(code[at], at + 1)
                depth += {"{": 1, "}": -1}.get(code[at], 0)
                at += 1
        if counts:
            found.append(text)
        return at + 1

    at = 0
    for start in re.finditer(r"`", re.sub(r"//.*", lambda comment: " " * len(comment[0]), code)):
        if start.start() >= at:
            at = read(start.end(), bool(re.search(r"(?<![\w.])t$", code[: start.start()])))
    return found


def test_every_sentence_of_the_scripts_has_a_chinese_one_with_its_values():
    english = {text for name in SCRIPTS if name.startswith("explorer/") for text in templates(asset(f"{name}.js"))}
    assert len(english) > 250
    assert english - set(WORDS) == set()
    for text, chinese in WORDS.items():
        assert set(re.findall(r"{\d}", chinese)) <= set(re.findall(r"{\d}", text)), text
    for one in PLURALS[:3]:
        assert {f"{{0}} {one}", f"{{0}} {one}s"} <= set(WORDS)


def test_every_word_of_the_settings_has_a_chinese_one():
    found = settings()
    english = [text for field in found["fields"].values() for text in (field["label"], field["meaning"])]
    english += [text for step in found["path"] for text in (step["title"], step["says"], step["ask"])]
    english += [text for preset in found["presets"] for text in (preset["name"], preset["says"])]
    english += (
        [text for pair in found["glossary"].items() for text in pair]
        + list(found["undrawn"])
        + list(found["encodings"])
    )
    untouched = {
        "θ (theta)",
        "mscale",
        "Step",
        "Token",
        "position",
        "distance",
        "channel",
        "pair",
        "bias",
        "training length",
    }
    assert {text for text in english if text not in WORDS} - untouched == set()


@pytest.mark.browser
def test_the_page_shows_chinese_and_goes_back_to_english(browser, tmp_path):
    path = tmp_path / "explorer.html"
    path.write_text(explorer.page(), encoding="utf-8")
    tab, errors = browser.new_page(), []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(f"{path.as_uri()}#lang=zh")
    assert tab.locator("html").get_attribute("lang") == "zh-Hans"
    english = []
    for one in STATES:
        go(tab, f"{one}&lang=zh")
        english += tab.evaluate(
            """() => {
              const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
              for (let node = texts.nextNode(); node; node = texts.nextNode()) {
                const box = node.parentElement;
                if (!box.checkVisibility() || box.closest("script, style, select, .track, .scores tbody, .lines, .hint:not(.meaning), [data-option]") || /\\p{Script=Han}/u.test(node.textContent)) continue;
                if (/[a-z]+ [a-z]+ [a-z]+/i.test(node.textContent.replace(/[“”‘’\u2068\u2069]/g, ""))) found.push(node.textContent.trim());
              }
              return found;
            }"""
        )
    assert sorted(set(english)) == []
    assert state(tab)["lang"] == "zh"
    tab.get_by_role("button", name="English").click()
    tab.wait_for_function("document.documentElement.lang === 'en'")
    assert "lang" not in tab.evaluate("location.hash")
    tab.get_by_role("button", name="中文").wait_for()
    with redrawn(tab):
        tab.locator("#explorer-preset").select_option(index=2)
    assert errors == []
    tab.close()


def test_a_block_carries_chinese_where_it_is_asked_for():
    assert '"Reset":"重置"' not in str(explorer.block()).replace(": ", ":")
    assert '"Reset":"重置"' in str(explorer.block({"lang": "zh"})).replace(": ", ":")
    assert Path(explorer.__file__).with_name("explorer").joinpath("chinese.json").is_file()
