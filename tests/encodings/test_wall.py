"""Wall attention: the formula, its gradients, gates that would overflow."""

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import ALiBi, Positions, PrefixKV, Rotary, Sum, Wall
from posenc.backends import sdpa
from posenc.encoding import gates_of
from posenc.testing.oracles import gates
from posenc.testing.oracles.attention import mix
from references.calls import BACKENDS, DIM, EXACT, IN_ORDER, check_against, document_by_document, qkv, random, refusals


def wall_formula(encoding, positions):
    def formula(q, k, x):
        decays = gates.log_gates(x, encoding.weight[0], encoding.bias_in[0]).unflatten(1, (4, 4)).mT

        def of_document(q, k, row, keys, rows):
            return 0.5 * (gates.wall(q, k, decays[row : row + 1, :, keys], rows) - q @ k.mT)

        return document_by_document(positions, q, k, of_document)

    return formula


@pytest.mark.usefixtures("tiles")
@BACKENDS
@IN_ORDER
def test_wall_is_its_formula(positions, backend):
    encoding = random(Wall(DIM, num_heads=4, head_dim=4))
    check_against(wall_formula(encoding, positions), encoding, positions, backend, kv_heads=2, heads=4)


def test_gates_are_those_of_the_layer():
    encoding, x = random(Wall(DIM, num_heads=3, head_dim=4, num_layers=2)), torch.randn(2, 5, DIM, dtype=torch.float64)
    for layer in (0, 1):
        logits = x @ encoding.weight[layer].T + encoding.bias_in[layer]
        expected = logits.sigmoid().log().view(2, 5, 3, 4).transpose(1, 2)
        assert_close(encoding.gates(x, layer), expected, **EXACT)
    assert Wall(DIM, num_heads=2, head_dim=4).gates(torch.zeros(1, 1, DIM)).exp().min() > 0.999, (
        "attention starts without position"
    )


def by_formula(q, k, v, decays):
    every = torch.arange(q.shape[2])
    return mix(gates.wall(q, k, decays, every) * q.shape[3] ** -0.5, v, visible=every <= every[:, None])


@pytest.mark.parametrize("rows", [16, 2**10])
def test_values_and_gradients_are_those_of_the_formula(rows, monkeypatch):
    monkeypatch.setattr(sdpa, "BLOCK_CELLS", rows)  # blocks of queries, computed again for the gradient
    monkeypatch.setattr(sdpa, "LEAST_ROWS", 24)
    positions, encoding = Positions.arange(90, causal=True), Wall(DIM, num_heads=2, head_dim=8).double()
    inputs = [*qkv(positions, 2, 2, 8), torch.nn.functional.logsigmoid(torch.randn(2, 2, 90, 8).double())]
    leaves = [x.requires_grad_() for x in inputs]
    out = posenc.attention(*leaves[:3], encoding, positions, gates=leaves[3])
    expected = by_formula(*leaves)
    assert_close(out, expected, **EXACT)
    weight = torch.randn_like(out)
    for ours, theirs in zip(*(torch.autograd.grad((y * weight).sum(), leaves) for y in (out, expected)), strict=True):
        assert_close(ours, theirs, **EXACT)


def test_no_decay_overflows_and_none_rounds_another():
    positions, encoding = Positions.arange(200, causal=True), Wall(DIM, num_heads=1, head_dim=4)
    q, k, v = (x.float() for x in qkv(positions, 1, 1, 4))
    gates = -torch.rand(2, 1, 200, 4) / 50
    gates[:, :, 70], gates[:, :, 130:134] = (
        -300.0,
        -1e4,
    )  # exp of the sum up to a token, or of its negative, is 0 or infinite
    out = posenc.attention(q, k, v, encoding, positions, gates=gates)
    assert_close(out, by_formula(*(x.double() for x in (q, k, v, gates))).float(), rtol=1e-4, atol=1e-5)


def test_scale_temperatures_and_rotations_act_on_what_is_scored():
    positions = Positions.arange(6, causal=True)
    q, k, v = qkv(positions, 2, 2, 4)
    encoding, x = random(Wall(DIM, num_heads=2, head_dim=4)), torch.randn(2, 6, DIM, dtype=torch.float64)
    gates = gates_of(encoding, x)
    scaled = posenc.attention(q, k, v, encoding, positions, gates=gates, scale=0.25)
    assert_close(scaled, posenc.attention(q / 2, k, v, encoding, positions, gates=gates), **EXACT)
    rotary = Rotary(4)
    both = Sum(rotary, encoding)
    turned = posenc.attention(*rotary.rotate(q, k, positions), v, encoding, positions, gates=gates)
    assert_close(posenc.attention(q, k, v, both, positions, gates=gates), turned, **EXACT)
    keys = rotary.rotate_keys(k, positions)
    cached = posenc.attention(q, keys, v, both, positions, gates=gates, keys_rotated=True)
    assert_close(cached, turned, **EXACT)
    assert encoding.shift_invariant
    assert (encoding + ALiBi(2)).shift_invariant
    assert not both.shift_invariant


def test_a_prefix_of_keys_has_no_position():
    positions = Positions.arange(5, causal=True)
    q, k, v = qkv(positions, 2, 2, 4)
    encoding, more = random(Wall(DIM, num_heads=2, head_dim=4)), random(PrefixKV(2, head_dim=4, length=3))
    gates = encoding.gates(torch.randn(2, 5, DIM, dtype=torch.float64))
    out = posenc.attention(q, k, v, encoding + more, positions, gates=gates)
    keys, values = more.prefix_kv()
    sums = gates.cumsum(2)
    decay = (sums[:, :, :, None] - sums[:, :, None]).clamp(max=0).exp()
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    scores = torch.einsum("bhin,bhjn,bhijn->bhij", q, k, decay).masked_fill(later, -torch.inf)
    weights = (torch.cat((q @ keys.mT, scores), -1) / 2).softmax(-1)
    assert_close(out, weights @ torch.cat((values.expand(2, -1, -1, -1), v), 2), **EXACT)


P = Positions.arange(4, causal=True)


def call(encoding, positions=P, heads=2, width=4, gates=None):
    q, k, v = qkv(positions, heads, heads, width)
    x = torch.randn(2, positions.num_keys, DIM, dtype=torch.float64)
    return posenc.attention(
        q, k, v, encoding, positions, gates=gates_of(encoding.double(), x) if gates is None else gates
    )


WALL = Wall(DIM, num_heads=2, head_dim=4)
REFUSED = {
    "not causal": (lambda: call(WALL, P.with_causal(False)), "causal positions"),
    "prefix": (lambda: call(WALL, P.with_prefix(2)), "causal positions"),
    "cross": (
        lambda: call(WALL, Positions.cross(Positions.arange(2, 9), Positions.arange(4)).with_causal(True)),
        "2 queries are not among the 4 keys",
    ),
    "heads": (lambda: call(WALL, heads=3), "3 heads.*num_heads=2"),
    "width": (lambda: call(WALL, width=6), "head_dim 6.*head_dim=4"),
    "bias": (lambda: Wall(DIM, num_heads=2, head_dim=4, init_bias="high"), "init_bias='high'"),
    "two": (lambda: call(WALL + Wall(DIM, num_heads=2, head_dim=4)), "several"),
    "map": (lambda: call(posenc.create("rope@rerope:window=2", head_dim=4) + WALL), "position map"),
    "linear": (
        lambda: posenc.linear_attention(*qkv(P, 2, 2), WALL, P, gates=torch.zeros(2, 2, 4, 4).double()),
        "no scores for .*scores",
    ),
}  # fmt: skip

test_refusals = refusals(REFUSED)


@pytest.mark.parametrize("text", ["xpos+wall", "wall+xpos", "xpos:gamma=0.1:scale_base=8+wall"])
def test_beside_xpos_each_channel_decays_by_both(text):
    """Against sum_n q_in k_jn zeta_n^((i - j) / S) prod f_tn of rotated queries and keys, where the middle of the keys has
    cancelled; and token by token as in one pass."""
    n, heads, width = 12, 2, 8
    encoding = posenc.create(text, dim=16, num_heads=heads, head_dim=width).double()
    xpos = next(part for part in encoding if part.name == "xpos")
    q, k, v = torch.randn(3, 1, heads, n, width, dtype=torch.float64).unbind(0)
    with torch.no_grad():
        gates = gates_of(encoding, 3 * torch.randn(1, n, 16, dtype=torch.float64))
        out = posenc.attention(q, k, v, encoding, Positions.arange(n, causal=True), gates=gates)
        rotation = posenc.Rotary(width, layout=xpos.layout).double()
        rq, rk = rotation.rotate(q, k, Positions.arange(n))
        zeta = xpos.log_zeta.repeat_interleave(2)
        sums = gates[0].cumsum(2)
        i, j = torch.arange(n)[:, None], torch.arange(n)
        decay = (sums[:, :, :, None] - sums[:, :, None]) + (i - j)[..., None] / xpos.scale_base * zeta
        scores = (rq[:, :, :, None] * rk[:, :, None] * decay.exp()).sum(-1) * width**-0.5
        want = scores.masked_fill(j > i, -torch.inf).softmax(-1) @ v
        torch.testing.assert_close(out, want, rtol=1e-6, atol=1e-6)
        for at in range(n):
            step = [x[:, :, : at + 1] for x in (k, v)]
            part = [gate[:, :, : at + 1] for gate in gates]
            one = posenc.attention(
                q[:, :, at : at + 1], *step, encoding, Positions.arange(1, at, causal=True), gates=part
            )
            torch.testing.assert_close(one, out[:, :, at : at + 1], rtol=1e-6, atol=1e-6)
