"""The evaluations whose results are committed: the documents show what was measured, and the examples' tables are made of it."""

import json

import pytest

from posenc.report.evaluate import files
from test_examples import EXAMPLES, example

ROOT = EXAMPLES.parent
MADE = ("density", "best_stretch", "lost_in_the_middle", "question_in_front")
MEASURED = ROOT / "benchmarks" / "evaluations"
PAGE = (ROOT / "benchmarks" / "evaluations.md").read_text(encoding="utf-8")


def read(name: str) -> dict:
    return json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [*MADE, "question_in_front_Gemma3"])
def test_the_document_shows_the_table_that_was_measured(name):
    results = read(name)
    assert results["complete"] is (name in MADE)  # the one on Gemma was stopped, as its page says
    assert example(name.removesuffix("_Gemma3")).table(results) in PAGE


@pytest.mark.parametrize("name", MADE)
def test_an_example_asks_for_what_its_table_shows(name, monkeypatch, capsys):
    """With an evaluation that was made before: which methods, tasks and lengths the example names."""
    module, results, asked = example(name), read(name), {}
    monkeypatch.setattr(module.posenc, "load", lambda *args, **options: (None, None))
    monkeypatch.setattr(module.posenc, "evaluate", lambda *args, **settings: asked.update(settings) or results)
    module.main()
    assert capsys.readouterr().out.strip() == module.table(results)
    assert ["none", *asked["methods"]] == results["settings"]["methods"]
    assert asked["pages"] is files


def test_a_page_that_links_the_tables_of_overlapping_documents_says_so():
    docs = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    overlapping = [path.stem for path in MEASURED.glob("*.json") if read(path.stem).get("overlapping")]
    assert overlapping
    assert all("do not overlap" in text for text in docs for name in overlapping if name in text)
