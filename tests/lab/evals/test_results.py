"""The numbers of results.json against a made-up set of outcomes, by formulas written here once more."""

from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev
from typing import ClassVar

import pytest
import torch

from posenc.lab.evals.config import NONE, TRUNCATION, Cell, EvaluationSettings
from posenc.lab.evals.reader import BLOCKS, TextOutcome
from posenc.lab.evals.results import BASE, BETTER, UNDECIDED, WORSE, Measured, answer, change, limits, numbers, share
from posenc.tasks import Task

T_15 = 2.131  # Student's t, 97.5 %, 15 degrees of freedom


@dataclass(frozen=True)
class Asks(Task):
    """Something is asked for.

    As in no paper.
    """

    name: ClassVar[str] = "asks"
    new_tokens: ClassVar[int] = 4

    def sample(self, tokenizer, length, *, depth=0.5, seed=0, index=0):
        raise NotImplementedError


@dataclass(frozen=True)
class Reads(Asks):
    """Something is read."""

    name: ClassVar[str] = "reads"
    new_tokens: ClassVar[int] = 0
    takes_depth: ClassVar[bool] = False


TASKS = {"asks": Asks(), "reads": Reads()}
SETTINGS = EvaluationSettings(("asks", "reads"), ("good", "bad"), (64, 128), (0.0, 0.5, 1.0), samples=8, seeds=2)
TRAINED = 64


def outcome(cell, index):
    """Good finds more than none does, bad less; past the context length none breaks. Losses wander from text to text."""
    noise = float(torch.rand(1, generator=torch.Generator().manual_seed(100 * cell.seed + index)))
    broken = cell.length > TRAINED and cell.method == NONE
    loss = 2 + noise + {"good": -0.3, "bad": 0.4, TRUNCATION: 0.1}.get(cell.method, 0) + 3 * broken
    if cell.task == "reads":
        blocks = (None, *[loss + block for block in range(1, BLOCKS)])
        return TextOutcome(cell.length, None, loss, 0.5, 0, blocks=blocks)
    right = {0.0: noise < 0.9, 0.5: noise < 0.15, 1.0: noise < 0.85}[cell.depth]
    right = right or cell.method == "good"
    right = right and not (cell.method in ("bad", TRUNCATION) or broken)
    return TextOutcome(cell.length, cell.depth * cell.length, loss, 0.75, int(right), "x", float(right))


def measured(settings=SETTINGS, score=True):
    done = {}
    for seed in range(settings.seeds):
        for length in settings.lengths:
            for method in (*settings.methods, TRUNCATION):
                if method == TRUNCATION and length <= TRAINED:
                    continue
                for task in TASKS:
                    for depth in settings.depths if task == "asks" else (None,):
                        cell = Cell(task, method, length, depth, seed)
                        found = tuple(outcome(cell, index) for index in range(settings.samples))
                        done[cell] = Measured(found, 2.0, 100.0 * length / 64, 1000 + length, 1.5)
    return done


@pytest.fixture(scope="module")
def done():
    return measured()


@pytest.fixture(scope="module")
def found(done):
    return numbers(SETTINGS, TASKS, done, TRAINED)


def method(found, task, name):
    (at,) = [t for t in found["tasks"] if t["task"] == task]
    return next(m for m in at["methods"] if m["method"] == name)


def of(done, task, name, length, depth, get):
    """One number for each text, in the order of the seeds."""
    cells = [done[Cell(task, name, length, depth, seed)] for seed in range(2)]
    return [get(each) for cell in cells for each in cell.outcomes]


def test_cells_pool_the_seeds(found, done):
    cells = {(c["length"], c["depth"]): c for c in method(found, "asks", "none")["cells"]}
    assert sorted(cells) == [(n, d) for n in (64, 128) for d in (0.0, 0.5, 1.0)]
    for (length, depth), cell in cells.items():
        right = of(done, "asks", NONE, length, depth, lambda o: o.exact)
        losses = of(done, "asks", NONE, length, depth, lambda o: o.loss)
        n, p, z = 16, sum(right) / 16, 1.959964
        middle, spread = (
            (p + z**2 / 2 / n) / (1 + z**2 / n),
            z / (1 + z**2 / n) * sqrt(p * (1 - p) / n + z**2 / 4 / n**2),
        )
        assert cell["n"] == 16
        assert cell["position"] == depth * length
        for share_ in (cell["exact"], cell["score"]):
            assert share_ == pytest.approx(
                {
                    "mean": p,
                    "low": max(middle - spread, 0),
                    "high": min(middle + spread, 1),
                    "n": 16,
                    "hits": sum(right),
                }
            )
        error = stdev(losses) / 4
        expected = {"mean": fmean(losses), "error": error}
        expected |= {"low": fmean(losses) - T_15 * error, "high": fmean(losses) + T_15 * error}
        assert cell["loss"] == pytest.approx(expected, rel=1e-4)
        assert cell["accuracy"]["mean"] == 0.75


def test_depths_of_one_text_do_not_count_as_texts(found, done):
    rows = {row["length"]: row for row in method(found, "asks", "none")["by_length"]}
    texts = [of(done, "asks", NONE, 64, depth, lambda o: o.exact) for depth in (0.0, 0.5, 1.0)]
    each = [sum(values) for values in zip(*texts, strict=True)]  # right answers a text, of 3
    p = sum(each) / 48
    assert rows[64]["exact"]["mean"] == pytest.approx(p)
    assert (rows[64]["n"], rows[64]["exact"]["n"], rows[64]["exact"]["hits"]) == (48, 48, sum(each))
    between = 16 / 15 * sum((count - 3 * p) ** 2 for count in each) / 48**2
    effect = max(1.0, between / (p * (1 - p) / 47))
    n, z = 48 / effect, 1.959964
    low = (p + z**2 / 2 / n - z * sqrt(p * (1 - p) / n + z**2 / 4 / n**2)) / (1 + z**2 / n)
    assert rows[64]["exact"]["low"] == pytest.approx(low)
    losses = [
        fmean(v) for v in zip(*(of(done, "asks", NONE, 64, d, lambda o: o.loss) for d in (0.0, 0.5, 1.0)), strict=True)
    ]
    assert rows[64]["loss"]["error"] == pytest.approx(stdev(losses) / 4)


@pytest.mark.parametrize("likely", [0.05, 0.9])
def test_outcomes_that_are_all_alike_may_go_together(likely):
    """Each text has one outcome at all depths: more depths do not narrow the interval."""
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(300):
        found = share([[float(hit)] * 10 for hit in torch.rand(8, generator=generator) < likely])
        covered += found["low"] <= likely <= found["high"]
    assert covered > 0.9 * 300
    assert share([[1.0] * 10] * 8)["low"] == share([[1.0]] * 8)["low"]


def test_methods_are_compared_with_none_text_by_text(found, done):
    row = method(found, "reads", "good")["by_length"][0]
    assert row["against_none"]["loss"] == pytest.approx(
        {"mean": -0.3, "error": 0, "low": -0.3, "high": -0.3, "n": 16}, abs=1e-6
    )
    assert row["against_none"]["score"] is None
    assert method(found, "reads", "none")["by_length"][0]["against_none"] is None
    row = method(found, "asks", "good")["by_length"][0]["against_none"]
    gains = [
        fmean(values)
        for values in zip(
            *(
                [a - b for a, b in zip(of(done, "asks", "good", 64, d, lambda o: o.exact),
                                       of(done, "asks", NONE, 64, d, lambda o: o.exact), strict=True)]
                for d in (0.0, 0.5, 1.0)
            ), strict=True)
    ]  # fmt: skip
    more = [*gains, 1, -1]  # Agresti and Min's half pairs: +1 and -1 with weight 1/2 each, 0 with weight 1
    weights = [1.0] * 16 + [0.5, 0.5]
    middle = sum(w * x for w, x in zip(weights, more, strict=True)) / 18
    error = sqrt((sum(w * x * x for w, x in zip(weights, more, strict=True)) / 18 - middle**2) / 18)
    expected = {
        "mean": fmean(gains),
        "error": error,
        "low": middle - 1.959964 * error,
        "high": middle + 1.959964 * error,
        "n": 16,
    }
    assert row["exact"] == pytest.approx(expected)
    assert row["score"] == row["exact"]


def test_a_few_pairs_that_agree_leave_doubt():
    assert change([[1.0]] * 2).low < 0
    assert change([[1.0]] * 5).low > 0
    assert change([[0.0]] * 5).low == -change([[0.0]] * 5).high < 0


def test_truncation_is_none_where_nothing_is_cut(found):
    for task in ("asks", "reads"):
        none, cut = (method(found, task, name)["by_length"] for name in (NONE, TRUNCATION))
        assert cut[0]["loss"] == none[0]["loss"]
        assert cut[0]["against_none"]["loss"]["mean"] == 0
        assert cut[1]["loss"]["mean"] == pytest.approx(none[1]["loss"]["mean"] - 2.9)
    assert method(found, "asks", TRUNCATION)["seconds"] == 2 * 2 * 3  # of its own cells alone


def test_losses_by_position(found, done):
    (short, long) = method(found, "reads", "none")["by_position"]
    assert (short["length"], long["length"]) == (64, 128)
    assert [p["position"] for p in short["points"]] == [(block + 0.5) * 4 for block in range(1, BLOCKS)]
    losses = of(done, "reads", NONE, 64, None, lambda o: o.loss)
    assert short["points"][2]["loss"] == pytest.approx(fmean(losses) + 3)
    assert short["points"][2]["low"] == pytest.approx(fmean(losses) + 3 - T_15 * stdev(losses) / 4, rel=1e-4)
    assert method(found, "asks", "none")["by_position"] == []


def test_methods_are_ranked_by_tasks_won_and_lost(found):
    assert [row["method"] for row in found["ranking"]] == ["good", TRUNCATION, "none", "bad"]
    verdicts = {row["method"]: [at["verdict"] for at in row["tasks"]] for row in found["ranking"]}
    assert verdicts == {
        "good": [BETTER, BETTER],
        "none": [BASE, BASE],
        TRUNCATION: [UNDECIDED, BETTER],
        "bad": [WORSE, BETTER],
    }
    assert [(row["better"], row["worse"]) for row in found["ranking"]] == [(2, 0), (1, 0), (0, 0), (1, 1)]
    assert [at["measure"] for at in found["ranking"][0]["tasks"]] == ["score", "loss"]
    assert found["ranking"][0]["tasks"][0]["value"] == method(found, "asks", "good")["by_length"][0]["score"] | {
        "low": share([[1] * 6] * 16)["low"], "n": 96, "hits": 96
    }  # fmt: skip


def test_cost_is_of_the_cells_that_were_measured(found, done):
    none = next(row for row in found["cost"] if row["method"] == NONE)
    assert none["seconds"] == 2 * 2 * 4 * 2
    assert none["tokens_per_second"] == round((100 + 200) * 2 * 4 / none["seconds"], 1)
    assert none["peak_bytes"] == 1128


def test_what_was_interrupted_has_its_numbers(done):
    part = {cell: m for cell, m in done.items() if cell.seed == 0 and (cell.length, cell.method) != (128, "bad")}
    found = numbers(SETTINGS, TASKS, part, TRAINED)
    assert [row["length"] for row in method(found, "asks", "bad")["by_length"]] == [64]
    part = {cell: m for cell, m in done.items() if cell.seed == 0 or cell.depth in (0.5, None)}  # of an earlier run
    here = method(numbers(SETTINGS, TASKS, part, TRAINED), "asks", "good")["by_length"][0]
    assert (here["n"], len(here["documents"]["exact"])) == (8 * 3 + 8, 16)
    only = {cell: m for cell, m in part.items() if cell.method == "good"}
    found = numbers(SETTINGS, TASKS, only, TRAINED)
    assert method(found, "asks", "good")["by_length"][0]["against_none"] is None
    assert found["ranking"][0]["tasks"][0]["verdict"] == UNDECIDED
    assert method(found, "asks", "none")["cells"] == []


def results(found, **settings):
    return {
        "complete": True, "model": {"trained_length": TRAINED}, "cells": {"planned": 9, "finished": 9},
        "settings": {"samples": 8, "seeds": 2, "generate": True, "methods": ["none", "good", "bad"], "lengths": [64, 128]}
        | settings, **found,
    }  # fmt: skip


def test_the_answer_follows_from_the_numbers(found):
    lines = answer(results(found))
    assert lines[0].startswith("good against the unmodified model: better on asks (+")
    assert lines[1].startswith("bad against the unmodified model: worse on asks (")


def test_fewer_texts_than_a_verdict_takes_leave_all_undecided(done):
    few = {cell: replace(m, outcomes=m.outcomes[:7]) for cell, m in done.items()}
    found = numbers(SETTINGS, TASKS, few, TRAINED)
    verdicts = {at["verdict"] for row in found["ranking"] for at in row["tasks"] if row["method"] != NONE}
    assert verdicts == {UNDECIDED}
    assert not any("better on" in line or "worse" in line for line in answer(results(found, samples=7)))
    assert "A verdict takes 16 documents: with 14 every difference is undecided." in limits(results(found, samples=7))
    assert not any("verdict" in line for line in limits(results(found)))
