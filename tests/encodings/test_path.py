"""PaTH: the formula, its gradients, convolutions that stay in a document."""

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import PaTH, Positions
from posenc.encoding import gates_of
from posenc.testing.oracles import gates
from posenc.testing.oracles.attention import mix
from references.calls import (
    BACKENDS,
    DIM,
    EXACT,
    IN_ORDER,
    ORDERED,
    check_against,
    document_by_document,
    qkv,
    random,
    refusals,
)


def path_formula(encoding, positions):
    def formula(q, k, x):
        (given,), kernel = gates_of(encoding, x), None if encoding.filter is None else encoding.filter[0]
        groups = q.shape[1] // given.shape[1]

        def of_document(q, k, row, keys, rows):
            y, logits = given[row : row + 1, :, keys, :-1], given[row : row + 1, :, keys, -1:]
            each = [x.repeat_interleave(groups, 1) for x in (gates.directions(y, kernel), 2 * logits.sigmoid())]
            return 0.5 * (gates.path(q, k, *each, rows) - q @ k.mT)

        return document_by_document(positions, q, k, of_document)

    return formula


@pytest.mark.usefixtures("tiles")
@BACKENDS
@IN_ORDER
def test_path_is_its_formula(positions, backend):
    encoding = random(PaTH(DIM, num_heads=4, head_dim=4, num_kv_heads=2, rank=3))
    check_against(path_formula(encoding, positions), encoding, positions, backend, kv_heads=2, heads=4)


@pytest.mark.parametrize("conv_size", [0, 1, 9])
def test_convolutions_of_any_size(conv_size):
    positions = ORDERED["packed"]
    encoding = random(PaTH(DIM, num_heads=3, head_dim=4, rank=None, conv_size=conv_size))
    check_against(path_formula(encoding, positions), encoding, positions)
    assert encoding.looks_back == max(conv_size - 1, 0)


def test_gates_are_a_direction_and_a_logit_per_key_head():
    encoding, x = (
        random(PaTH(DIM, num_heads=4, head_dim=4, num_kv_heads=2, num_layers=2, rank=3)),
        torch.randn(2, 5, DIM).double(),
    )
    gates = encoding.gates(x, 1)
    w = (x @ encoding.down[1].T @ encoding.up[1].T).view(2, 5, 2, 4).transpose(1, 2)
    assert_close(gates[..., :-1], w, **EXACT)
    assert_close(gates[..., -1], (x @ encoding.beta_weight[1].T + encoding.beta_bias[1]).mT, **EXACT)


def by_formula(q, k, v, given):
    """Causal attention with gates (batch, heads, n, d + 1), the last of which is the logit of beta."""
    every = torch.arange(q.shape[2])
    w, beta = gates.directions(given[..., :-1], None), 2 * given[..., -1:].sigmoid()
    scores = gates.path(q, k, w, beta, every) * q.shape[3] ** -0.5
    return mix(scores, v, visible=every <= every[:, None])


@pytest.mark.parametrize("cut", [False, True])
def test_values_and_gradients_are_those_of_the_equation(cut, request):
    if cut:
        request.getfixturevalue("tiles")  # blocks of queries, computed again for the gradient
    positions, encoding = Positions.arange(14, causal=True), PaTH(DIM, num_heads=2, head_dim=5, conv_size=0).double()
    leaves = [x.requires_grad_() for x in (*qkv(positions, 2, 2, 5), torch.randn(2, 2, 14, 6).double())]
    out = posenc.attention(*leaves[:3], encoding, positions, gates=leaves[3])
    expected = by_formula(*leaves)
    assert_close(out, expected, **EXACT)
    weight = torch.randn_like(out)
    for ours, theirs in zip(*(torch.autograd.grad((y * weight).sum(), leaves) for y in (out, expected)), strict=True):
        assert_close(ours, theirs, **EXACT)


def test_long_texts_equal_the_equation():
    positions, encoding = Positions.arange(192, causal=True), random(PaTH(DIM, num_heads=2, head_dim=8, conv_size=0))
    q, k, v = qkv(positions, 2, 2, 8)
    gates = encoding.gates(torch.randn(2, 192, DIM, dtype=torch.float64))
    expected = by_formula(q, k, v, gates)
    assert_close(posenc.attention(q, k, v, encoding, positions, gates=gates), expected, **EXACT)
    single = posenc.attention(*(x.float() for x in (q, k, v)), encoding, positions, gates=gates.float())
    assert_close(single, expected.float(), rtol=1e-4, atol=1e-5)


P = Positions.arange(4, causal=True)
PATH = PaTH(DIM, num_heads=4, head_dim=4, num_kv_heads=2)


def call(encoding=PATH, positions=P, heads=4, width=4, gates=None):
    q, k, v = qkv(positions, heads, 2, width)
    x = torch.randn(2, positions.num_keys, DIM, dtype=torch.float64)
    return posenc.attention(
        q, k, v, encoding, positions, gates=gates_of(encoding.double(), x) if gates is None else gates
    )


REFUSED = {
    "not causal": (lambda: call(positions=P.with_causal(False)), "path is defined.*causal positions"),
    "prefix": (lambda: call(positions=P.with_prefix(2)), "causal positions"),
    "heads": (lambda: call(heads=6), "num_heads=4"),
    "width": (lambda: call(width=6), "head_dim 6.*head_dim=4"),
    "conv": (lambda: PaTH(DIM, num_heads=4, head_dim=4, conv_size=-1), "conv_size=-1"),
    "key heads": (lambda: PaTH(DIM, num_heads=4, head_dim=4, num_kv_heads=3), "num_kv_heads=3"),
}

test_refusals = refusals(REFUSED)
