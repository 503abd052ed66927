"""README.md and README.zh.md fit a newcomer's first minute, have the same code, links and pictures, and say what was measured."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
MOST_WORDS, MOST_OF_BULLET, MOST_OF_CELL, MOST_ROWS = 650, 15, 20, 5


def code(text):
    """The fenced blocks without their comments."""
    return [re.sub(r"\s+#.*", "", block) for block in re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)]


def addresses(text):
    """What a page links to, the editions of a page as one."""
    return {re.sub(r"\.zh|#.*", "", link) for link in re.findall(r"\]\(([^)]+)\)", text)} - {"README.md", ""}


def seen(text):
    """What a reader sees of a page, without code and pictures."""
    text = re.sub(r"^```.*?^```|<!--.*?-->|<[^>]+>", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)


def words(text):
    """A Chinese word has about two characters."""
    han = r"[\u4e00-\u9fff]"
    return len(re.findall(r"\w[\w.'-]*", re.sub(han, " ", text))) + len(re.findall(han, text)) // 2


def cells(text):
    """The rows of the tables, without their rules."""
    rows = re.findall(r"^\|.*\|$", text, re.MULTILINE)
    return [[cell.strip() for cell in row[1:-1].split("|")] for row in rows if not re.search(r"\| -{3}", row)]


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_the_front_page_fits(text):
    shown = seen(text)
    prose = "\n".join(line for line in shown.splitlines() if not line.startswith("|"))
    assert words(prose) <= MOST_WORDS
    bullets = re.findall(r"^- (\*\*.*)$", shown, re.MULTILINE)
    assert len(bullets) == 6
    assert max(map(words, bullets)) <= MOST_OF_BULLET
    for cell in (cell for row in cells(text) for cell in row):
        assert words(cell) <= MOST_OF_CELL, cell
        assert len(re.findall(r"(?<![\w_])\d[\d.]*(?: of \d+| ?/ ?\d+)?", re.sub(r"`[^`]*`", "", cell))) <= 1, cell
        assert "](" not in cell
    advice = re.search(r"<!-- front.*?<!-- end of front", text, re.DOTALL)[0]
    assert 0 < len(cells(advice)) - 1 <= MOST_ROWS
    sentences = [each.strip() for each in re.split(r"(?<=[.:;])\s|[。；：]|\n", prose) if words(each) > 3]
    assert len(sentences) == len(set(sentences))


def test_both_editions_have_the_same_code_and_links():
    assert code(CHINESE) == code(ENGLISH)
    assert addresses(CHINESE) == addresses(ENGLISH)


def test_the_advice_is_that_of_the_results(monkeypatch):
    """If this fails: python benchmarks/leaderboard.py."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])
    import leaderboard

    made = leaderboard.choosing()
    pages = [ENGLISH, CHINESE, (ROOT / "docs/guides/choose.md").read_text(encoding="utf-8")]
    for page, name in zip(pages, made, strict=True):
        assert made[name] in page
        assert leaderboard.written(page, made) == page


def test_the_floor_of_torch_is_that_of_the_package():
    (floor,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))[:1]
    assert all(re.search(rf"PyTorch {re.escape(floor)}\b", text) for text in (ENGLISH, CHINESE))


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["en", "zh"])
def test_pictures_exist_and_are_small(text):
    names = set(re.findall(r'(?:src|srcset)="([^":]+)"', text))
    assert names
    for name in names:
        assert (ROOT / name).stat().st_size < 200_000, name
