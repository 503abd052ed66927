"""RePo: RoPE at positions that tokens make, as the authors have it."""

import pytest
import torch
from torch.testing import assert_close

from posenc import Positions, RePo, attention
from posenc.encoding import gates_of
from posenc.testing.oracles import gates, rotations
from references.calls import BACKENDS, DIM, EXACT, IN_ORDER, check_against, qkv, random


@pytest.fixture
def encoding():
    return random(RePo(4, dim=DIM, num_heads=4, num_kv_heads=2, hidden=3, num_layers=2))


@BACKENDS
@IN_ORDER
def test_it_is_the_formula(encoding, positions, backend):
    def formula(q, k, x):
        maps = encoding.gate_map[0], encoding.content_map[0], encoding.position_map[0]
        of_k = gates.repo(x, *maps, rotations.frequencies(4, encoding.rope_theta)).repeat_interleave(2, 1)
        of_q = positions.of_queries(of_k)
        return 0.5 * (rotations.turned(q, of_q, "half") @ rotations.turned(k, of_k, "half").mT - q @ k.mT)

    check_against(formula, encoding, positions, backend, 2, 4)


def test_a_token_between_two_others_is_scored_between_them():
    """Positions by hand: W3 (SiLU(W1 x) * W2 x) of one channel, with W1 large enough for SiLU to be the identity."""
    encoding = RePo(2, dim=1, num_heads=1, hidden=1).double()
    for weight, value in ((encoding.gate_map, 1e6), (encoding.content_map, 1e-6), (encoding.position_map, 1.0)):
        torch.nn.init.constant_(weight, value)
    x = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)[None, :, None]
    (z,) = gates_of(encoding, x)
    assert_close(z.flatten(), x.flatten() ** 2)  # SiLU(1e6 x) 1e-6 x = x^2 for x > 0
    q = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, 1, 3, 2)
    rotated, _ = encoding.rotate(q, q, Positions.arange(3, causal=True).with_gates((z,)))
    assert_close(rotated[0, 0, :, 0], (x.flatten() ** 2).cos())


def test_positions_of_tokens_are_not_read(encoding):
    here, far = Positions.arange(7, causal=True), Positions.arange(7, causal=True).moved(lambda ids, order: 1000 - ids)
    q, k, v = qkv(here, 4, 2)
    made = gates_of(encoding, torch.randn(2, 7, DIM, dtype=torch.float64))
    assert_close(attention(q, k, v, encoding, far, gates=made), attention(q, k, v, encoding, here, gates=made), **EXACT)
