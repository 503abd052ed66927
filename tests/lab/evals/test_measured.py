"""The evaluations whose results are committed: the documents show what was measured, and the examples' tables are made of it."""

import json

import longer
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


def test_the_tables_and_the_picture_past_the_trained_length_are_those_of_the_results():
    shown = json.loads((ROOT / longer.RESULTS / f"{longer.SHOWN}.json").read_text(encoding="utf-8"))
    assert shown["complete"]
    assert {round(at["times"]) for at in shown["longer"]} == {2, 4, 8}
    page = (ROOT / longer.PAGE).read_text(encoding="utf-8")
    assert longer.picture(shown) == (ROOT / longer.PICTURE).read_text(encoding="utf-8")
    for path in (ROOT / longer.RESULTS).glob("longer_*.json"):
        results = json.loads(path.read_text(encoding="utf-8"))
        assert longer.generated(page, path.stem, longer.summary(results)) == page
        page_of_model = (MEASURED.parent / f"{path.stem}.md").read_text(encoding="utf-8")
        assert longer.tables(path.stem.removeprefix("longer_"), results) == page_of_model
        quoting = [each.read_text(encoding="utf-8") for each in (ROOT / "docs").rglob("*.md")]
        quoting = [text for text in quoting if f"{path.stem}.md" in text]
        assert all("do not overlap" in text for text in quoting if results.get("overlapping")), path
        for task in (task for at in results["longer"] for task in at["tasks"]):
            assert {row["method"] for row in task["rows"]} >= {"none", "truncation"}
