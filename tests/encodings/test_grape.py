"""Key-gated additive GRAPE: the formula, and distances far from the start."""

import math

import pytest
import torch
from torch.nn.functional import normalize, softplus
from torch.testing import assert_close

import posenc
from posenc import GRAPEA, Encoding, Positions, attention
from posenc.bias import KeySlope
from posenc.testing.oracles import biases, content
from references.calls import BACKENDS, EVERYWHERE, LAYOUTS, check_against, distances, qkv, random, refusals


def grape_formula(encoding, positions):
    slopes = torch.tensor(biases.alibi(encoding.num_heads), dtype=torch.float64)
    u = normalize(encoding.direction[0], dim=-1) if encoding.unit else encoding.direction[0]
    return lambda q, k: content.grape_a(k, u, encoding.strength[0], slopes, distances(positions))


@BACKENDS
@pytest.mark.parametrize("kv_heads", [4, 2])
@EVERYWHERE
def test_it_is_the_formula(positions, kv_heads, backend):
    encoding = random(GRAPEA(4, head_dim=4, num_layers=2))

    check_against(grape_formula(encoding, positions), encoding, positions, backend, kv_heads, heads=4)


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("heads", [3, 8])
def test_any_number_of_heads_and_directions_of_any_length(heads, unit):
    encoding = random(GRAPEA(heads, head_dim=4, unit=unit))
    check_against(grape_formula(encoding, LAYOUTS["causal"]), encoding, LAYOUTS["causal"], heads=heads)


@pytest.mark.parametrize("omega", [1e-4, 1.0, 80.0, 1000.0])
def test_it_starts_at_omega_with_directions_of_length_one(omega):
    encoding = GRAPEA(2, head_dim=4, omega=omega)
    assert softplus(encoding.strength.double()).tolist() == [pytest.approx([omega] * 2, rel=1e-6)]
    # keys at a right angle to u: every slope is ALiBi's times omega ln 2
    k = torch.zeros(1, 2, 5, 4)
    bias = encoding.bias(k, k, Positions.arange(5)).dense(k.device)
    alibi = posenc.ALiBi(2).bias(k, k, Positions.arange(5)).dense(k.device)
    assert_close(bias, alibi * omega * math.log(2), rtol=1e-5, atol=1e-6)


class Given(Encoding):
    def __init__(self, slopes):
        super().__init__()
        self.slopes = slopes

    def bias(self, q, k, positions, layer=0):
        return KeySlope(self.slopes, positions)


@pytest.mark.parametrize("backend", ["auto", "flex", "reference"])
def test_distances_are_exact_far_from_the_start(backend):
    # positions that float32 does not have: 2^30 and the next one are equal in it
    far = 2**30
    g = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 40, 8, generator=g).unbind()
    given = Given(torch.rand(1, 2, 40, generator=g))
    near, away = Positions.arange(40, causal=True), Positions.from_ids(torch.arange(far, far + 40), causal=True)
    with torch.no_grad():
        ours = attention(q, k, v, given, away, backend=backend)
        assert_close(ours, attention(q, k, v, given, near, backend=backend), rtol=0, atol=1e-7)
        assert (ours - attention(q, k, v, None, near)).abs().max() > 0.1


def slopes_of(slopes, positions=LAYOUTS["causal"]):
    return attention(*qkv(positions), Given(slopes), positions)


REFUSED = {
    "omega": (lambda: GRAPEA(2, head_dim=4, omega=0.0), "omega=0"),
    "init_std": (lambda: GRAPEA(2, head_dim=4, init_std=-1.0), "init_std=-1"),
    "heads": (lambda: attention(*qkv(LAYOUTS["causal"]), GRAPEA(2, head_dim=4), LAYOUTS["causal"]), "num_heads=2"),
    "width": (lambda: attention(*qkv(LAYOUTS["causal"]), GRAPEA(3, head_dim=8), LAYOUTS["causal"]), "head_dim=8"),
    "slopes on a grid": (lambda: slopes_of(torch.zeros(1, 3, 4), Positions.grid(2, 2)), "several coordinates"),
    "slopes of other keys": (lambda: slopes_of(torch.zeros(1, 3, 6)), r"slopes of shape \(1, 3, 6\): .* num_keys is 7"),
    "slopes of other heads": (lambda: slopes_of(torch.zeros(1, 2, 7)), "has 2 heads, q has 3"),
    "slopes of a wrong rank": (lambda: slopes_of(torch.zeros(3, 7)), r"slopes is .* pass a tensor of shape \(batch or 1"),
}  # fmt: skip

test_refusals = refusals(REFUSED)


def test_positions_that_learn_have_the_formulas_gradients():
    q, k, v = qkv(Positions.arange(9), heads=2, kv_heads=2)
    ids = (torch.arange(9) + 0.7 * torch.randn(9, dtype=torch.float64)).requires_grad_()
    encoding = random(GRAPEA(2, head_dim=4))
    grads = []
    for backend in ("sdpa", "reference"):
        p = Positions.from_ids(ids, causal=True, packed=False)
        out = attention(q, k, v, encoding, p, backend=backend)
        grads.append(torch.autograd.grad(out.square().sum(), ids)[0])
    assert grads[1].abs().min() > 0
    assert_close(*grads, rtol=1e-9, atol=1e-11)
