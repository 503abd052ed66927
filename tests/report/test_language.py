"""The explorer and the page that predicts in Chinese: every sentence has a Chinese one with the same values, and the page shows it."""

import json
import re
from html import unescape
from itertools import count
from pathlib import Path

import pytest

from posenc.errors import InputError
from posenc.lab.text import Settings
from posenc.report import explorer, predict
from posenc.report.explorer import settings
from posenc.report.html import asset
from report.explorer_page import go, redrawn, state, unfold

SCRIPTS = {"explorer": explorer.SCRIPTS, "predict": predict.SCRIPTS}
CATALOGUES = {page: json.loads(asset(f"{page}/chinese.json")) for page in SCRIPTS}
WORDS = CATALOGUES["explorer"]
CORPUS = Settings().load("pydoc")[0].name
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
"""Addresses of the explorer."""
PREDICTED = [
    "encoding=alibi", "encoding=none&at=20", "encoding=t5", "encoding=sinusoidal&at=9", "method=linear", "method=ntk&at=8",
    "method=yarn", "method=llama3", "method=dynamic", "method=rerope", "method=leaky_rerope&factor=2", "method=self_extend&at=40",
    "text=", "text=a", "text=%E0%A4%A", "", "text=é%0A%01é+é", "encoding=ropes&method=ntk&factor=x&window=1.5&at=0&depth=3",
    "encoding=alibi&method=yarn", f"text={'word+' * 300}",
]  # fmt: skip
"""Addresses of the page that predicts."""
ENGLISH = """except => {
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const box = node.parentElement;
    if (!box.checkVisibility() || box.closest(except) || /\\p{Script=Han}/u.test(node.textContent)) continue;
    if (/[a-z]+ [a-z]+ [a-z]+/i.test(node.textContent.replace(/[“”‘’\u2068\u2069]/g, ""))) found.push(node.textContent.trim());
  }
  return found;
}"""
"""Texts of a page that have three words in a row and no Chinese."""


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


@pytest.mark.parametrize(("page", "least"), [("explorer", 250), ("predict", 80)])
def test_every_sentence_of_the_scripts_has_a_chinese_one_with_its_values(page, least):
    scripts, words = [asset(f"{name}.js") for name in SCRIPTS[page] if name.startswith(f"{page}/")], CATALOGUES[page]
    english = {text for script in scripts for text in templates(script)}
    assert len(english) > least
    assert english - set(words) == set()
    for text, chinese in words.items():
        assert set(re.findall(r"{\d}", chinese)) <= set(re.findall(r"{\d}", text)), text


def test_what_is_looked_up_in_the_plural_has_a_chinese_one():
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
        "θ (theta)", "mscale", "Step", "Token", "position", "distance", "channel", "pair", "bias", "training length",
    }  # fmt: skip
    assert {text for text in english if text not in WORDS} - untouched == set()


def test_every_word_of_the_page_that_predicts_has_a_chinese_one_and_none_is_idle():
    words = CATALOGUES["predict"]
    page = predict.page({"none": "none.js"}, ["a text"], 16)
    page = re.sub(r"<(script|style)\b.*?</\1>|<span lang=\"zh\">.*?</span>", "", page, flags=re.DOTALL)
    texts = re.findall(r">([^<>]+)<", page) + re.findall(r'aria-label="(.*?)"', page)
    shown = {" ".join(unescape(text).split()) for text in texts} - {"", "中文"}
    numbered = {text if text in words else numbers_as_values(text) for text in shown}
    given = set(predict.ENCODINGS.values()) - {"RoPE", "ALiBi", "T5"} | {CORPUS}
    assert (numbered | given) - set(words) == set()
    scripts = [asset(f"{name}.js") for name in predict.SCRIPTS if name.startswith("predict/")]
    assert set(words) - numbered - given - {text for script in scripts for text in templates(script)} == {", "}


def numbers_as_values(text):
    """ "16 bytes" -> "{0} bytes" """
    at = count()
    return re.sub(r"\d+", lambda _: f"{{{next(at)}}}", text)


def test_two_catalogues_say_the_same_the_same_way():
    one, other = CATALOGUES.values()
    assert {text for text in one.keys() & other.keys() if one[text] != other[text]} == set()


@pytest.mark.browser
def test_the_explorer_shows_chinese_and_goes_back_to_english(browser, tmp_path):
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
            ENGLISH, "script, style, select, .track, .scores tbody, .lines, .hint:not(.meaning), [data-option]"
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


# ---------------------------------------------------------------- the page that predicts


TEXT = "A text — é — of more bytes\nthan the models were trained on."
NAMES = (
    "RoPE", "ALiBi", "T5", "Sinusoidal", "NTK-aware", "NTK", "YaRN", "ReRoPE", "Leaky", "Self-Extend", "Llama", "PI", "Transformer",
    "posenc", "token", "JavaScript", "English", "Python", "pydoc_data.topics",
)  # fmt: skip
"""What is English in Chinese, too."""
GO = """hash => new Promise(done => {
  addEventListener("hashchange", () => setTimeout(done), { once: true });
  location.hash = hash;
})"""
WRITTEN = """() => {
  for (const canvas of document.querySelectorAll("canvas")) canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    if (!node.parentElement.closest("script, style, noscript, textarea, .bytes, .guesses th, [hidden]")) found.push(node.textContent);
  }
  for (const name of ["aria-label", "aria-valuetext", "data-empty"]) for (const one of document.querySelectorAll(`[${name}]`)) found.push(one.getAttribute(name));
  return [document.title, ...found, ...drawn.splice(0)];
}"""
"""Every text of the page, and those on its canvases."""
DRAWN = "window.drawn = []; const of = CanvasRenderingContext2D.prototype, fill = of.fillText; of.fillText = function (text, ...at) { drawn.push(text); return fill.call(this, text, ...at); };"
ADDRESSED = re.compile(r"“[^”]*”|\w+=\S*|(rope|alibi|none)(, \w+)+|yarn (?=扩展)|ntk (?=扩展)|\d: [^\n]*")
"""What a page repeats of its address, or of a passage."""


@pytest.fixture(scope="module")
def predicting(tmp_path_factory):
    """The page, opening in Chinese."""
    settings = Settings(length=16, dim=32, num_heads=2, head_dim=16, targets=8)
    about = {"steps": 1, "seed": 0, "corpus": CORPUS, "read": 16}
    weights = {
        name: predict.Weights.of(settings.make_model(settings.make_encoding(name)), 16, **about)
        for name in predict.ENCODINGS
    }
    path = tmp_path_factory.mktemp("chinese") / "page.html"
    links = {"en": {"About this page": "#en"}, "zh": {"关于本页": "#zh"}}
    path.write_text(predict.page(weights, [TEXT], 16, "zh", links), encoding="utf-8")
    return path


COMPLETE = "posenc.predict && posenc.predict.complete()"


@pytest.mark.browser
def test_the_page_that_predicts_has_no_english_left_in_chinese(new_tab, predicting):
    tab = new_tab(alone=True)
    tab.add_init_script(DRAWN)
    tab.goto(predicting.as_uri())
    tab.wait_for_function(COMPLETE)
    unfold(tab)
    english = set()
    for one in PREDICTED:
        tab.evaluate(GO, one)
        tab.wait_for_function(COMPLETE)
        for text in tab.evaluate(WRITTEN):
            found = ADDRESSED.sub("", text)
            for name in sorted(NAMES, key=len, reverse=True):
                found = found.replace(name, "")
            if re.search(r"[A-Za-z]{2}", found):
                english.add(text)
    assert sorted(english) == []


@pytest.mark.browser
def test_the_page_that_predicts_opens_in_its_language_and_changes_it(new_tab, predicting):
    tab = new_tab()
    tab.goto(f"{predicting.as_uri()}#method=yarn")
    tab.wait_for_function(COMPLETE)
    assert tab.locator("html").get_attribute("lang") == "zh-Hans"
    assert tab.title() == "超出训练长度：posenc 的模型做预测"
    assert re.match(
        r"超过 16 字节后，.*RoPE 模型每字节.损失 [\d.]+ 奈特（[\d.]+，分段为 [\d.]+）。|.*；YaRN（4 倍）：",
        tab.locator(".headline").inner_text(),
    )
    assert tab.locator("[data-in]:visible").all_inner_texts() == ["关于本页"]
    tab.get_by_role("button", name="English").click()
    tab.wait_for_function(f"document.documentElement.lang === 'en' && {COMPLETE}")
    assert tab.evaluate("location.hash") == "#method=yarn&lang=en"
    assert tab.title().startswith("Past the training length")
    assert tab.locator("[data-in]:visible").all_inner_texts() == ["About this page"]
    tab.select_option("#predict-method", "none")
    tab.wait_for_function(COMPLETE)
    assert tab.evaluate("location.hash") == "#lang=en"
    tab.get_by_role("button", name="中文").click()
    tab.wait_for_function(f"document.documentElement.lang === 'zh-Hans' && {COMPLETE}")
    assert tab.evaluate("location.hash") == ""


@pytest.mark.browser
def test_an_explorer_that_opens_in_chinese_goes_to_english(new_tab, tmp_path):
    path = tmp_path / "explorer.html"
    path.write_text(explorer.page({"lang": "zh"}), encoding="utf-8")
    tab = new_tab()
    tab.goto(path.as_uri())
    tab.get_by_role("button", name="English").click()
    tab.get_by_role("button", name="中文").wait_for()
    assert tab.evaluate("location.hash") == "#lang=en"


def test_another_language_is_refused():
    with pytest.raises(InputError, match="unknown language of the page 'fr'"):
        predict.page({"none": "none.js"}, ["a text"], 16, "fr")
