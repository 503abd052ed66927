"""GRAPE along the path: the authors' expression."""

import math

import pytest
import torch
from torch.testing import assert_close

from posenc import GRAPEAP, InputError, Positions, attention
from posenc.testing.oracles import biases, gates
from references.calls import BACKENDS, DIM, ORDERED, check_against, document_by_document, qkv, random


@pytest.fixture
def encoding():
    return random(GRAPEAP(3, dim=DIM, width=4, num_layers=2))


@BACKENDS
@pytest.mark.parametrize("layout", [name for name in ORDERED if name != "window"])
@pytest.mark.parametrize("kv_heads", [3, 1])
def test_it_is_the_formula(encoding, layout, backend, kv_heads):
    positions = ORDERED[layout]
    slopes = torch.tensor(biases.alibi(3), dtype=torch.float64)

    def formula(q, k, x):
        p = torch.nn.functional.linear(x, encoding.weight[0]).unflatten(-1, (3, 4)).transpose(1, 2)

        def of_document(q, k, row, keys, rows):
            ids = positions.k[row % len(positions.k), keys].double()
            return gates.grape_ap(p[row : row + 1, :, keys], slopes, rows, ids)

        return document_by_document(positions, q, k, of_document)

    check_against(formula, encoding, positions, backend, kv_heads)


def test_tokens_outside_of_a_window_do_not_count(encoding):
    """What a window of 3 sees is a text of 3 tokens at the same positions."""
    whole, part = Positions.arange(7, causal=True).with_window(3), Positions.arange(3, 0, causal=True)
    p = torch.randn(2, 3, 7, 4, dtype=torch.float64)
    q = torch.randn(2, 3, 7, 4, dtype=torch.float64)
    last = encoding.bias(q, q, whole.with_gates((p,))).dense(q.device)[:, :, 6, 4:]
    moved = part.moved(lambda ids, order: ids + 4).with_gates((p[:, :, 4:],))
    assert_close(last, encoding.bias(q[:, :, 4:], q[:, :, 4:], moved).dense(q.device)[:, :, 2])


def test_by_hand():
    """Two tokens, p = (1, 0) of both: log sigmoid(cos 1 / sqrt 2 sqrt 2 / 2) for the first key, nothing for the last."""
    encoding = GRAPEAP(1, dim=2, width=2).double()
    torch.nn.init.zeros_(encoding.weight)
    encoding.weight.data[0, 0, 0] = 1.0
    positions = Positions.arange(2, causal=True).with_gates((encoding.gates(torch.ones(1, 2, 2, dtype=torch.float64)),))
    q = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    bias = encoding.bias(q, q, positions).dense(q.device)[0, 0, 1]
    p_dot = math.cos(1.0) * math.sqrt(2) / 2
    assert_close(bias.tolist(), [biases.alibi(1)[0] * -math.log1p(math.exp(-p_dot)), 0.0])


def test_keys_after_the_query_are_refused(encoding):
    positions = Positions.arange(7)
    with pytest.raises(InputError, match="causal"):
        attention(*qkv(positions), encoding, positions, gates=(torch.zeros(2, 3, 7, 4, dtype=torch.float64),))
