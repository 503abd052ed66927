"""The Chinese guides have the code, links, tables and numbers of the English ones."""

import re
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "docs/guides"
CHINESE = sorted(GUIDES.glob("*.zh.md"))
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)]+)\)")
NUMBER = re.compile(r"(?<![\w./#-])\d+(?:[.,/]\d+)*")


def editions(path):
    english = path.with_name(path.name.replace(".zh.md", ".md"))
    return [each.read_text(encoding="utf-8") for each in (english, path)]


def parts(text):
    """By section: the prose without code."""
    return BLOCK.sub("", text).split("\n## ")


def links(text):
    """Addresses in order, without the choice of the edition."""
    return [re.sub(r"(\.zh)?\.md", ".md", link) for link in LINK.findall(text)]


def test_two_guides_are_in_chinese():
    assert [path.name for path in CHINESE] == ["extend.zh.md", "getting-started.zh.md"]


@pytest.mark.parametrize("path", CHINESE, ids=lambda path: path.name)
def test_a_chinese_guide_has_the_code_of_the_english_one(path):
    english, chinese = ([re.sub(r"\s+# .*", "", block) for block in BLOCK.findall(text)] for text in editions(path))
    assert chinese == english


@pytest.mark.parametrize("path", CHINESE, ids=lambda path: path.name)
def test_a_chinese_guide_has_the_links_tables_and_numbers_of_the_english_one(path):
    english, chinese = map(parts, editions(path))
    assert len(chinese) == len(english)
    for one, other in zip(english, chinese, strict=True):
        assert links(other) == links(one), one[:60]
        assert other.count("\n|") == one.count("\n|"), one[:60]
        plain = [LINK.sub("]", text) for text in (one, other)]
        assert sorted(NUMBER.findall(plain[1])) == sorted(NUMBER.findall(plain[0])), one[:60]
        names = [sorted(re.findall(r"`[^`\n]+`", text)) for text in plain]
        assert names[1] == names[0], one[:60]


@pytest.mark.parametrize("path", CHINESE, ids=lambda path: path.name)
def test_a_chinese_guide_links_to_chinese_pages_where_there_are_some(path):
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        page = (path.parent / link.partition("#")[0]).resolve()
        chinese = page.with_name(page.name.replace(".md", ".zh.md"))
        assert page.suffix != ".md" or page.name.endswith(".zh.md") or not chinese.exists() or chinese == path, link
