# SPDX-License-Identifier: Apache-2.0
"""benchmarks/law_lease.py and law_gpu.py: what a lease trains next, its optimiser, and what is read off its cells."""

import math

import early
import law
import law_gpu
import law_lease
import pytest
import rule
import torch
from law import Cell
from torch import nn

from posenc.lab.muon import Muon


def test_rates_are_bracketed_before_budgets_and_nothing_is_trained_twice():
    done, tried = {}, {encoding: [] for encoding in law_lease.TEN}
    while True:
        task = next(law_lease.waiting(3, done, set()), None)
        if task is None or task.budgets != (law_lease.SWEPT_BUDGET,) or task.size != law_lease.SWEPT or task.seed:
            break
        assert set(task.cells()).isdisjoint(done)
        tried[task.encoding].append(task.rate)
        done |= {cell: abs(math.log2(cell.rate) + 1.2) for cell in task.cells()}
    assert all(sorted(rates) == [0.25, 0.5, 1.0, 2.0] for rates in tried.values())  # 0.5 is best, and lies between two
    assert task == law_lease.Task("3M", "rope", 0, 0.5, (8, 32))  # 16 is there
    assert next(law_lease.waiting(3, done, set(task.cells()))).encoding == "alibi"
    del done[Cell("3M", "rope", 0, 0.25, 16)]
    assert next(law_lease.waiting(3, done, set())) == law_lease.Task("3M", "rope", 0, 0.25, (16,))


def test_matrices_of_one_shape_at_once_are_orthogonalised_as_alone():
    torch.manual_seed(0)
    alone = [nn.Parameter(torch.randn(shape)) for shape in ((8, 8), (8, 32), (32, 8), (8, 8))]
    at_once = [nn.Parameter(w.detach().clone()) for w in alone]
    groups = [[{"params": [w], "lr": 0.05 * n} for n, w in enumerate(each, 1)] for each in (alone, at_once)]
    one, other = Muon(groups[0], lr=0.05), law_lease.Batched(Muon(groups[1], lr=0.05))
    for _ in range(3):
        for a, b in zip(alone, at_once, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        one.step()
        other.step()
    torch.testing.assert_close(alone, at_once)


def test_a_multiplier_is_read_between_measured_losses_alone():
    for own, budget, cost, sign, value in [
        ({16: 0.8}, 16, 1.0, "", 2.0),
        ({16: 0.9, 32: 0.7}, 32, 2.0, "", 2**-0.5),  # rope is never as low: read on the other curve
        ({8: 1.3, 16: 1.1}, 8, 1.0, "", 2**-0.5),
        ({32: 0.7}, 32, 0.5, "> ", 2.0),
        ({8: 1.3}, 8, 1.0, "< ", 1.0),
    ]:
        found = law_gpu.multiplier(own, {8: 1.2, 16: 1.0, 32: 0.8}, budget, cost)
        assert found == (sign, pytest.approx(value))
    assert math.isnan(law_gpu.multiplier({8: 1.3, 16: 1.35}, {8: 1.2, 16: 1.4}, 16, cost=1.0)[1])  # losses rise


@pytest.mark.parametrize("module", [law, law_lease, early, rule], ids=lambda module: module.__name__)
def test_the_checks_of_registrations_pass(module, capsys):
    if not (law.HERE.parents[1] / ".git").exists() or law._git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("the commits are not here")
    assert module.check() == 0, capsys.readouterr().out
