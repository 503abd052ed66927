# SPDX-License-Identifier: Apache-2.0
"""benchmarks/law.py: which cell comes next, what a cell measures, and whether the registration was first."""

import json
import math
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import law
import pytest
import torch
from torch import nn

from posenc.errors import InputError

ROOT = Path(__file__).parents[2]


def test_the_registration_is_of_cells_that_are_planned():
    registration = json.loads(law.REGISTRATION.read_text(encoding="utf-8"))
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().splitlines()
    for of in registration["corpus"]["texts"].values():
        for package, facts in of["packages"].items():
            name, version = package.split("==")
            name = law.DISTRIBUTIONS.get(name, name).lower().replace("_", "-")
            assert f"{name}=={version.partition('+')[0]}" in pinned
            assert len(facts["sha256"]) == 64
    ids = [each["id"] for each in registration["predictions"]]
    assert len(ids) == len(set(ids)) > 50
    for each in registration["predictions"]:
        assert each["low"] < each["high"]
        for term in each["sum"]:
            assert term["size"] in law.SIZES
            assert term["budget"] in law.BUDGETS
            assert term["encoding"] in (*law.SIX, law.SLOW)


def test_a_plan_that_cannot_be_trained_is_refused():
    facts = json.loads(law.REGISTRATION.read_text(encoding="utf-8"))["corpus"]
    for budgets, rates, words in [
        (law.BUDGETS, (1.0, 1.0), r"rates=\[1.0, 1.0\]: a sweep has at least two different rates"),
        ((1, 300), law.FIRST_RATES, r"budget=300: half of it would read the 23.* MB of prose 6.5 times"),
        ((0.05,), law.FIRST_RATES, r"budget=0.05: 4 steps cool down from step 3 on, before the warm-up of 12 ends"),
    ]:
        with pytest.raises(InputError, match=words):
            law.possible(budgets, rates, facts, lambda budget: round(76 * budget))


def finish(law, cell, validation):
    law.CELLS.mkdir(parents=True, exist_ok=True)
    cell.path.write_text(json.dumps({"cell": asdict(cell), "validation": validation}))


def test_rates_are_tried_until_the_best_lies_between_two(monkeypatch, tmp_path):
    monkeypatch.setattr(law, "CELLS", tmp_path)
    losses = {1.0: 1.3, 0.5: 1.2, 0.25: 1.1, 0.125: 1.0, 2.0: 1.25}
    done = []
    while (cell := next(law.waiting())).encoding == "rope" and cell.path.exists() is False:
        done.append(cell.rate)
        finish(law, cell, losses[cell.rate])
    assert done == [1.0, 0.5, 0.25, 0.125]  # the end of the grid
    monkeypatch.setattr(law, "CELLS", tmp_path / "other")
    losses |= {0.25: 1.4}
    for cell in law.waiting():
        if cell.encoding != "rope" or cell.budget > 1:
            break
        finish(law, cell, losses[cell.rate])
    assert sorted(law.tried("rope")) == [0.25, 0.5, 1.0]
    assert law.at_best("3M", "rope", 1, 8).rate == 0.5


def test_a_rate_whose_training_diverged_is_not_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(law, "CELLS", tmp_path)
    finish(law, law.Cell("0.6M", "rope", 0, 1.0, 1), None)
    finish(law, law.Cell("0.6M", "rope", 0, 0.5, 1), 1.2)
    assert law.at_best("0.6M", "rope", 0, 2).rate == 0.5


def test_the_rate_rises_stays_falls_as_a_root_and_cools_down():
    rates = [law.scale(step, 650, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(1 / law.WARM_UP)
    assert rates[law.WARM_UP - 1 : law.FLAT] == [1.0] * (law.FLAT - law.WARM_UP + 1)
    assert rates[4 * law.FLAT - 1] == pytest.approx(0.5)
    assert rates[825] == pytest.approx(rates[650] / 2, rel=1e-3)
    assert 0 < rates[-1] < rates[650] / 300
    assert rates[649] == pytest.approx(rates[650], rel=1e-2)


class Counting(nn.Module):
    """Its loss tells how many tokens it saw: the likelier its target, the more."""

    def forward(self, tokens):
        seen = torch.arange(1, tokens.shape[1] + 1.0)
        return seen.log()[None, :, None].expand(*tokens.shape, 2) * torch.tensor([1.0, 0.0])


def test_targets_are_the_same_at_every_context():
    passages = torch.zeros(3, law.LENGTH + 1, dtype=torch.int32)
    for context in law.CONTEXTS:
        losses = law.seeing(Counting(), passages, context)
        assert losses.shape == (3, law.TARGETS)
        fewest, most = (1 / losses.exp().sub(1)).aminmax()
        assert most == pytest.approx(context, rel=1e-3)
        assert fewest >= context * 7 / 8 - 1
    losses = law.losses_of(Counting(), passages)
    sizes = torch.tensor([4.0, 1.0])
    assert law.per_byte(losses, passages, sizes)[0] == pytest.approx(float(losses[0].mean()) / 4, abs=1e-4)


def git(folder, *arguments):
    author = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    return subprocess.run(["git", *author, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, None),
        ({"start": 1}, "began before its registration was committed"),
        ({"registration": "0" * 64}, "no commit of this history has its registration"),
    ],
)
def test_a_cell_that_began_before_its_registration_is_found(change, wrong, monkeypatch, tmp_path, capsys):
    folder = tmp_path / "benchmarks/law"
    (folder / "cells").mkdir(parents=True)
    monkeypatch.setattr(law, "HERE", folder)
    monkeypatch.setattr(law, "CELLS", folder / "cells")
    monkeypatch.setattr(law, "REGISTRATION", folder / "registration.json")
    law.REGISTRATION.write_text("{}")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    cell = law.Cell("0.6M", "rope", 0, 1.0, 1)
    good = {
        "cell": asdict(cell), "commit": git(tmp_path, "rev-parse", "HEAD").strip(), "start": 2**40,
        "registration": law._sha256(b"{}"), "validation": 1.0,
    }  # fmt: skip
    cell.path.write_text(json.dumps(good | change))
    assert law.check() == int(wrong is not None)
    out = capsys.readouterr().out
    assert wrong is None or wrong in out
    assert re.search(rf"{int(wrong is None)} of 1 cells", out)
    assert "0 ran from a commit that is not in this history" in out
    cell.path.write_text(json.dumps(good | {"commit": "0" * 40}))
    assert law.check() == 0
    assert "1 ran from a commit that is not in this history" in capsys.readouterr().out


def test_the_cells_that_are_committed_began_after_their_registration(capsys):
    if not (ROOT / ".git").exists() or git(ROOT, "rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("the commits are not here")
    assert law.check() == 0
    for each in law.finished():
        cell = law.Cell(**each["cell"])
        assert cell.path.exists()
        assert each["validation"] is None or math.isfinite(law.mean(each, "length"))
