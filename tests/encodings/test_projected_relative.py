"""Inkling's relative bias: the formula, transformers' module, x-transformers', gates."""

import pytest
import torch
from torch.testing import assert_close
from transformers.models.inkling.modeling_inkling import InklingRelativeLogits
from x_transformers.x_transformers import RelativeProjPositionalBias

from posenc import Positions, ProjectedRelative, attention
from posenc.encoding import gates_of
from posenc.testing.oracles import content
from references.calls import AT_INTEGERS, BACKENDS, DIM, EXACT, LAYOUTS, check_against, distances, qkv, random, refusals


def made(extent=4, **options):
    return random(ProjectedRelative(DIM, num_heads=3, extent=extent, profiles=2, **options))


def test_it_is_declared_complete():
    assert ProjectedRelative(8, num_heads=2).sites() == ("gates", "bias")


@BACKENDS
@pytest.mark.parametrize("kv_heads", [3, 1])
@AT_INTEGERS
def test_it_is_the_formula(positions, kv_heads, backend):
    encoding = made(num_layers=2)
    weight, table = encoding.projection.weight[0], encoding.table[0]

    def formula(q, k, x):
        return content.projected_relative(x[:, -positions.num_queries :], weight, table, distances(positions))

    check_against(formula, encoding, positions, backend, kv_heads)


@pytest.mark.parametrize("extent", [1, 3, 40])
def test_it_is_inklings_module(extent):
    # theirs takes the token's vectors, (batch, n, heads, width), and gives zeros to keys after the query
    theirs, encoding, positions = InklingRelativeLogits(2, extent).double(), made(extent), Positions.arange(9)
    theirs.proj.data = encoding.table.data[0].T
    gates = torch.randn(2, 3, 9, 2, dtype=torch.float64)
    q, k, _ = qkv(positions)
    ours = encoding.bias(q, k, positions.with_gates((gates,))).dense(q.device)
    assert_close(ours, theirs(gates.transpose(1, 2), torch.arange(9), torch.arange(9)), **EXACT)


@pytest.mark.parametrize("cached", [0, 6])
def test_it_is_that_of_x_transformers(cached):
    encoding, positions = made(5), Positions.arange(3, cached, causal=True)
    theirs = RelativeProjPositionalBias(DIM, 3, num_distance_basis=2, max_dist=5).double()
    theirs.distance_bank.data = encoding.table.data[0].T
    theirs.to_distance_weights[0].weight.data = encoding.projection.weight.data[0].flatten(0, 1)
    torch.nn.init.zeros_(theirs.to_distance_weights[0].bias)
    x = torch.randn(2, 3 + cached, DIM, dtype=torch.float64)
    q, k, _ = qkv(positions)
    ours = encoding.bias(q, k, positions.with_gates(gates_of(encoding, x))).dense(q.device)
    assert_close(ours, theirs(x[:, cached:], 3 + cached), **EXACT)


def call(encoding=None, positions=None, gates=None, heads=3):
    positions = LAYOUTS["causal"] if positions is None else positions
    return attention(*qkv(positions, heads, heads), made() if encoding is None else encoding, positions, gates=gates)


REFUSED = {
    "init_std": (lambda: ProjectedRelative(8, num_heads=2, init_std=-1.0), "init_std=-1"),
    "no gates": (call, "gates: 0 tensors, projected_relative makes 1"),
    "heads": (lambda: call(heads=2, gates=torch.zeros(2, 2, 7, 2)), "num_heads=3"),
    "fractional": (lambda: call(positions=LAYOUTS["fractional"], gates=torch.zeros(2, 3, 7, 2)), "integer positions only"),
}  # fmt: skip

test_refusals = refusals(REFUSED)
