"""The documentation's site: every page is in it, nothing leads nowhere, nothing is fetched from elsewhere."""

import re

import pytest
import yaml
from website import build, encodings, reference, repository, snippets
from website.markdown import for_site
from website.page import DOCS, ROOT, formula, plain
from website.pictures import pictures

import posenc
from docs.checker import Site
from posenc.cli import COMMANDS
from posenc.encodings import ENCODINGS
from posenc.encodings.patterns import PATTERNS

SECTIONS = ("Formula", "Picture", "What it does", "When to use it", "Cost", "Code", "Source", "What holds")


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
    generated = {"encodings/index.md", "reference/index.md", "results.md", "project/license.md"}
    missing, gone = (written | generated) - set(named), set(named) - written - generated
    assert not missing, f"add {sorted(missing)} to the nav of mkdocs.yml"
    assert not gone, f"remove {sorted(gone)} from the nav of mkdocs.yml, or write the page in docs/"


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


def test_every_family_has_an_encoding_and_every_encoding_a_family():
    assert {encodings.family(cls) for cls in ENCODINGS.values()} == set(encodings.FAMILIES)


def test_text_is_shown_as_it_is():
    assert plain("a_b * <q, k> | `x_y`") == r"a\_b \* &lt;q, k&gt; \| `x_y`"


def test_links_out_of_docs_lead_to_what_the_site_has():
    page = DOCS / "compare.md"
    assert for_site("[a](../README.md#b)", page) == "[a](index.md#b)"
    assert for_site("[a](../examples/own_attention.py)", page) == "[a](examples/own_attention.md)"
    assert for_site("[a](../benchmarks/plan.json)", page) == "[a](benchmarks/plan.json)"
    assert for_site("[a](bench.md) <q, k> `<q>`", page) == "[a](bench.md) &lt;q, k> `<q>`"
    with pytest.raises(ValueError, match=r"compare\.md: the link to nothing\.md leads nowhere"):
        for_site("[a](nothing.md)", page)
    assert for_site("[a](docs/bench.md#b)", ROOT / "LICENSE") == "[a](../bench.md#b)"
    assert for_site("[a](mkdocs.yml)", ROOT / "CONTRIBUTING.md") == "a"
    assert for_site("see [a `b`](../src/posenc), [c](#c)", page) == "see a `b`, [c](#c)"
    shot = "[![a](images/report.png)](../README.md)"
    assert for_site(shot, page) == "[![a](images/report.png)](index.md)"


def test_every_example_has_a_page_and_notebooks_have_their_cells():
    found = {page.path: page for page in repository.examples()}
    paths = [path.relative_to(ROOT) for path in (ROOT / "examples").rglob("*.py")]
    assert {path.with_suffix(".md").as_posix() for path in paths} == set(found)
    for path in paths:
        page = found[path.with_suffix(".md").as_posix()]
        assert page.text.startswith("# ")
        assert page.group == ("Notebooks" if "notebooks" in path.parts else "")
        assert "# %%" not in page.text


def test_the_checker_finds_what_is_wrong(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html">no file</a><a href="#here">no anchor</a><a href="https://example.org">elsewhere</a>'
        '<script src="https://example.org/x.js"></script><p id="there"><a href="a.html#there">good</a>'
    )
    site = Site(tmp_path)
    assert site.dead_links() == ["a.html: b.html", "a.html: #here"]
    assert site.external() == ["a.html: https://example.org/x.js"]


def test_a_folder_that_is_no_site_is_not_replaced(tmp_path):
    (tmp_path / "kept.txt").touch()
    with pytest.raises(FileExistsError, match=r"is there and is no site"):
        build.build(tmp_path, tmp_path / "stage")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    build.build(folder / "site", folder / "stage")
    return Site(folder / "site")


@pytest.mark.slow
def test_the_built_site_is_whole(site):
    assert site.dead_links() == []
    assert site.external() == []
    for path, page in site.pages.items():
        assert not re.search(r"\]\[posenc|\]\([^)]*\.md", page.source), path
    for name in ENCODINGS:
        page = site.page(f"encodings/{name}.html")
        headings = re.findall(r'<h2 id="[^"]*">([^<]*)', page.source)
        assert headings == list(SECTIONS), name
        assert page.source.count("<svg") >= 2, name
        assert 'class="formula"' in page.source, name
        assert "✓ passed" in page.source, name
    api = set().union(*(site.page(f"reference/{module}.html").ids for module in reference.MODULES))
    for name in posenc.__all__:
        thing = getattr(posenc, name)
        if isinstance(thing, type) or callable(thing):
            assert f"{thing.__module__}.{thing.__qualname__}" in api, name
    assert {f"posenc-{name}" for name in COMMANDS} <= site.page("reference/commands.html").ids
    assert "<title>" in site.page("explorer.html").source


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_window(site, browser, width):
    context = browser.new_context(viewport={"width": width, "height": 800})
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("index", "encodings/rope", "encodings/index", "encodings", "reference/posenc", "bench", "results"):
        page.goto((site.folder / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    context.close()


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_finds_on_a_page_that_is_opened_from_the_folder(site, browser):
    page = browser.new_page()
    page.goto((site.folder / "encodings/rope.html").as_uri())
    page.get_by_role("button", name="Search").first.click()
    page.wait_for_function("document.activeElement.shadowRoot?.activeElement?.tagName == 'INPUT'")
    page.keyboard.type("attention with linear biases")
    page.locator("dialog a[href*='encodings/alibi.html']").first.wait_for()
    page.close()
