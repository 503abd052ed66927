"""Names that try to be markup or scripts, in every text of the results: a browser shows them and runs none."""

from dataclasses import replace

import pytest

from posenc.analysis import diff
from posenc.analysis.analyze import analyze
from posenc.analysis.target import target_of
from posenc.lab import data
from posenc.lab.compare import Comparison, compare
from posenc.lab.engines import InProcess
from posenc.report import analyze as analysis
from posenc.report import compare as comparison_report
from posenc.report import diff as schedules
from posenc.report import evaluate as evaluation
from posenc.report import explorer, predict
from report import eval_results
from report.test_hostile_names import NAMES, read_csv, read_latex, read_markdown, seen

HOSTILE = (
    'mark <img src=x onerror=window.pwned=1><a href="javascript:window.pwned=1">a</a></script><script>window.pwned=1'
    "</script><!-- <svg/onload=window.pwned=1> {{ 7*7 }} ${window.pwned=1} %{x} '\"` \u2028\u2029 ]]> &lt;b&gt; \x1b[31m"
)
WORDS = {
    "compare": {"encoding", "kind", "task", "verdict"},
    "eval": {"kind", "measure", "task", "verdict", "created", "preset"},
}
"""Keys whose texts a page looks up: they come from posenc, never from a user."""


def marked(found, unchanged, key=None):
    """Results with HOSTILE appended to every text, except under the keys in `unchanged`."""
    if isinstance(found, dict):
        return {name: marked(value, unchanged, name) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [marked(value, unchanged, key) for value in found]
    return found + HOSTILE if isinstance(found, str) and key not in unchanged else found


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    from lab.conftest import TEXT, TINY

    folder = tmp_path_factory.mktemp("pages")
    comparison = Comparison(("none", "rope"), 1, replace(TINY, factors=(1, 2)))
    compared = compare(comparison, data.corpus(TEXT, HOSTILE), folder / "compare", engine=InProcess(), command=HOSTILE)
    evaluated = eval_results.results(methods=("none", "truncation", f"ntk:factor={HOSTILE}"), samples=2)
    subject = target_of(lambda p: p[:, None].cos().expand(-1, 4), length=12, name=HOSTILE[:90])
    found = analyze(subject)
    model = TINY.make_model(TINY.make_encoding("none"))
    made = {
        "compare": comparison_report.page(marked(compared, WORDS["compare"])),
        "eval": evaluation.page(marked(evaluated, WORDS["eval"])),
        "analyze": analysis.page(found, analysis.results(found, HOSTILE, 1.0)),
        "diff": schedules.page(diff("yarn", "ntk"), HOSTILE),
        "explore": explorer.page({"tokens": HOSTILE, "at": "0,1,2,3,4,5,6,7,8,9,10,11"}),
        "predict": predict.page({"none": predict.Weights.of(model, 8, corpus=HOSTILE, steps=1, read=8)}, [HOSTILE], 8),
    }
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.browser
@pytest.mark.parametrize("name", ["compare", "eval", "analyze", "diff", "explore", "predict"])
def test_a_browser_shows_a_name_and_runs_none(pages, new_tab, name):
    tab = new_tab()
    tab.goto((pages / f"{name}.html").as_uri())
    tab.wait_for_timeout(500)
    assert tab.evaluate("window.pwned") is None
    assert tab.locator("img[src='x']").count() == 0
    assert tab.locator("a[href^='javascript:']").count() == 0
    if name not in ("explore", "predict"):  # there the text is in fields, cut to words, or spelled
        assert "<img src=x onerror=window.pwned=1>" in tab.locator("body").inner_text()


ADDRESSES = [
    "sort=ranking.length.x", "sort=ranking.item", "sort=ranking.__proto__.descending", "sort=.0", "by-size.measure=length",
    "by-size.measure=__proto__", "by-size.constructor=1", "only=constructor", "__proto__=1", "find=%E0%A4%A", "%", "a=%", "=", ".",
]  # fmt: skip


@pytest.mark.browser
@pytest.mark.parametrize("name", ["compare", "eval", "analyze", "explore"])
def test_an_address_that_says_nothing_changes_nothing(pages, new_tab, name):
    """A tab fails the test where a script of its page stops."""
    tab = new_tab()
    tab.goto(f"{(pages / name).as_uri()}.html#{'&'.join(ADDRESSES)}")
    for address in [*ADDRESSES, "by-size.measure=1"]:
        tab.evaluate("address => { location.hash = address; }", address)
    if name == "compare":  # an address that says something is read afterwards
        tab.wait_for_function("document.querySelector('#by-size input[value=\"1\"]').checked")


@pytest.mark.browser
def test_copied_tables_are_those_of_the_files(pages, new_tab):
    tab = new_tab()
    tab.goto((pages / "compare.html").as_uri())
    names = list(map(seen, NAMES))  # a cell is read without line ends
    rows = [["", "value"], *([name, "-0.5"] for name in names)]
    found = {
        kind: tab.evaluate(f"rows => posenc.report.writers.{kind}(rows)", rows) for kind in ("CSV", "Markdown", "LaTeX")
    }
    for kind, read in {"CSV": read_csv, "Markdown": read_markdown, "LaTeX": read_latex}.items():
        assert read(found[kind])[1:] == rows[1:], kind
