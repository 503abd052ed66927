"""The written guide: what it says its snippets show, its figures are theirs, and both editions are one."""

import base64
import io
import re
import runpy
import tokenize
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parent.parent / "docs"
GUIDE = runpy.run_path(str(DOCS / "guide.py"))
PAGES, SNIPPET, FIGURE = GUIDE["PAGES"], GUIDE["SNIPPET"], GUIDE["FIGURE"]
IMAGES = DOCS / "images/position"
TRAINED = {"terms", "interaction", "survival"}
"""Figures of models that are trained on the spot: their lines differ with the processor, their labels do not."""
NUMBER = re.compile(r"(?<![A-Za-z0-9_.])\d+(?:\.\d+)?")
CLOSE = {"rel": 0.05, "abs": 0.01}
"""How far a printed number may be from the one in the text: models are trained on the spot, and machines differ."""


def chapters(page: Path) -> list[str]:
    return page.read_text(encoding="utf-8").split("\n## ")


def numbers(text: str) -> set[float]:
    return {float(found) for found in NUMBER.findall(text)}


def prose(chapter: str) -> str:
    """Without snippets, what to try, sources, links' addresses and the numbers of chapters."""
    text = SNIPPET.sub("", chapter)
    text = re.sub(r"^\*(Try|试一试).*?\n\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\*(Sources|来源)[^*]*\*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)|^\d+\. |[Cc]hapter \d+|第 \d+ 章", "", text)


def shown(chapter: str) -> str:
    """The numbers of a chapter's snippets, comments apart, and what they print."""
    found = []
    for code, printed in SNIPPET.findall(chapter):
        tokens = tokenize.generate_tokens(io.StringIO(code).readline)
        found += [token.string.replace("_", "") for token in tokens if token.type == tokenize.NUMBER] + [printed]
        found += re.findall(r"[\"'](.*?)[\"']", code)
    return "\n".join(found)


def labels(path: Path) -> list[str]:
    """The texts of a drawing, # for each number."""
    texts = ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    return [NUMBER.sub("#", "".join(text.itertext())) for text in texts]


def coordinates(path: Path) -> list[float]:
    """Of all lines of a drawing."""
    paths = ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}path")
    return [float(x) for line in paths for x in re.findall(r"-?\d+(?:\.\d+)?", line.get("d"))]


def pixels(path: Path) -> list:
    """The colours of the images in a drawing."""
    from matplotlib.image import imread

    found = re.findall(r'xlink:href="data:image/png;base64,([^"]+)"', path.read_text(encoding="utf-8"))
    return [imread(io.BytesIO(base64.b64decode(image))) for image in found]


def linked(page: Path = PAGES[0]) -> list[str]:
    return FIGURE.findall(page.read_text(encoding="utf-8"))


def test_snippets_print_and_draw_what_the_page_shows(tmp_path):
    shown = [text for _, text in SNIPPET.findall(PAGES[0].read_text(encoding="utf-8"))]
    for printed, text in zip(GUIDE["run"](PAGES[0], tmp_path), shown, strict=True):
        assert NUMBER.sub("#", printed) == NUMBER.sub("#", text)
        pairs = zip(NUMBER.findall(printed), NUMBER.findall(text), strict=True)
        assert all(float(one) == pytest.approx(float(other), **CLOSE) for one, other in pairs), printed
    drawn = tmp_path / "images/position"
    assert {path.name for path in drawn.iterdir()} == {path.name for path in IMAGES.iterdir()}
    for name in linked():
        new, old = (folder / f"{name}.svg" for folder in (drawn, IMAGES))
        assert labels(new) == labels(old), name
        if name not in TRAINED:
            assert coordinates(new) == pytest.approx(coordinates(old), abs=0.5), name
            for one, other in zip(pixels(new), pixels(old), strict=True):
                assert one.shape == other.shape, name
                assert abs(one - other).mean() < 0.01, name


def test_figures_are_all_linked_and_small():
    assert linked() == linked(PAGES[1])
    names = {f"{name}.{end}" for name in linked() for end in ("svg", "zh.svg")}
    assert {path.name for path in IMAGES.iterdir()} == names
    assert all((IMAGES / name).stat().st_size < 60_000 for name in names)


@pytest.mark.parametrize("name", linked())
def test_letters_have_ten_pixels_on_a_phone(name):
    drawing = (IMAGES / f"{name}.svg").read_text(encoding="utf-8")
    width = float(re.search(r'viewBox="0 0 ([\d.]+) ', drawing)[1])
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", drawing)]
    assert min(sizes) * min(1, 358 / width) > 10  # the page is 358 pixels wide on a phone of 390


@pytest.mark.parametrize("name", linked())
def test_chinese_figures_are_the_english_ones_with_chinese_labels(name):
    english, chinese = IMAGES / f"{name}.svg", IMAGES / f"{name}.zh.svg"
    assert chinese.read_text(encoding="utf-8") == GUIDE["chinese"](english.read_text(encoding="utf-8"))
    assert 'xml:lang="zh-Hans"' in chinese.read_text(encoding="utf-8")
    assert coordinates(english) == coordinates(chinese)


def test_the_curves_of_the_middle_are_those_of_the_evaluation():
    table = (
        (DOCS.parent / "benchmarks/evaluations.md").read_text(encoding="utf-8").split("<!-- lost_in_the_middle -->")[1]
    )
    rows = [re.findall(r"\| (\d+)%", row) for row in table.splitlines() if row.startswith("| none |")]
    snippet = next(code for code, _ in SNIPPET.findall(PAGES[0].read_text(encoding="utf-8")) if "right = {" in code)
    assert [", ".join(row) for row in rows] == re.findall(r'": \[([^\]]+)\]', snippet)


def test_editions_have_the_same_snippets_and_figures():
    english, chinese = (page.read_text(encoding="utf-8") for page in PAGES)
    assert SNIPPET.findall(english) == SNIPPET.findall(chinese)
    parts = re.compile(r"^(?:#+ \d*|```\w+|!\[|- |\||\*(?=Sources|来源|Try|试一试))|images/position/\w+", re.MULTILINE)
    assert parts.findall(english) == parts.findall(chinese)
    assert [chapter.count("\n*Try:* ") for chapter in chapters(PAGES[0])[1:]] == [1] * 17 + [0]
    for one, other in zip(chapters(PAGES[0]), chapters(PAGES[1]), strict=True):
        assert numbers(prose(one)) == numbers(prose(other)), one.splitlines()[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_comes_from_a_snippet_or_a_linked_page(page):
    for chapter in chapters(page):
        linked = [DOCS / target for target in re.findall(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)", chapter)]
        measured = (numbers(target.read_text(encoding="utf-8")) for target in linked)  # on other pages
        known = numbers(shown(chapter)).union(*measured)
        assert numbers(prose(chapter)) <= known, chapter.splitlines()[0]


def test_editions_of_the_claims_have_the_same_claims_and_numbers():
    english, chinese = ((DOCS / name).read_text(encoding="utf-8") for name in ("claims.md", "claims.zh.md"))
    for mark in (r"^## ", r"^\| "):
        assert len(re.findall(mark, english, re.MULTILINE)) == len(re.findall(mark, chinese, re.MULTILINE))
    assert numbers(prose(chinese)) <= numbers(english), "numbers that only the Chinese edition has"
