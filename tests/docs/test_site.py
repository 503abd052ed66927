"""The documentation's site: every page is in it, nothing leads nowhere, nothing is fetched from elsewhere."""

import inspect
import json
import re
import shutil
import struct
import subprocess
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Annotated

import pytest
import torch
import yaml
from website import build, encodings, extensions, measured, reference, snippets, trained
from website.build import MOST_PAGES, MOST_WORDS, counted
from website.keywords import KEYWORDS
from website.markdown import RUNS, for_site, summary, title
from website.page import DOCS, ROOT, explorer, formula, linked_sources, plain, signature
from website.pictures import card_of, pictures
from website.snippets import SIZES

import posenc
from docs.checker import Site
from docs.held_out import HELD_OUT
from posenc.cli import COMMANDS
from posenc.encodings import ENCODINGS
from posenc.encodings.patterns import PATTERNS
from posenc.frequencies import SCHEDULES
from posenc.lab.experiment import LEADERBOARD
from posenc.position_maps import MAPS
from posenc.report.explorer import page as explorer_page
from posenc_cli.called import ALIASES, CHINESE
from references.axe import AXE

SECTIONS = (
    "When to use it", "Formula", "Picture", "What it does", "Cost", "Code", "Checked properties", "Citation",
)  # fmt: skip
TYPES = (
    "index", "encodings/index", "encodings/rope", "frequencies", "position_maps", "encodings/index.zh", "bench", "claims",
    "reference/posenc", "reference/commands", "guides/extend", "guides/recipes", "longer_context", "position_from_scratch.zh",
    "position-09-rotating-instead-of-adding",
)  # fmt: skip
"""A page of each kind."""
FOUND = {
    "yarn": ("frequencies.html",),
    "attention sink": ("encodings/s",),
    "flash attention": ("attention.html",),
    "t5": ("encodings/t5.html",),
    "relative position bias": ("encodings/t5.html", "encodings/swin"),
    "sliding window": ("encodings/window.html",),
    "NoPE": ("encodings/none.html",),
    "rotary embedding": ("encodings/rope.html",),
    "2d rope": ("encodings/axial_rope.html", "encodings/mixed_rope.html"),
    "旋转位置编码": ("encodings/rope.html", "position_from_scratch.zh.html"),
    "旋转": ("position_from_scratch.zh.html", "encodings/rope.html"),
    "gpu": ("gpu.html",),
    "gguf": ("guides/convert.html", "export.html"),
}
"""What people look for, and how the addresses of the pages that they mean begin."""
SEARCH = Path(__file__).with_name("search.mjs"), DOCS / "website" / "ranking.js"


def targets(nav):
    """Every page of a navigation."""
    for entry in nav:
        value = entry if isinstance(entry, str) else next(iter(entry.values()))
        yield from targets(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation_once():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = list(targets(nav))
    assert len(named) == len(set(named))
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    generated = {"reference/index.md", "project/contributing.md"}
    missing, gone = (written | generated) - set(named) - set(RUNS), set(named) - (written - set(RUNS)) - generated
    assert not missing, f"add {sorted(missing)} to the nav of mkdocs.yml"
    assert not gone, f"remove {sorted(gone)} from the nav of mkdocs.yml, or write the page in docs/"


def test_no_two_pages_have_one_title():
    """In the search and in tabs a title stands alone."""
    titles = [title(path.read_text(encoding="utf-8")) for path in DOCS.rglob("*.md")]
    titles += [words for words, _ in reference.PAGES.values()]
    assert {each for each in titles if titles.count(each) > 1} == set()


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_declares_formulas_that_can_be_drawn(name):
    assert "formula" in vars(ENCODINGS[name]) or name == "xlnet"  # whose scores are Transformer-XL's
    for latex in ENCODINGS[name].formula:
        assert "<path" in formula(latex)


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_says_when_to_use_it_and_has_a_picture(name):
    said = vars(ENCODINGS[name])["use_when"]  # not its parent's
    assert said.startswith(("Take it", "Add it"))
    assert said.endswith(".")
    assert len(said) < 160
    named = re.findall(r"`([a-z_0-9]+)`", said)
    assert set(named) <= {*ENCODINGS, *PATTERNS}
    assert name not in named
    drawn = pictures(name)
    assert drawn
    assert all(picture.see for picture in drawn)


def test_what_trained_encodings_learned_is_small_and_finite():
    assert trained.FILE.stat().st_size < 400_000
    learning = {name for name, row in encodings.declared().items() if row["learned"]}
    assert set(trained.NAMES) == learning
    assert len(set(trained.NAMES)) == len(trained.NAMES)
    for numbers in trained._file().values():
        assert all(bool(each.isfinite().all()) for each in numbers.values())


def test_what_a_trained_model_does_is_what_its_encoding_adds():
    settings = trained.TEXT
    torch.manual_seed(0)
    model = settings.make_model(settings.make_encoding("kerple")).eval()
    text = torch.randint(256, (400,), dtype=torch.uint8)
    with torch.no_grad():
        found = trained.of_scores(model, text)
        far = torch.arange(found["distance"].shape[1])
        added = model.encoding.of_distance(torch.arange(4)[:, None], far, 0, torch.float64)
    torch.testing.assert_close(found["distance"], added, atol=1e-4, rtol=1e-4)
    assert float(found["explained"].min()) > 0.9999
    n = len(trained.PHRASE)
    torch.testing.assert_close(found["pairs"][:, n - 1].double(), added[:, :n].flip(1), atol=1e-4, rtol=1e-4)


def test_a_signature_has_types_without_their_checks():
    def call(size: Annotated[int, print], other: Annotated[float, print] | None = None, *, name: str = "a"): ...

    lines = ("size: int", "other: float | None = None", "*", 'name: str = "a"')
    assert signature("call", inspect.signature(call)) == "```python\ncall(\n    " + ",\n    ".join(lines) + ",\n)\n```"


def test_the_words_of_a_page_are_those_of_its_article():
    menu, article = "<nav>one two</nav>", "<article><h1>A<span>B</span></h1><script>let a</script><p>c d</article>"
    assert build.words(f"<main>{menu}{article}</main>").split() == ["AB", "c", "d"]
    assert build.words(f"<main>{menu}</main>").split() == ["one", "two"]


def test_a_mistyped_command_is_not_drawn():
    with pytest.raises(ValueError, match=r"\\fracc.*: has an unknown command"):
        formula(r"\fracc{1}{2}")


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_code_of_every_encoding_runs(name):
    names = {}
    exec(compile(snippets.snippet(name), name, "exec"), names)
    assert names["out"].shape == (2, 8, names["positions"].num_queries, 64)
    assert names["out"].isfinite().all()
    assert type(names["encoding"]) is ENCODINGS[name]


@pytest.mark.parametrize("name", [*SCHEDULES, *MAPS])
def test_every_schedule_and_map_has_a_formula_and_words(name):
    of_schedules, of_maps = (extensions.FORMULAS[kind] for kind in ("schedules", "position_maps"))
    for latex in of_schedules.get(name) or of_maps[name]:
        assert "<path" in formula(latex)
    title, when = extensions.SCHEDULE_PAGES.get(name) or extensions.MAP_PAGES[name]
    assert title
    assert when.startswith(("Take it", "Apply it"))
    assert set(re.findall(r"`([a-z_0-9]+)`", when)) <= {*SCHEDULES, *MAPS, *ENCODINGS}
    assert set(extensions.SCHEDULE_PAGES) == set(SCHEDULES) == set(of_schedules)
    assert set(extensions.MAP_PAGES) == set(MAPS) == set(of_maps)


def test_the_section_of_a_schedule_says_what_loads_it():
    said = extensions.schedule("yarn")
    assert '"rope_type": "yarn"' in said
    assert "vllm serve longer --max-model-len 16384" in said
    assert "posenc extend FILE.gguf --method yarn" in said
    assert "| stories15M, 8×, running text | **2.17** | 1.29 | 5.55 |" in said


def test_the_settings_of_a_command_are_a_table():
    (page,) = (page for page in reference.pages() if page.path == "reference/commands.md")
    said = page.text.split("## posenc eval")[1].split("## posenc")[0]
    assert "posenc eval MODEL [options]" in said
    assert re.search(r"^\| `--seeds N` \| \w.* \|$", said, re.MULTILINE)
    assert "usage:" not in page.text


def test_the_page_of_create_lists_every_encoding_with_its_options():
    lines = [line for line in reference.created().splitlines() if line.startswith("- ")]
    assert [re.match(r"- \[`(\w+)`\]\(\.\./encodings/\1\.md\): \w", line)[1] for line in lines] == [*ENCODINGS]
    for line, cls in zip(lines, ENCODINGS.values(), strict=True):
        shape = set(re.findall(r"`(\w+)`", (re.search(r"; shape ([^;]*)", line) or ["", ""])[1]))
        options = set(re.findall(r"`(\w+)(?:=[^`]*)?`", (re.search(r"; options (.*)", line) or ["", ""])[1]))
        assert shape <= set(inspect.signature(posenc.create).parameters), line
        of_shape = {argument for size in shape for argument in SIZES[size]}
        assert options | of_shape >= set(cls.arguments()) - {"num_kv_heads", "columns"}, line
        assert options <= set(cls.arguments()), line
    page = next(page for page in reference.pages() if page.path == "reference/posenc.md")
    assert re.search(r"::: posenc\.encodings\.[\w.]*create\n\n#### Encodings that", page.text)


def test_every_encoding_and_pattern_has_a_title():
    assert all(map(encodings.title_of, [*ENCODINGS, *PATTERNS]))
    assert all(map(encodings.titled, LEADERBOARD))


@pytest.mark.parametrize(
    ("name", "words"), [("rope", "Rotating"), ("alibi", "penalty-on-distance"), ("shaw", "position-")]
)
def test_the_page_of_an_encoding_leads_to_its_chapter(name, words):
    (link,) = measured.chapters(name)
    assert words.lower() in link.lower()
    assert measured.chapters("cope") == []
    assert {name for names in measured.CHAPTERS.values() for name in names} <= set(ENCODINGS)


def test_pictures_follow_the_choice_of_light_or_dark():
    source = '<picture><source media="(prefers-color-scheme: dark)" srcset="b.svg"><img src="a.svg" alt="c"></picture>'
    shown = (
        '<img src="a.svg#only-light" alt="c" loading="lazy">'
        '<img src="b.svg#only-dark" alt="c" loading="lazy" style="background: none">'
    )
    assert for_site(f"# A\n\n{source}\n", DOCS / "bench.md") == f"# A\n\n{shown}\n"


def test_pictures_with_two_sets_of_colours_are_dark_on_a_dark_page():
    style = (DOCS / "website" / "style.css").read_text(encoding="utf-8")
    rule = re.search(r'"slate"\] \.md-typeset img:is\((.*?)\) \{[^}]*color-scheme: dark;', style)[1]
    both = {path for path in DOCS.glob("images/**/*.svg") if "prefers-color-scheme" in path.read_text(encoding="utf-8")}
    assert set(re.findall(r'"/([^"]*)"', rule)) == {path.name for path in both}


def test_every_public_name_has_one_place_in_the_reference():
    places = [what for module in reference.MODULES for what in reference.public(module).values()]
    public = [getattr(posenc, name) for name in posenc.__all__]
    for each in (each for each in public if hasattr(each, "__qualname__")):
        assert places.count(each) == (each not in ENCODINGS.values()), each  # an encoding's page is that of its class
    assert not {*SCHEDULES.values(), *MAPS.values()} & {what for what in places if inspect.isfunction(what)}


def test_every_part_of_the_api_is_on_one_page():
    assert sorted(part for _, parts in reference.PAGES.values() for part in parts) == sorted(reference.MODULES)


def test_the_page_of_an_encoding_has_its_methods():
    assert "### `at_size`" in encodings._methods(ENCODINGS["grid_table"])
    assert encodings._methods(ENCODINGS["none"]) == []


def test_a_screenshot_follows_light_and_dark():
    images = {path.stem for path in (DOCS / "images").glob("*.png")}
    light = {name for name in images if not name.endswith("-dark")}
    assert images == light | {f"{name}-dark" for name in light}
    assert sum((DOCS / "images" / f"{name}-dark.png").stat().st_size for name in light) < 400_000
    shown = set()
    for page in DOCS.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        pairs = re.findall(r'srcset="[./]*images/([\w-]+)\.png"><img src="[./]*images/([\w-]+)\.png"', text)
        assert [dark for dark, _ in pairs] == [f"{name}-dark" for _, name in pairs], page
        assert len(re.findall(r"images/[\w-]+\.png", text)) == 2 * len(pairs), page
        shown |= {name for _, name in pairs}
    assert shown == light


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/docs/frequencies/yarn.html", "/docs/frequencies.html#yarn"),
        ("/position-09-rotating-instead-of-adding.zh.html", "/position_from_scratch.zh.html#chapter-9"),
        ("/benchmarks/gpu/h100.html", "/benchmarks/gpu/h100.txt"),
        ("/leaderboard/text.html", "/leaderboard/report.html"),
        ("/leaderboard/report.html", None),
        ("/story.zh.html", "/story-live.html"),
        ("/bench.html", None),
    ],
)
def test_an_address_that_left_answers(old, new):
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine")
    page = (DOCS / "website" / "theme" / "404.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    there = f"let found = null; const location = {{pathname: '{old}', replace: (to) => (found = to)}};"
    done = subprocess.run([node, "-p", f"{there}{script}; found"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(new).replace("None", "null")


def test_a_page_is_described_by_its_first_sentences():
    assert summary("# Title\n\n![x](y.png)\n\n**It** is [here](a.md), `x`.\n\nMore.") == "It is here, x."
    assert len(summary("# T\n\n" + "A sentence of some words. " * 20)) <= 200


def test_sources_in_text_are_links():
    said = linked_sources(plain("arXiv 2309.00071; kexue.fm/archives/9706, github.com/a/b_c."))
    assert "[arXiv 2309.00071](https://arxiv.org/abs/2309.00071)" in said
    assert "](https://kexue.fm/archives/9706)," in said
    assert "](https://github.com/a/b_c)." in said


def test_the_menu_of_chinese_pages_is_chinese():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def words(nav):
        for entry in nav:
            for word, target in entry.items() if isinstance(entry, dict) else ():
                yield from [word, *words(target if isinstance(target, list) else ())]

    assert {*words(config["nav"]), *(each["toggle"]["name"] for each in config["theme"]["palette"])} == {
        *build.MENU,
        "中文",
    }


def shown(site, queries):
    """The first two pages that a site's search shows for each query."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine")
    script, put_before = SEARCH
    done = subprocess.run([node, script, site, put_before, *queries], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


SEARCHED = [
    {"location": "reference/a.html#yarn", "title": "yarn", "text": "<p>yarn yarn factor</p>"},
    {"location": "guides/extend.html", "title": "Extend a model", "text": "<p>YaRN extends the context.</p>"},
    {"location": "frequencies.html#longrope", "title": "LongRoPE", "text": "<p>A factor for each pair.</p>"},
    {
        "location": "encodings/axial_rope.html",
        "title": "Axial",
        "text": "<p>Rows.</p>",
        "keywords": "2d rope, 二维旋转",
    },
    {"location": "bench.html", "title": "Speed", "text": "<p>Milliseconds</p>"},
]
ASKED = {
    "yarn": ["guides/extend.html", "reference/a.html"],  # a guide before the API, whose title has it
    "longrope": ["frequencies.html"],
    "how do I extend a model": ["guides/extend.html"],  # common words say nothing
    "2-D RoPE": ["encodings/axial_rope.html"],
    "旋转": ["encodings/axial_rope.html"],
    "millisec": ["bench.html"],  # the beginning of a word, as it is typed
    "of it": [],
    "nowhere": [],
}
"""Of these sections, which pages are shown for a query, in order."""


def test_the_search_ranks_pages_by_their_words_and_kind(tmp_path):
    workers = tmp_path / "assets" / "javascripts" / "workers"
    workers.mkdir(parents=True)
    (workers / "search.js").write_text(
        "self.onmessage = ({ data }) => self.postMessage({ type: data.type + 1, data: {} });"
    )
    (tmp_path / "search.json").write_text(json.dumps({"items": SEARCHED, "config": {}}))
    assert shown(tmp_path, ASKED) == ASKED


@pytest.mark.parametrize(("before", "after"), [("", ""), ("var __index = ", ";")])
def test_the_changelog_is_not_searched_and_pages_that_run_are(tmp_path, before, after):
    items = [{"location": f"{each}.html#a", "text": "b"} for each in ("project/changelog", "bench")]
    (tmp_path / "search.js").write_text(f"{before}{json.dumps({'config': {}, 'items': items})}{after}")
    build.indexed(tmp_path / "search.js")
    written = (tmp_path / "search.js").read_text()
    assert written.startswith(before)
    assert written.endswith(after)
    found = json.loads(written.removeprefix(before).removesuffix(";"))["items"]
    assert [item["location"] for item in found] == ["bench.html#a", *RUNS.values()]


def test_keywords_are_of_pages_and_in_the_index(tmp_path):
    assert {*CHINESE, *ALIASES} <= set(ENCODINGS)
    assert [path for path in KEYWORDS if not (DOCS / path).exists()] == []
    assert not {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - set(KEYWORDS) - {
        "examples.md",
    }  # fmt: skip
    (tmp_path / "search.json").write_text(
        json.dumps({"items": [{"location": "encodings/axial_rope.html", "text": "a"}]})
    )
    build.indexed(tmp_path / "search.json")
    item = json.loads((tmp_path / "search.json").read_text())["items"][0]
    assert "2d rope" in item["keywords"]
    assert "二维旋转位置编码" in item["keywords"]


@pytest.mark.parametrize("name", ["alibi", "learned", "complex_order"])  # the last two are the largest
def test_an_encodings_card_is_small(name, tmp_path):
    path = tmp_path / "card.png"
    card_of(name, "title", path)
    assert 5_000 < path.stat().st_size < 60_000
    assert struct.unpack(">II", path.read_bytes()[16:24]) == (600, 315)


def test_text_is_shown_as_it_is():
    assert plain("a_b * <q, k> | `x_y`") == r"a\_b \* &lt;q, k&gt; \| `x_y`"


def test_the_checker_finds_what_is_wrong(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html">no file</a><a href="#here">no anchor</a><a href="https://example.org">elsewhere</a>'
        '<script src="https://example.org/x.js"></script><p id="there"><a href="a.html#there">good</a>'
    )
    site = Site(tmp_path)
    assert site.dead_links() == ["a.html: b.html", "a.html: #here"]
    assert site.external() == ["a.html: https://example.org/x.js"]


def test_a_folder_that_is_no_site_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "kept.txt").touch()
    with pytest.raises(FileExistsError, match=r"is there and is no site"):
        build.build(tmp_path, tmp_path / "stage")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
    (tmp_path / "story-live.html").touch()  # what `make story` makes
    monkeypatch.delattr(build, "stage")
    with pytest.raises(NameError, match="stage"):
        build.build(tmp_path, tmp_path / "stage")


def test_links_out_of_docs_lead_to_what_the_site_has():
    page = DOCS / "compare.md"
    assert for_site("[a](../README.md#b)", page) == "[a](index.md#b)"
    assert for_site("[a](../examples/own_attention.py)", page) == "[a](examples/own_attention.py)"
    assert for_site("[a](../benchmarks/fit.md#b)", page) == "[a](benchmarks/fit.txt)"
    assert for_site("[a](../benchmarks/budgets.json)", page) == "[a](benchmarks/budgets.json)"
    assert for_site("[a](bench.md) <q, k> `<q>`", page) == "[a](bench.md) &lt;q, k> `<q>`"
    with pytest.raises(ValueError, match=r"compare\.md: the link to nothing\.md leads nowhere"):
        for_site("[a](nothing.md)", page)
    assert for_site("[a](docs/bench.md#b)", ROOT / "LICENSE") == "[a](../bench.md#b)"
    assert for_site("[a](mkdocs.yml)", ROOT / "CONTRIBUTING.md") == "a"
    assert for_site("[a](docs/website/build.py)", ROOT / "CONTRIBUTING.md") == "a"
    assert for_site("see [a `b`](../src/posenc), [c](#c)", page) == "see a `b`, [c](#c)"
    shot = "[![a](images/report.png)](../README.md)"
    assert for_site(shot, page) == "[![a](images/report.png)](index.md)"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    build.build(folder / "site", folder / "stage")
    return Site(folder / "site")


def test_the_built_site_is_whole(site):
    assert site.dead_links() == []
    assert site.external() == []
    for path, page in site.pages.items():
        assert not re.search(r"\]\[posenc|\]\([^)]*\.md|\n- <", page.source), path  # or a list inside a paragraph
    for name in ENCODINGS:
        page = site.page(f"encodings/{name}.html")
        headings = re.findall(r'<h2 id="[^"]*">([^<]*)', page.source)
        assert headings == list(SECTIONS), name
        assert page.source.count("<svg") >= 2, name
        assert 'class="formula"' in page.source, name
        assert re.search(r"✓ \d+ of \d+ <a[^>]*>checks</a> passed", page.source), name
    api = set().union(*(site.page(f"reference/{name}.html").ids for name in reference.PAGES))
    api |= set().union(*(site.page(f"encodings/{name}.html").ids for name in ENCODINGS))
    for name in posenc.__all__:
        thing = getattr(posenc, name)
        if isinstance(thing, type) or callable(thing):
            assert f"{thing.__module__}.{thing.__qualname__}" in api, name
    assert {f"posenc-{name}" for name in COMMANDS} <= site.page("reference/commands.html").ids
    for page, names in {"frequencies": SCHEDULES, "position_maps": MAPS}.items():
        assert set(names) <= site.page(f"{page}.html").ids
    pages, words = counted(site.folder)
    assert pages <= MOST_PAGES
    assert words <= MOST_WORDS
    for name in ("explorer.html", "predictor.html", "story-live.html"):
        assert "<title>" in site.page(name).source
    for path, page in site.pages.items():
        if (
            path.name not in ("explorer.html", "predictor.html", "story-live.html")
            and path.parent.name != "leaderboard"
        ):
            assert '<meta name="description"' in page.source, path
            assert '<meta property="og:image"' in page.source, path
            assert ('<html lang="zh-Hans"' in page.source) == path.name.endswith(".zh.html"), path
    assert (site.folder / "card.png").stat().st_size > 10_000
    for name in ENCODINGS:
        assert f'property="og:image" content="../cards/{name}.png"' in site.page(f"encodings/{name}.html").source
        assert (site.folder / "cards" / f"{name}.png").stat().st_size < 60_000


def test_a_site_with_an_address_has_absolute_cards(tmp_path):
    build.build(tmp_path / "site", tmp_path / "stage", only=("encodings/t5",), url="https://example.org/docs")
    source = (tmp_path / "site/encodings/t5.html").read_text(encoding="utf-8")
    assert 'property="og:image" content="https://example.org/docs/cards/t5.png"' in source
    assert 'property="og:url" content="https://example.org/docs/encodings/t5.html"' in source
    assert 'name="keywords" content="relative position bias' in source


@pytest.mark.browser
def test_every_link_to_the_explorer_is_to_a_state_that_it_shows(new_tab, tmp_path):
    links = [explorer({"encoding": name}) for name in ENCODINGS]
    links += [explorer(extensions.shown(name), "explorer.html") for name in (*SCHEDULES, *MAPS)]
    pages = [path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")]
    links += [
        found
        for text, path in zip(pages, DOCS.glob("*.md"), strict=True)
        for found in re.findall(r'<a href="[./]*explorer\.html#[^>]*>', for_site(text, path))
    ]
    states = [unescape(re.search(r'explorer\.html#([^"]*)', link)[1]) for link in links if link]
    assert len(states) > 50
    path = tmp_path / "explorer.html"
    path.write_text(explorer_page(), encoding="utf-8")
    tab = new_tab()
    tab.goto(path.as_uri())
    wrong = tab.evaluate(
        """states => states.map(text => {
            const { state, notes } = posenc.state.parse(text), model = posenc.model.of(state);
            const refused = model.refused, shown = model.turned || model.relative || model.codes || model.kind === "nothing";
            const moved = state.method === "none" || !posenc.maps.MAPS[state.method] || [...model.relative].some((r, at) => r !== Math.floor(at / model.n) - (at % model.n) && at % model.n <= at / model.n);
            return [text, ...notes, ...(refused ? [refused] : []), ...(shown ? [] : ["nothing"]), ...(moved ? [] : ["the map changes nothing"])];
        }).filter(found => found.length > 1)""",
        states,
    )
    assert wrong == []


def test_an_address_that_left_leads_to_a_page_that_is_there(site):
    source = site.page("404.html").source
    moved = re.findall(r"\[/(.*?)/, \"/([^\"#]*)", source.split("const MOVED")[1].split("];")[0])
    assert len(moved) > 10
    assert [to for _, to in moved if "$" not in to and not (site.folder / to).exists()] == []
    gone = ("/code.html", "/lm-eval.html", "/synthetic-lab.html", "/project/license.html", "/frequencies/yarn.html")
    assert [page for page in gone if not any(re.search(pattern, page) for pattern, _ in moved)] == []


def test_the_search_finds_what_people_mean_first_or_second(site):
    found = shown(site.folder, FOUND)
    assert {
        query: pages for query, pages in found.items() if not any(page.startswith(FOUND[query]) for page in pages)
    } == {}


def test_most_queries_that_the_search_was_not_made_for_have_the_right_page_first(site):
    found = shown(site.folder, HELD_OUT)
    right = [query for query, pages in found.items() if pages[:1] and pages[0].startswith(HELD_OUT[query])]
    assert len(right) >= 0.8 * len(HELD_OUT)


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["desktop", "phone", "dark"])
def test_axe_finds_nothing(site, browser, kind):
    axe = AXE.require().read_text(encoding="utf-8")
    size = {"width": 390 if kind == "phone" else 1280, "height": 900}
    context = browser.new_context(viewport=size, color_scheme="dark" if kind == "dark" else "light")
    page, found = context.new_page(), []
    for name in TYPES:
        page.goto((site.folder / f"{name}.html").as_uri())
        page.wait_for_timeout(200)  # the theme's script wraps tables
        page.evaluate(axe)
        faults = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((done) => done.violations)")
        found += [f"{name}: {fault['id']} {fault['nodes'][0]['html'][:80]}" for fault in faults]
    context.close()
    assert found == []


@pytest.mark.browser
def test_home_has_its_picture_and_three_doors_on_one_screen(site, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto((site.folder / "index.html").as_uri())
    assert page.locator(".doors li").count() == 3
    picture, door = page.locator("img.living").bounding_box(), page.locator(".doors li").first.bounding_box()
    assert picture["width"] > 600
    assert door["y"] < 800
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 640, 390])  # 640: 1280 at 200 % zoom
def test_no_page_is_wider_than_the_window(site, browser, width):
    context = browser.new_context(viewport={"width": width, "height": 800})
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    for name in TYPES:
        page.goto((site.folder / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    assert [url for url in asked if not url.startswith(("file:", "data:")) or url.endswith("sitemap.xml")] == []
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("scripts", [True, False])
def test_live_figures_stand_where_scripts_run_and_images_elsewhere(site, browser, scripts):
    context = browser.new_context(viewport={"width": 390, "height": 800}, java_script_enabled=scripts)
    page = context.new_page()
    page.goto((site.folder / "position-03-from-a-binary-counter-to-sines.html").as_uri())
    image, frame = (page.locator(f".live.instead {of}").first for of in ("img", "iframe"))
    assert (frame.is_visible(), image.is_visible()) == (scripts, not scripts)
    if scripts:
        frame.scroll_into_view_if_needed()
        inside = page.frame_locator(".live.instead iframe").first
        inside.locator("#explorer-base").fill("100")
        inside.locator(".see:visible").get_by_text("positions").wait_for()
        page.wait_for_function("document.querySelector('.live iframe').style.height")
        page.emulate_media(media="print")
        assert (frame.is_visible(), image.is_visible()) == (False, True)
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("key", ["Control+k", "/"])
def test_a_shortcut_opens_the_search_at_once_and_letters_turn_no_page(site, browser, key):
    page = browser.new_page()
    address = (site.folder / "guides/getting-started.html").as_uri()
    page.goto(address)
    page.keyboard.type("np")  # the theme's keys of the next and the last page
    page.keyboard.press(key)
    page.keyboard.type("linear biases")
    page.locator("dialog a[href*='encodings/alibi.html']").first.wait_for()
    assert page.evaluate("document.activeElement.shadowRoot.activeElement.value") == "linear biases"
    assert page.url == address
    page.close()


@pytest.mark.browser
def test_a_served_page_fetches_the_index_when_somebody_searches(site, browser):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site.folder))
    Thread(target=server.serve_forever, daemon=True).start()
    page, asked = browser.new_page(), []
    page.on("request", lambda request: asked.append(request.url.rsplit("/", 1)[1]))
    page.goto(f"http://127.0.0.1:{server.server_port}/encodings/rope.html", wait_until="networkidle")
    assert "style.css" in asked
    assert "search.json" not in asked
    page.get_by_role("button", name="Search").first.click()
    page.wait_for_function("document.activeElement.shadowRoot?.activeElement?.tagName == 'INPUT'")
    page.keyboard.type("attention with linear biases")
    page.locator("dialog a[href*='encodings/alibi.html']").first.wait_for()
    page.close()
    server.shutdown()
