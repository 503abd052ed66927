"""PoPE: the paper's formula, x-transformers' functions, and where the phases start."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from x_transformers.x_transformers import PolarEmbedding, apply_polar_pos_emb

import posenc
from posenc import InputError, PoPE, Positions
from posenc.testing.oracles import rotations
from references.calls import scores

EXACT = {"rtol": 1e-10, "atol": 1e-11}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("base", [10000.0, 500000.0, 7.0])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(3, 3, 5), (6, 2, 8)])
@pytest.mark.parametrize(("new", "cached"), [(9, 0), (3, 6)])
def test_scores_are_the_formula(new, cached, heads, kv_heads, dim, base):
    encoding = PoPE(dim, num_heads=heads, num_layers=2, rope_theta=base).double()
    torch.nn.init.normal_(encoding.delta, -3.0, 4.0)  # some beyond the bounds
    q, k, p = random(heads, new, dim), random(kv_heads, new + cached, dim), Positions.arange(new, cached)
    for layer in range(2):
        delta = encoding.delta[layer].detach().clamp(-2 * math.pi, 0)

        def products(sign, delta=delta):
            at = sign * rotations.angles(torch.arange(new + cached), 2 * dim, base)
            of_keys = rotations.polar(k, at).repeat_interleave(heads // kv_heads, 0)
            return rotations.polar(q, at[cached:] - delta[:, None]) @ of_keys.mT

        expected = products(1)
        ours = scores(encoding, q[None], k[None], p, layer)[0]
        assert_close(ours, expected, **EXACT)
        assert (ours - products(-1)).abs().max() > 0.1, "the other direction gives other scores"


@pytest.mark.parametrize("init", ["uniform", "zero"])
def test_scores_are_those_of_x_transformers(init):
    theirs = PolarEmbedding(24, 3, bias_uniform_init=False, base=10000)
    encoding = PoPE(24, num_heads=3, init=init)
    theirs.learned_bias.data.copy_(encoding.delta.data[0, :, None])
    q, k = torch.randn(2, 2, 3, 200, 24)
    freqs, bias = theirs(torch.arange(200))
    expected = apply_polar_pos_emb(q, freqs) @ apply_polar_pos_emb(k, freqs + bias).mT
    ours = scores(encoding, q, k, Positions.arange(200))
    assert_close(ours, expected, rtol=0, atol=2e-3)  # their angles are float32: 200 * 2^-23 each, over 24 channels
    if init == "uniform":
        on_queries = apply_polar_pos_emb(q, freqs + bias) @ apply_polar_pos_emb(k, freqs).mT
        assert (on_queries - expected).abs().max() > 0.1, "the phase with the other sign gives other scores"


def test_attention_keeps_the_scale_of_the_head_and_doubles_the_width():
    encoding, p = PoPE(8, num_heads=2), Positions.arange(6, causal=True)
    q, k, v = random(1, 2, 6, 8), random(1, 2, 6, 8), random(1, 2, 6, 3)
    wide = encoding.double().rotate(q, k, p)
    assert [x.shape[-1] for x in wide] == [16, 16]
    weights = (scores(encoding, q, k, p) * 8**-0.5).masked_fill(~p.mask(), -torch.inf).softmax(-1)
    assert_close(posenc.attention(q, k, v, encoding, p), weights @ v, **EXACT)


def test_phases_start_as_documented_and_stay_within_a_turn():
    assert not PoPE(8, num_heads=2, init="zero").delta.any()
    uniform = PoPE(64, num_heads=8, num_layers=4).delta
    assert uniform.shape == (4, 8, 64)
    assert uniform.min() >= -2 * math.pi
    assert uniform.max() <= 0
    assert_close(uniform.mean().item(), -math.pi, rtol=0, atol=0.2)  # 2048 draws: deviation 0.04
    q, k, p = random(1, 2, 4, 8), random(1, 2, 4, 8), Positions.arange(4)
    bounded = PoPE(8, num_heads=2, init="zero").double()
    before = scores(bounded, q, k, p)
    bounded.delta.data.fill_(0.7)
    assert_close(scores(bounded, q, k, p), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoPE(8, num_heads=2, init="ones"), "unknown init"),
        (lambda: PoPE(8, num_heads=2, rope_theta=-1.0), "base=-1.0"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()
