"""The cases of other projects' suites agree, and docs/conform.md counts them."""

import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
from foreign import BEGIN, DATA, END, PAGE, SUITES, Case, measure, off, outcome, table  # noqa: E402

ROWS = json.loads(DATA.read_text(encoding="utf-8"))
QUICK = 3
"""Cases of each suite that are computed here; `make foreign` computes all."""


def agrees(case, project):
    agreed, difference = outcome(case)
    known = ROWS[project]["disagree"]
    assert agreed or case.name in known, f"{case.name}: {difference}"


@pytest.mark.parametrize("project", SUITES)
def test_some_cases_of_each_suite(project):
    cases = sorted(SUITES[project][2](), key=lambda case: any(size in case.name for size in ("1023", "2048", "65536")))
    for case in cases[:QUICK]:
        agrees(case, project)


@pytest.mark.parametrize("project", SUITES)
def test_many_cases_of_each_suite(project):
    cases = list(SUITES[project][2]())
    for case in cases[:: max(len(cases) // 20, 1)]:
        agrees(case, project)


def test_the_page_counts_them():
    page = PAGE.read_text(encoding="utf-8")
    assert page[page.index(BEGIN) + len(BEGIN) : page.index(END)].strip() == table(ROWS), "run: make foreign"
    assert list(ROWS) == list(SUITES)
    for project, row in ROWS.items():
        names = [case.name for case in SUITES[project][2]()]
        assert row["cases"] == len(set(names)) == len(names)
        assert row["agree"] + len(row["disagree"]) == row["cases"]


def test_the_largest_difference_leaves_out_half_precision_alone(monkeypatch):
    cases = [
        Case("float64", lambda: 1e-12),
        Case("printed to four digits", lambda: 4e-5, 1e-4),
        Case("half", lambda: 1e-2, 2e-2),
    ]
    monkeypatch.setitem(SUITES, "x", ("", "", lambda: cases))
    assert measure("x")["largest"] == 4e-5


def test_a_wrong_number_and_an_error_do_not_agree():
    assert outcome(Case("off", lambda: off(torch.ones(2), torch.zeros(2)))) == (False, 1.0)
    assert outcome(Case("nan", lambda: float("nan")))[0] is False
    agreed, why = outcome(Case("raises", lambda: 1 / 0))
    assert (agreed, why) == (False, "ZeroDivisionError: division by zero")
