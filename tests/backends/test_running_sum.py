# SPDX-License-Identifier: Apache-2.0
"""Differences of running sums (forget gates) against the sum itself, in every backend, far from the start as well."""

from functools import partial
from itertools import product

import pytest
import torch
from torch.nn.functional import logsigmoid

import posenc
from posenc import Encoding, InputError, Positions, attention, explain
from posenc.bias import RunningSum
from test_attention import LAYOUTS, B, D, H, tensors

SELF = [name for name in LAYOUTS if "cross" not in name]


def given_sum(gates):
    """An encoding whose bias are differences of the running sum of gates."""
    return type("Given", (Encoding,), {"bias": lambda self, q, k, p, layer=0: RunningSum(gates, p)})()


def expected(gates, q, k, v, positions):
    """The sum over the tokens after j up to i, one pair at a time."""
    visible, groups = positions.mask().expand(B, 1, -1, -1), q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(groups, 1).mT * D**-0.5
    q_order, k_order = (x.expand(B, -1) for x in (positions.q_order, positions.k_order))
    valid = torch.ones_like(k_order).bool() if positions.valid is None else positions.valid.expand(B, -1)
    rows = []
    for b in range(B):
        between = (
            (k_order[b] <= q_order[b][:, None])[:, None] & (k_order[b] > k_order[b][:, None]) & valid[b]
        )  # i, j, t
        after = (k_order[b] > q_order[b][:, None])[:, None] & (k_order[b] <= k_order[b][:, None]) & valid[b]
        rows.append(torch.einsum("ijt,ht->hij", between.double() - after.double(), gates[b]))
    weights = (scores + torch.stack(rows)).masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()
    return weights @ v.repeat_interleave(groups, 1)


@pytest.mark.parametrize(
    ("layout", "backend"),
    [*product(SELF, ("reference", "auto")), *product(("bidirectional", "left padded", "packed"), ("flex",))],
)
def test_outputs_and_gradients(layout, backend, tiles):
    queries, keys, make = LAYOUTS[layout]
    given, trains = [x.requires_grad_(backend != "flex") for x in tensors(queries, keys, 2)], backend != "flex"
    gates = -torch.rand(B, H, keys, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gates.requires_grad_(trains)
    encoding = given_sum(gates)
    out, want = attention(*given, encoding, make(), backend=backend), expected(gates, *given, make())
    assert torch.allclose(out, want, atol=1e-11)
    if trains:
        leaves = [*given, gates]
        for grad, other in zip(*(torch.autograd.grad(x.square().sum(), leaves) for x in (out, want)), strict=True):
            assert torch.allclose(grad, other, atol=1e-10)


@pytest.mark.parametrize("backend", ["auto", "flex", "reference"])
def test_exact_far_from_the_start(backend):
    """After 2^20 tokens, whose gates add up to -700,000, a float32 sum has steps of 1/16."""
    n, new = 2**20 + 40, 40
    g = torch.Generator().manual_seed(0)
    gates = logsigmoid(torch.randn(1, 2, n, generator=g))
    q = torch.randn(1, 2, new, 8, generator=g)
    k, v = torch.randn(2, 1, 2, n, 8, generator=g)
    far = Positions.arange(new, n - new, causal=True).with_window(32)
    near = Positions.arange(80, causal=True).with_window(32)

    def attend(positions, gates, *given, backend=backend):
        return attention(*given, given_sum(gates), positions, backend=backend)

    q80 = torch.cat((torch.zeros(1, 2, 40, 8), q), 2)
    last = [x[:, :, -80:].double() for x in (gates, k, v)]
    want = attend(near, last[0], q80.double(), *last[1:], backend="reference")[:, :, 40:]
    if backend == "auto":
        assert (attend(far, gates, q, k, v) - want).abs().max() < 2e-6
        return
    # the others read every key: the same gates, after one that is the sum of all before them
    start = gates[:, :, :-80].double().sum(2, keepdim=True)
    short = torch.cat((start, last[0]), 2)
    keys, values = (torch.cat((x[:, :, :1], x[:, :, -80:]), 2) for x in (k, v))
    p = Positions.arange(new, 41, causal=True).with_window(32)
    assert float(start.abs().min()) > 700_000
    assert (attend(p, short, q, keys, values) - want).abs().max() < 2e-6


def test_compiled():
    q, k, v = (x.float() for x in tensors(5, 5, 2))
    encoding = given_sum(-torch.rand(B, H, 5))
    run = torch.compile(partial(attention, encoding=encoding, causal=True), backend="aot_eager", fullgraph=True)
    assert torch.allclose(run(q, k, v), attention(q, k, v, encoding, causal=True), atol=1e-6)


def test_what_explain_says():
    q, k, v = (x.float() for x in tensors(600, 600, 2))
    encoding, p = given_sum(torch.zeros(B, H, 600)), Positions.arange(600, causal=True)
    with torch.no_grad():
        explained = explain(q, k, v, encoding, p)
    assert "dense" not in explained.reason


def test_gates_of_other_tokens_are_refused():
    q, k, v = tensors(5, 5, 2)
    with pytest.raises(InputError, match=r"gates of shape .* num_keys is 5"):
        attention(q, k, v, posenc.NoPE() + given_sum(torch.zeros(1, H, 4)), causal=True)
