# SPDX-License-Identifier: Apache-2.0
"""docs/leaderboard.md and docs/ablations.md say what the committed results say; the rows can be repeated."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from posenc.lab.archive import read
from posenc.lab.compare import experiment
from posenc.lab.data import load
from posenc.lab.experiment import LEADERBOARD

ROOT = Path(__file__).parents[3]


def script(name):
    spec = spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def leaderboard():
    return script("leaderboard")


@pytest.fixture(scope="module")
def parts(leaderboard):
    return read(leaderboard.ARCHIVES)


def test_the_tables_are_those_of_the_results(leaderboard, parts):
    if any(part.data != load("pydoc").digest for part in parts if part.task == "text"):
        pytest.skip("Python's text is another one here")
    page = (ROOT / "docs/leaderboard.md").read_text(encoding="utf-8")
    board = leaderboard.Board.read(leaderboard.ARCHIVES)
    made = leaderboard.tables(board)
    assert page == leaderboard.written(page, made)
    assert made["summary"].count("\n") == 1 + len(LEADERBOARD)
    first = board.rankings["copy"].trained[0]
    assert f"| 1 | `{first.name}` " in made["tasks"].split("group at 128 symbols")[1]


def test_a_row_can_be_repeated(parts):
    for part in parts:
        kind = experiment(part.task)
        preset = kind.presets["leaderboard"]
        corpus, settings = preset.settings.load(kind.data)
        assert part.settings == settings.to_dict()
        assert part.runs.keys() <= set(LEADERBOARD)
        if part.task != "text":
            assert part.data == corpus.digest


def test_findings_are_of_what_is_compared(leaderboard):
    for finding in leaderboard.FINDINGS:
        assert {finding.better, finding.worse} <= set(LEADERBOARD)
        assert finding.factor in experiment(finding.task)().conditions


@pytest.fixture(scope="module")
def ablations():
    return script("ablations")


def test_the_tables_of_the_ablations_are_those_of_the_results(ablations):
    page = (ROOT / "docs/ablations.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks/ablations.json").read_text(encoding="utf-8"))
    assert page == ablations.written(page, found)


def test_ablations_are_of_encodings_that_can_be_trained(ablations, monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ablations.MODELS:
        comparison, corpus = ablations.planned(name, None)
        if name in ("text", "copy", "places"):
            new = [each for each in comparison.encodings if each not in LEADERBOARD]
            comparison.check(corpus, set(comparison.encodings) - set(new[:1]) - {each for each in new if ":" in each})
