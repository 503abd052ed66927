# SPDX-License-Identifier: Apache-2.0
"""Several budgets from one training: branches equal trainings of their own, orders that are predicted, and what is refused."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import torch

from lab.conftest import TEXT, TINY
from posenc import InputError, cli
from posenc.lab import budgets, data
from posenc.lab.compare import Comparison, compare, experiment
from posenc.lab.engines import InProcess
from posenc.lab.experiment import Run
from posenc.lab.leaderboard import compare_tasks
from posenc.lab.measure import measure
from posenc.lab.records import BUDGET, Aggregate, RunRecord, VariantScores
from posenc.lab.train import Training
from posenc.report import leaderboard
from posenc.report.compare import files, settings_of, show

STEPS = 80
CURVE = replace(TINY, steps=STEPS, contexts=(4, 16), curve=True)


@pytest.mark.parametrize("name", ["rope", "t5"])
def test_a_branch_is_the_training_of_its_budget_to_the_bit(name):
    corpus = data.corpus(TEXT, "numbered lines")
    record = measure(Run(name, 0, CURVE, corpus.digest), corpus)
    for budget in budgets.budgets(STEPS):
        alone = Training(Run(name, 0, replace(CURVE, steps=budget, curve=False), corpus.digest), corpus.train)
        for step in range(budget):
            alone.advance(budgets.rate(step, budget))
        s = CURVE
        with alone.drawing(), torch.no_grad():
            (variant, *_) = s.variants(name, alone.model.eval().encoding)
            losses = s.evaluate(alone.model, variant, corpus.test, conditions=(1,)).paired[1]
        assert record.variants[0].extra[BUDGET][str(budget)] == [round(loss, 6) for loss in losses.tolist()]
    assert record.losses == [round(loss, 5) for loss in alone.losses]
    assert record.variants[0].extra[BUDGET][str(STEPS)] == record.variants[0].paired["1"]  # of the same passages


def test_the_rate_rises_falls_as_a_square_root_and_cools_down():
    rates = [budgets.rate(step, 240) for step in range(240)]
    start = budgets.cooldown_start(240)
    assert rates[0] == 1 / budgets.WARM_UP
    assert set(rates[budgets.WARM_UP - 1 : budgets.FLAT]) == {1.0}
    assert rates[119] == pytest.approx((budgets.FLAT / 120) ** 0.5)
    assert rates[:start] == [budgets.rate(step, 960) for step in range(start)]
    assert all(later < earlier for earlier, later in zip(rates[start:], rates[start + 1 :], strict=False))
    assert rates[-1] < 0.01
    assert budgets.trained_steps(240) == 303


def variant(name, *losses, seeds=(0, 1), noise=0.0):
    """With the losses at 60, 120 and 240 steps; noise: of each example, in which variants differ."""
    examples = torch.linspace(-1, 1, 20) + noise * torch.linspace(-1, 1, 20).roll(len(name)).pow(3)
    paired = {str(at): (loss + examples).tolist() for at, loss in zip((60, 120, 240), losses, strict=True)}
    scores = VariantScores(name, True, {"1": paired["240"]}, 1.0, {BUDGET: paired})
    return Aggregate(name, name, True, {}, dict.fromkeys(seeds, scores))


def test_the_order_is_that_of_the_lines_and_not_of_the_last_losses():
    of = [variant("early", 1.9, 1.6, 1.4), variant("late", 2.6, 1.95, 1.43), variant("flat", 1.7, 1.65, 1.6)]
    found = budgets.numbers(of, 240)
    assert (found["budgets"], found["at"]) == ([60, 120, 240], 960)
    assert [row["name"] for row in found["rows"]] == ["late", "early", "flat"]
    first, second, third = (row["behind"] for row in found["rows"])
    assert first is None
    assert second["mean"] == pytest.approx((1.4 - 0.4) - (1.43 - 1.04))
    assert third["decided"]
    assert second["mean"] - second["low"] == pytest.approx(budgets.SPREAD, abs=1e-6)
    assert budgets.sentence(found) == (
        "At 960 steps, 4 times this budget, late is predicted to be first; 2 encodings behind: early and flat."
        f" {budgets.FURTHER}"
    )


@pytest.mark.parametrize(("lead", "noise", "decided"), [(-0.01, 0.0, False), (0.01, 0.0, True), (0.01, 0.5, False)])
def test_what_is_within_the_interval_is_not_decided(lead, noise, decided):
    losses = [loss + budgets.SPREAD + lead for loss in (2.0, 1.7, 1.4)]
    found = budgets.numbers([variant("a", 2.0, 1.7, 1.4), variant("bb", *losses, noise=noise)], 240)
    assert found["rows"][1]["behind"]["decided"] == decided
    undecided = f"Which of a and bb is first at 960 steps, 4 times this budget, is not decided at this budget. {budgets.FURTHER}"
    assert (budgets.sentence(found) == undecided) != decided  # no first is named where none is known


def test_nothing_is_first_where_another_is_not_decided():
    of = [variant("a", 2.0, 1.7, 1.4), variant("bb", 2.0, 1.7, 1.45, noise=0.5), variant("none", 2.5, 2.4, 2.3)]
    found = budgets.numbers(of, 240)
    assert budgets.verdicts(found) == [budgets.UNDECIDED, budgets.UNDECIDED, "behind"]
    assert budgets.sentence(found) == (
        "Which of a and bb is first at 960 steps, 4 times this budget, is not decided at this budget; 1 encoding behind: 'none'."
        f" {budgets.FURTHER}"
    )
    page = (Path(__file__).parents[2] / "benchmarks/rule.md").read_text()
    assert f"| 1 | 0.187 | {budgets.SPREAD} |" in page


def test_no_order_is_predicted_for_what_has_learned_nothing():
    of = [variant("steep", 5.5, 5.0, 4.0), variant("a", 2.0, 1.7, 1.4), variant("late", 2.5, 2.2, 1.9)]
    found = budgets.numbers(of, 240, ["steep"])
    assert [(row["name"], row["learned"]) for row in found["rows"]] == [("a", True), ("late", True), ("steep", False)]
    assert budgets.verdicts(found) == ["first", "behind", "at chance"]
    assert found["rows"][2]["behind"] is None
    assert "steep" not in budgets.sentence(found)
    for guessing in (["steep", "a", "late"], ["steep", "late"]):
        lone = budgets.numbers(of, 240, guessing)
        assert "first" not in budgets.verdicts(lone)
        assert budgets.sentence(lone).startswith("No order is predicted at 960 steps")


def test_encodings_without_a_common_seed_are_compared_by_their_means():
    found = budgets.numbers([variant("a", 2.0, 1.7, 1.4), variant("bb", 2.5, 2.2, 1.9, seeds=(2,))], 240)
    assert found["rows"][1]["behind"]["mean"] == pytest.approx(0.5)


def test_budgets_that_end_before_the_warm_up_are_refused(tmp_path, capsys):
    with pytest.raises(
        InputError, match=r"steps=60: a quarter of it, 15, cools down from step 10 on, before the warm-up of 12"
    ):
        replace(CURVE, steps=60)
    assert replace(CURVE, steps=72).budgets == (18, 36, 72)
    out = tmp_path / "out"
    assert cli.main(["compare", "--steps", "40", "--out", str(out)]) == 2
    assert "--steps 40: a quarter of it" in capsys.readouterr().err
    assert not out.exists()


def test_the_report_has_the_curve_and_speaks_of_four_times_the_budget(tmp_path, capsys):
    corpus = data.corpus(TEXT, "numbered lines")
    comparison = Comparison(("rope", "t5"), 1, CURVE)
    results = compare(comparison, corpus, tmp_path, engine=InProcess(), pages=files)
    assert results["curve"]["rows"][0]["name"] in ("none", "rope", "t5")
    assert results["curve"]["at"] == 4 * STEPS
    assert any(f"at {4 * STEPS} steps, 4 times this budget" in line.lower() for line in results["answer"])
    assert any("not predicted" in line for line in results["limits"])
    page, table = ((tmp_path / name).read_text() for name in ("report.html", "table.md"))
    assert f"In the order predicted at {4 * STEPS} steps" in page
    assert "gain from 4 to 16 bytes" in table
    show(results, str(tmp_path))
    assert "loss at" in capsys.readouterr().out
    json.dumps(results, allow_nan=False)
    boxes = page.split('id="by-budget"')[1].partition('class="plots"')[0]
    assert set(re.findall('data-method="([^"]+)"', boxes)) == {row["name"] for row in results["curve"]["rows"]}
    guessing = results["curve"] | {"rows": [row | {"learned": False} for row in results["curve"]["rows"]]}
    assert "In the order predicted" not in files(results | {"curve": guessing})["report.html"]
    again = compare(comparison, corpus, tmp_path, engine=InProcess())
    assert again["runs"]["kept_from_before"] == 3
    assert again["curve"] == results["curve"]


@pytest.fixture(scope="module")
def of_tasks(tmp_path_factory):
    """The results of a text and of a generated task, and the folder of their report."""
    small = {name: getattr(TINY, name) for name in ("batch_size", "dim", "num_layers", "num_heads", "head_dim")}
    copy = experiment("copy")(length=4, factors=(1, 2), sequences=6, steps=3, **small).load("generated")
    every = ((data.corpus(TEXT, "numbered lines"), CURVE), copy)
    plans, folder = [(Comparison(("rope", "t5"), 1, s), of) for of, s in every], tmp_path_factory.mktemp("tasks")
    return compare_tasks(plans, folder, engine=InProcess(), pages=leaderboard.files), folder


def test_a_table_of_tasks_says_all_that_is_found_in_each(of_tasks, capsys):
    results, folder = of_tasks
    leaderboard.show_tasks(results, str(folder))
    shown, page, table = capsys.readouterr().out, *((folder / name).read_text() for name in ("report.html", "table.md"))
    found = [(task, line) for task, of in results["tasks"].items() for line in of["answer"]]
    assert results["answer"] == [f"{task}: {line}" for task, line in found]
    assert all(f"- {task}: {line}" in " ".join(shown.split()) for task, line in found)
    assert all(f"<li>{line}</li>" in unescape(page) for _, line in found)
    for title in ("loss with 4 bytes of context", "gain from 4 to 16 bytes", f"predicted at {4 * STEPS}"):
        assert all(title in each for each in (table, shown))
    assert (
        f"data: text: numbered lines; copy\nmodel: 1 layer, width 8, 2 heads\nsteps: text: {STEPS}; copy: 3\n" in table
    )


@pytest.mark.parametrize("task", ["text", "copy"])
def test_a_page_says_what_a_sweep_changed(task, of_tasks):
    results, folder = of_tasks
    tried = {"rope": {"0.5": 0.25, "1.0": 0.125}, "t5": {"1.0": 0.5, "2.0": 0.75}}
    swept = {"measure": "loss", "tried": tried, "best": {"rope": 1.0, "t5": 2.0}, "edge": ["t5"]}
    page = files(results | results["tasks"][task] | {"rates": swept})["report.html"]
    value = settings_of(results["tasks"][task]).criterion.value
    assert f"<td>{value(0.25)}</td><td><b>{value(0.125)}</b></td><td>&ndash;</td>" in page
    assert '<td class="name">2<small>at an edge</small>' in page
    assert page.count("at an edge</small>") == 1
    for each, rates in (((folder / f"{task}.html").read_text(), False), (page, True)):
        assert ("row is only how" in " ".join(each.split())) != rates
        assert ("factor: rope 1, t5 2;" in each) == rates


# -------------------------------------------------------------------- learning rates


def test_each_encoding_is_reported_at_its_best_rate(tmp_path):
    corpus = data.corpus(TEXT, "numbered lines")
    comparison = Comparison(("rope",), 1, replace(TINY, steps=12), rates=(1.0, 0.01, 0.1))
    results = compare(comparison, corpus, tmp_path, engine=InProcess())
    assert results["runs"] == {"planned": 6, "finished": 6, "kept_from_before": 0}
    rates = results["rates"]
    assert {*rates["tried"]["rope"]} == {"0.01", "0.1", "1.0"}
    assert (rates["best"], rates["edge"]) == ({"none": 1.0, "rope": 1.0}, ["none", "rope"])
    assert "at an edge, so perhaps better beyond it: none (1) and rope (1)" in results["answer"][-1]
    plain = compare(replace(comparison, rates=()), corpus, tmp_path, engine=InProcess())
    assert plain["runs"]["kept_from_before"] == 2
    assert plain["variants"][0]["lengths"] == results["variants"][0]["lengths"]
    assert "the same learning rates" in " ".join(plain["limits"])
    assert "the same learning rates" not in " ".join(results["limits"])


def run_of(comparison, seed, rate, loss):
    """A finished training, and its record, of a loss at the training length."""
    (settings,) = (each for each, of in comparison.at_rates.items() if of == rate)
    variant = VariantScores("rope", True, {str(length): [loss] * 4 for length in settings.conditions}, 1.0)
    return Run.of("rope", seed, settings, "digest"), RunRecord([variant], [loss], 1, 0, 1.0, 1.0, 1)


@pytest.mark.parametrize(
    ("losses", "best", "tried", "edge"),
    [
        ({(0, 0.5): 2.0, (0, 1.0): 1.9, (0, 2.0): 1.8}, 2.0, "1 seed", True),
        ({(0, 0.5): 2.0, (0, 1.0): 1.9}, 1.0, "of 0.5 and 1 (1 seed)", True),  # rate 2 has not run yet
        (
            {(0, 0.5): 2.0, (0, 1.0): 1.7, (0, 2.0): 1.8, (1, 0.5): 1.0, (1, 1.0): 2.0},
            1.0,
            "of 0.5, 1 and 2 (1 seed)",
            False,
        ),
        ({(0, 0.5): 2.0, (0, 1.0): 2.0, (0, 2.0): 2.1}, 1.0, "1 seed", False),
        ({(0, 2.0): 2.0, (0, 1.0): 2.0}, 1.0, "of 1 and 2", False),  # a tie is no edge
        (
            {(0, 0.5): 2.0, (1, 1.0): 1.0, (1, 0.5): 2.1, (2, 2.0): 0.5},
            0.5,
            "of 0.5 (2 seeds)",
            False,
        ),  # no seed has all
    ],
)
def test_rates_are_compared_on_the_same_seeds(losses, best, tried, edge):
    comparison = Comparison(["rope"], 2, TINY, rates=(2.0, 0.5, 1.0))
    swept = comparison.swept(dict(run_of(comparison, *at, loss) for at, loss in losses.items()))
    assert (swept["rope"].best, swept["rope"].at_edge) == (best, edge)
    (line,) = comparison.of_rates(swept)
    assert tried in line
    assert ("at an edge, so" in line) == edge
    assert ("none is at an edge" in line) == (not edge and "of 0.5 (" not in line)
    finished = (
        replace(comparison, seeds=1).of_rates(swept)[0].startswith("Each encoding is at the best of 0.5, 1 and 2 times")
    )
    assert finished == ({rate for _, rate in losses} == {0.5, 1.0, 2.0} and swept["rope"].seeds == 1)


NO_SWEEP = [
    (1.0,), (2.0, 2.0), (1, 1.0, 2), (0.0, 1.0), (1e-320, 1), (1.0, float("nan")), (-1.0, 1.0), (1.0, 1e9),
    ("a", "b"), 0.5,
]  # fmt: skip


@pytest.mark.parametrize("rates", NO_SWEEP)
def test_a_sweep_that_brackets_nothing_is_refused(rates):
    with pytest.raises(InputError, match=r"rates=.*: a sweep has at least two different values"):
        Comparison(("rope",), 1, TINY, rates=rates)
