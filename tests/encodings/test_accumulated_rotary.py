"""Selective RoPE, Mamba-3's rotation and CARoPE: the authors' expressions, also in linear attention."""

import math

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import CARoPE, Mamba3Rotary, Positions, Rotary, SelectiveRotary
from posenc.attention import elu_plus_one
from posenc.encoding import gates_of
from posenc.testing.oracles import gates as oracles
from posenc.testing.oracles import rotations
from posenc.testing.oracles.attention import linear_attention as oracle
from references.calls import DIM, EXACT, LAYOUTS, ORDERED, check_against, document_by_document, qkv, random, refusals


def selective_rope(encoding, x):
    temperature = encoding.temperature if encoding.trainable else rotations.frequencies(4, encoding.rope_theta)
    gate = (encoding.gate_weight[0], encoding.gate_bias[0]) if encoding.gate else None
    return oracles.selective_rope(x, encoding.down[0], encoding.up[0], encoding.kernel[0], temperature, gate)


def mamba3_rope(encoding, x):
    return oracles.mamba3_rope(x, encoding.angle[0], encoding.weight[0], encoding.bias_of_dt[0])


def carope(encoding, x):
    return oracles.carope(x, encoding.weight[0], encoding.logit[0], 2)


def formula(step, encoding, positions):
    """What turning adds to the scaled scores."""

    def of_call(q, k, x):
        def of_document(q, k, row, keys, rows):
            angles = step(encoding, x[row : row + 1, keys]).repeat_interleave(2, 1)
            turned_q = rotations.turned(q, angles[:, :, rows], encoding.layout)
            return 0.5 * (turned_q @ rotations.turned(k, angles, encoding.layout).mT - q @ k.mT)

        return document_by_document(positions, q, k, of_document)

    return of_call


MADE = {
    "selective_rope": (lambda **o: SelectiveRotary(4, dim=DIM, num_heads=4, num_kv_heads=2, **o), selective_rope),
    "selective_rope, gated": (lambda **o: SelectiveRotary(4, dim=DIM, num_heads=4, num_kv_heads=2, gate=True, kernel_size=3, **o), selective_rope),
    "selective_rope, trainable": (lambda **o: SelectiveRotary(4, dim=DIM, num_heads=4, num_kv_heads=2, trainable=True, rank=2, **o), selective_rope),
    "mamba3_rope": (lambda **o: Mamba3Rotary(4, dim=DIM, num_heads=4, num_kv_heads=2, **o), mamba3_rope),
    "mamba3_rope, all channels": (lambda **o: Mamba3Rotary(4, dim=DIM, num_heads=4, num_kv_heads=2, fraction=1.0, layout="half", **o), mamba3_rope),
    "carope": (lambda **o: CARoPE(4, dim=DIM, num_heads=4, num_kv_heads=2, **o), carope),
}  # fmt: skip
NAMES = pytest.mark.parametrize("name", MADE)


@NAMES
@pytest.mark.parametrize("positions", (LAYOUTS | ORDERED).values(), ids=LAYOUTS | ORDERED)
def test_it_is_the_authors_expression(name, positions):
    make, step = MADE[name]
    encoding = random(make())
    check_against(formula(step, encoding, positions), encoding, positions, "auto", 2, 4)


@NAMES
@pytest.mark.parametrize("place", ["causal", "plain", "left padded", "packed", "cached"])
def test_linear_attention(name, place):
    make, positions = MADE[name][0], LAYOUTS[place]
    encoding, (q, k, v) = random(make()), qkv(positions, 4, 2)
    gates = gates_of(encoding, torch.randn(2, positions.num_keys, DIM, dtype=torch.float64))
    fq, fk = elu_plus_one(q), elu_plus_one(k)
    rotated = encoding.rotate(fq, fk, positions.with_gates(gates))
    want = oracle(fq, fk, *rotated, v, positions.mask())
    out = posenc.linear_attention(q, k, v, encoding, positions, gates=gates, chunk_size=2)
    assert_close(out, want, **EXACT)


@pytest.mark.parametrize("theta", [1e4, 1e12])
def test_carope_of_no_input_is_rope(theta):
    """With w = 0 each token turns pair c by theta^(-2c/d): RoPE with one power more."""
    encoding = CARoPE(8, dim=DIM, num_heads=2, init_std=0.0, rope_theta=theta).double()
    q, k, _ = qkv(LAYOUTS["causal"], 2, 2, 8)
    gates = gates_of(encoding, torch.randn(2, 7, DIM, dtype=torch.float64))
    turned = encoding.rotate(q, k, LAYOUTS["causal"].with_gates(gates))
    angles = rotations.angles(torch.arange(7), 8, theta) * rotations.frequencies(8, theta)[1]
    expected = [rotations.turned(x, angles) for x in (q, k)]
    assert_close(turned[0] @ turned[1].mT, expected[0] @ expected[1].mT, rtol=1e-6, atol=1e-6)


def test_angles_are_exact_far_from_the_start():
    """After 2^17 tokens that turn by about 1000 radians each, a float32 sum has steps of 8 radians."""
    n = 2**17
    encoding, g = SelectiveRotary(4, dim=DIM, num_heads=1, rank=2, kernel_size=1), torch.Generator().manual_seed(0)
    gates = 1000 * torch.randn(1, 1, n, 2, generator=g)
    encoding.kernel.data.fill_(1.0)
    q, k = torch.randn(2, 1, 1, n, 4, generator=g)
    positions = Positions.arange(n, causal=True)
    rq, rk = encoding.rotate(q, k, positions.with_gates((gates,)))
    last = 3
    near = Positions.arange(last, causal=True)
    short = [x[:, :, -last:].double() for x in (q, k, gates)]
    wq, wk = encoding.double().rotate(*short[:2], near.with_gates((short[2],)))
    got = rq[:, :, -last:] @ rk[:, :, -last:].mT
    assert_close(got.double(), wq @ wk.mT, rtol=0, atol=2e-5)


def test_a_convolution_longer_than_the_text():
    encoding = random(SelectiveRotary(4, dim=DIM, num_heads=4, num_kv_heads=2, kernel_size=12))
    positions = LAYOUTS["causal"]
    check_against(formula(selective_rope, encoding, positions), encoding, positions, "auto", 2, 4)


def test_steps_of_mamba_start_within_a_turn():
    encoding = Mamba3Rotary(64, dim=32, num_heads=8, num_layers=3)
    dt = torch.nn.functional.softplus(encoding.bias_of_dt)
    assert encoding.pairs == 16
    assert ((dt > 9.9e-4) & (dt < 0.101)).all()
    gates = encoding.gates(torch.randn(2, 50, 32), 2)
    assert gates.shape == (2, 8, 50, 16)
    assert gates.abs().max() < math.pi


def test_it_adds_up_with_rope_and_fox():
    """Rotations of the same pairs commute: the sum is still relative."""
    assert (SelectiveRotary(8, dim=DIM, num_heads=2) + Rotary(8)).shift_invariant
    assert not (Mamba3Rotary(8, dim=DIM, num_heads=2) + Rotary(8)).shift_invariant


def test_beside_a_position_map():
    """A step whose branches see few of the keys still sums over all of them."""
    encoding = posenc.create("carope+rope@streaming:sinks=1:recent=3", dim=DIM, num_heads=4, num_kv_heads=2, head_dim=4)
    random(encoding)
    positions = Positions.arange(40, causal=True)
    (q, k, v), x = qkv(positions, 4, 2), torch.randn(2, 40, DIM, dtype=torch.float64)
    gates = gates_of(encoding, x)
    every = posenc.attention(q, k, v, encoding, positions, gates=gates)
    step = posenc.attention(q[:, :, -1:], k, v, encoding, Positions.arange(1, 39, causal=True), gates=gates)
    assert_close(step, every[:, :, -1:], **EXACT)


def bad(encoding, gates, q=None, positions=None):
    positions = LAYOUTS["causal"] if positions is None else positions
    given = qkv(positions, 4, 2)
    return posenc.attention(given[0] if q is None else q, *given[1:], encoding, positions, gates=gates)


REFUSED = {
    "width": (lambda: gates_of(CARoPE(4, dim=DIM, num_heads=4), torch.zeros(1, 3, 7)), "makes gates of .batch, seq, dim=6."),
    "odd": (lambda: SelectiveRotary(5, dim=DIM, num_heads=2), "head_dim=5"),
    "groups": (lambda: SelectiveRotary(4, dim=7, num_heads=2), "dim=7: must be a multiple of the 2 key heads"),
    "key heads": (lambda: CARoPE(4, dim=DIM, num_heads=4, num_kv_heads=3), "num_kv_heads=3"),
    "theta": (lambda: SelectiveRotary(4, dim=DIM, num_heads=2, rope_theta=0.0), "rope_theta=0.0"),
    "base": (lambda: CARoPE(4, dim=DIM, num_heads=2, rope_theta=1.0), "rope_theta=1.0"),
    "std": (lambda: CARoPE(4, dim=DIM, num_heads=2, init_std=float("inf")), "init_std=inf"),
    "fraction": (lambda: Mamba3Rotary(4, dim=DIM, num_heads=2, fraction=0.2), "fraction=0.2: leaves no pair of head_dim=4"),
    "more": (lambda: Mamba3Rotary(4, dim=DIM, num_heads=2, fraction=1.5), "fraction=1.5"),
    "layout": (lambda: Mamba3Rotary(4, dim=DIM, num_heads=2, layout="pairs"), "layout"),
    "none": (lambda: bad(CARoPE(4, dim=DIM, num_heads=4, num_kv_heads=2), None), "gates: 0 tensors, carope makes 1"),
    "nan": (lambda: bad(CARoPE(4, dim=DIM, num_heads=4, num_kv_heads=2), torch.full((2, 2, 7, 1), torch.nan)), "not finite"),
    "rotated": (
        lambda: CARoPE(4, dim=DIM, num_heads=2).rotate_keys(torch.zeros(1, 2, 3, 4), Positions.arange(3)), "cannot rotate queries and keys apart"
    ),
    "moved": (
        lambda: posenc.re_rotate(torch.zeros(1, 2, 3, 4), CARoPE(4, dim=DIM, num_heads=2), torch.arange(3), to=torch.arange(3)),
        "CARoPE does not rotate keys by an angle",
    ),
    "mapped": (lambda: posenc.create("carope@rerope:window=3", dim=DIM, num_heads=2, head_dim=4), "encoding='carope'"),
    "linear without": (
        lambda: posenc.linear_attention(*qkv(LAYOUTS["causal"], 4, 2), CARoPE(4, dim=DIM, num_heads=4, num_kv_heads=2), LAYOUTS["causal"]),
        "gates: 0 tensors, carope makes 1",
    ),
}  # fmt: skip

test_refusals = refusals(REFUSED)
