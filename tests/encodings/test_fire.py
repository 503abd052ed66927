"""FIRE: the paper's formula, the listing of its appendix, invariants."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from posenc import FIRE, Positions
from posenc.testing.oracles import biases
from references.calls import BACKENDS, EVERYWHERE, EXACT, check_against, dense, random, refusals


def fire_formula(encoding, positions):
    mlp = {name: parameter.detach()[0] for name, parameter in encoding.mlp.named_parameters()}
    mlp["weight_in"], c = mlp["weight_in"][:, 0], encoding.c[0].item()
    threshold = abs(encoding.multiple[0].item() * encoding.threshold)
    i, j = positions.q[:, :, None].double(), positions.k[:, None].double()
    return lambda q, k: biases.fire(i, j, c=c, threshold=threshold, eps=1e-6, **mlp)


@BACKENDS
@pytest.mark.parametrize("threshold", [3.0, 512.0])
@EVERYWHERE
def test_fire_is_the_papers_formula(positions, threshold, backend):
    encoding = random(FIRE(3, num_layers=2, hidden=5, threshold=threshold))
    check_against(fire_formula(encoding, positions), encoding, positions, backend)
    assert not torch.equal(dense(encoding, positions, 3, layer=1), dense(encoding, positions, 3))


def test_fire_is_the_listing_of_the_appendix():
    # as mcleish7/arithmetic has it: positions from 0, the larger of position and threshold, ReLU, biases in both maps
    encoding, n, heads = FIRE(6, threshold=20).double(), 50, 6
    mlp = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.ReLU(), torch.nn.Linear(32, heads)).double()
    for ours, theirs in (("weight_in", mlp[0].weight), ("bias_in", mlp[0].bias), ("weight_out", mlp[2].weight),
                         ("bias_out", mlp[2].bias)):  # fmt: skip
        getattr(encoding.mlp, ours).data[0] = theirs.data
    encoding.c.data.fill_(0.1)  # as float64 has it
    rows = torch.arange(n, dtype=torch.float64)

    def listing(normaliser):
        distances = torch.log((0.1 * (rows[:, None] - rows)).abs() + 1)
        return mlp((distances / (torch.log((0.1 * normaliser).abs() + 1)[:, None] + 1e-6))[..., None]).permute(2, 0, 1)

    actual = dense(encoding, Positions.arange(n), heads)[0]
    assert_close(actual, listing(rows.clamp(min=20)), **EXACT)
    assert (actual - listing(rows.clamp(max=20))).abs().max() > 0.1, "a public copy takes the smaller of the two"


@given(i=st.integers(0, 20), distance=st.integers(0, 20), shift=st.integers(1, 50))
def test_fire_depends_on_the_distance_alone_up_to_its_threshold(i, distance, shift):
    torch.manual_seed(0)
    encoding = FIRE(2, threshold=20).double()
    near = at_positions(encoding, i, i - distance)
    assert torch.equal(near, at_positions(encoding, 0, -distance))
    past = at_positions(encoding, 20 + shift, 20 + shift - distance)
    assert torch.equal(past, at_positions(encoding, 20, 20 - distance)) == (distance == 0)


def at_positions(encoding, i, j):
    return dense(encoding, Positions.from_ids([i], [j]), encoding.num_heads)[0, :, 0, 0]


@pytest.mark.parametrize("n", [10, 100, 10000])
def test_fire_sees_one_interval_at_any_length(n):
    encoding = FIRE(1, hidden=1, threshold=20)
    with torch.no_grad():  # an MLP that hands its input on
        for name, value in (("weight_in", 1), ("bias_in", 0), ("weight_out", 1), ("bias_out", 0)):
            getattr(encoding.mlp, name).fill_(value)
    last = at_positions(encoding.double(), n, 0)
    assert last.item() == pytest.approx(math.log(0.1 * n + 1) / math.log(2 + 1) if n < 20 else 1, abs=1e-5)


def test_fire_starts_at_a_quarter_of_the_training_length():
    assert FIRE(2).threshold == 512
    assert FIRE(2, train_length=2048).threshold == 512
    assert FIRE(2, threshold=7, train_length=2048).threshold == 7


def test_fire_does_not_hold_hidden_units_once_per_head():
    encoding, n, sizes = FIRE(8, hidden=32), 30, []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        at = torch.arange(n)
        dense(encoding, Positions.from_ids(at), 8)
    assert max(sizes) == n * n * 32


SHORT, GRID = Positions.arange(4, causal=True), Positions.grid(2, 2)
REFUSED = {
    "heads": (lambda: dense(FIRE(3), SHORT, 2), "2 heads.*num_heads=3"),
    "threshold": (lambda: FIRE(2, threshold=-1), "threshold=-1"),
    "eps": (lambda: FIRE(2, eps=0.0), "eps=0"),
}

test_refusals = refusals(REFUSED)
