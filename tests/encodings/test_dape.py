"""DAPE: the formula, blocks of queries and their gradients, sums with other encodings."""

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import DAPE, Positions, Rotary, attention
from posenc.backends import sdpa
from posenc.testing.oracles import content
from references.calls import (
    BACKENDS,
    EVERYWHERE,
    EXACT,
    LAYOUTS,
    check_against,
    check_gradients,
    dense,
    qkv,
    random,
    refusals,
)

KINDS = pytest.mark.parametrize("kind", ["alibi", "kerple", "fire"])


def parts_of(encoding, layer=0):
    mlp = encoding.mlp
    return [x.detach()[layer] for x in (mlp.weight_in, mlp.bias_in, mlp.weight_out, mlp.bias_out)]


def dape_formula(encoding, positions):
    bias = dense(encoding.adapted, positions, 3)
    return lambda q, k: content.dape(q @ k.mT / 2, bias, *parts_of(encoding))


@BACKENDS
@pytest.mark.parametrize("kv_heads", [3, 1])
@EVERYWHERE
def test_it_is_the_formula(positions, kv_heads, backend):
    encoding = random(DAPE(3, num_layers=2, kind="alibi", hidden=5))
    check_against(dape_formula(encoding, positions), encoding, positions, backend, kv_heads)


@KINDS
def test_every_kind_is_the_formula(kind):
    encoding, positions = random(DAPE(3, kind=kind)), Positions.arange(9, causal=True)
    check_against(dape_formula(encoding, positions), encoding, positions)


@KINDS
@pytest.mark.parametrize("layout", ["causal", "cached", "left padded", "packed", "fractional"])
def test_blocks_of_queries_have_the_gradients_of_all_at_once(layout, kind, monkeypatch):
    monkeypatch.setattr(sdpa, "BLOCK_CELLS", 1)
    monkeypatch.setattr(sdpa, "LEAST_ROWS", 2)
    check_gradients(random(Rotary(4) + DAPE(4, kind=kind)), LAYOUTS[layout], 4, 2)


def test_a_long_text_is_computed_for_some_queries_at_a_time():
    assert "queries at a time" in posenc.explain(*torch.randn(3, 1, 8, 4096, 8).unbind(), DAPE(8), causal=True).reason


def test_it_acts_on_the_scores_of_the_sum():
    positions, encoding = LAYOUTS["causal"], random(DAPE(3, kind="alibi"))
    q, k, v = qkv(positions)
    rope, t5 = Rotary(4), random(posenc.T5(3, scaled=True))
    alone = attention(*rope.rotate(q, k, positions), v, encoding, positions)
    assert_close(attention(q, k, v, rope + encoding, positions), alone, **EXACT)
    before = attention(q, k, v, encoding + t5, positions)
    assert_close(attention(q, k, v, t5 + encoding, positions), before, **EXACT)


def test_a_key_that_a_bias_hides_stays_hidden():
    class Hiding(posenc.Encoding):
        def bias(self, q, k, positions, layer=0):
            return posenc.bias.Relative(lambda h, d: torch.where(d > 2, -torch.inf, 0.0), 3, positions)

    positions, encoding = Positions.arange(7, causal=True), random(DAPE(3))
    q, k, v = qkv(positions)
    wanted = attention(q, k, v, encoding, positions.with_window(2))
    assert_close(attention(q, k, v, Hiding() + encoding, positions), wanted, **EXACT)


REFUSED = {
    "kind": (lambda: DAPE(3, kind="t5"), "unknown kind 't5'"),
    "heads": (lambda: attention(*qkv(LAYOUTS["causal"]), DAPE(2), LAYOUTS["causal"]), "3 heads.*num_heads=2"),
    "flex": (lambda: attention(*qkv(LAYOUTS["causal"]), DAPE(3), LAYOUTS["causal"], backend="flex"), "takes all heads"),
}  # fmt: skip

test_refusals = refusals(REFUSED)
