"""Stick-breaking: the formula, its gradients, what is left."""

import pytest
import torch
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

import posenc
from posenc import ALiBi, Positions, Rotary, StickBreaking, Sum, bias
from posenc.testing.oracles import gates
from references.calls import BACKENDS, EXACT, IN_ORDER, qkv, refusals


@BACKENDS
@pytest.mark.parametrize("attend_current", [False, True])
@IN_ORDER
def test_sticks_are_broken_from_the_nearest_key_on(positions, attend_current, backend):
    q, k, v = qkv(positions, 4, 2)
    scores = (q @ k.repeat_interleave(2, 1).mT / 2).masked_fill(~positions.mask(), -torch.inf)
    order = positions.k_order.argsort()[:, None, None].expand_as(scores)
    ordered = scores.gather(-1, order)
    if not attend_current:
        nearer = ordered.isfinite().flip(-1).cumsum(-1).flip(-1)  # visible keys from each to the last
        ordered = ordered.masked_fill(nearer == 1, -torch.inf)
    weights = torch.zeros_like(scores).scatter(-1, order, gates.broken_sticks(ordered))
    expected = weights @ v.repeat_interleave(2, 1)
    encoding = StickBreaking(attend_current)
    assert_close(posenc.attention(q, k, v, encoding, positions, backend=backend), expected, **EXACT)


@pytest.mark.parametrize("attend_current", [False, True])
def test_values_and_gradients_are_those_of_the_formula(attend_current):
    positions = Positions.arange(40, causal=True)
    encoding = StickBreaking(attend_current)
    leaves = [x.requires_grad_() for x in qkv(positions)]
    out = posenc.attention(*leaves[:3], encoding, positions)
    hidden = torch.ones(40, 40, dtype=torch.bool).triu(1 if attend_current else 0)
    weights = gates.broken_sticks((leaves[0] @ leaves[1].mT / 2).masked_fill(hidden, -torch.inf))
    expected = weights @ leaves[2]
    assert_close(out, expected, **EXACT)
    weight = torch.randn_like(out)
    for ours, theirs in zip(*(torch.autograd.grad((y * weight).sum(), leaves) for y in (out, expected)), strict=True):
        assert_close(ours, theirs, **EXACT)


def test_extreme_scores_stay_finite_and_add_up_to_one_at_most():
    positions = Positions.arange(6, causal=True)
    q, k, _ = (x.float() for x in qkv(positions, 1, 1))
    ones = torch.ones(2, 1, 6, 1).requires_grad_()
    for size in (0.0, 1e4, -1e4):
        given = torch.full_like(q, abs(size) ** 0.5).requires_grad_(), torch.full_like(k, size / 100).requires_grad_()
        total = posenc.attention(*given, ones, StickBreaking(), positions)[..., 0]
        assert (total >= 0).all()
        assert (total <= 1).all()
        assert all(x.isfinite().all() for x in torch.autograd.grad(total.sum(), given))
        if size > 0:
            assert_close(total[:, :, 1:], torch.ones(2, 1, 5))  # the nearest key takes all of it
        assert (total[:, :, 0] == 0).all(), "the first token sees nothing"


def test_biases_rotations_and_caps_come_before_the_stick_is_broken():
    positions = Positions.arange(7, causal=True)
    q, k, v = qkv(positions)
    rotary, alibi = Rotary(4), ALiBi(3)
    capped = type("Capped", (posenc.Encoding,), {"modify": lambda self, positions, layer=0: bias.SoftCap(2.0)})()
    a, b = rotary.rotate(q, k, positions)
    scores = a @ b.mT / 2 + alibi.double().bias(q, k, positions).dense(q.device)
    scores = (2 * (scores / 2).tanh()).masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(0), -torch.inf)
    left = logsigmoid(-scores)
    after = torch.stack([left[..., j + 1 :].sum(-1) for j in range(7)], -1)
    expected = (logsigmoid(scores) + after).exp() @ v
    for encoding in (Sum(rotary, alibi, capped, StickBreaking()), Sum(StickBreaking(), capped, alibi, rotary)):
        assert_close(posenc.attention(q, k, v, encoding, positions), expected, **EXACT)


P = Positions.arange(4, causal=True)


def call(encoding, positions=P, **options):
    return posenc.attention(*qkv(positions), encoding, positions, **options)


REFUSED = {
    "not causal": (lambda: call(StickBreaking(), P.with_causal(False)), "causal positions"),
    "prefix": (lambda: call(StickBreaking(), P.with_prefix(2)), "causal positions"),
    "sink": (lambda: call(StickBreaking(), sink=0.0), "no softmax for a sink"),
    "softmax_n": (lambda: call(StickBreaking() + posenc.SoftmaxN()), "no softmax for a sink"),
    "prefix_kv": (
        lambda: call(StickBreaking() + posenc.PrefixKV(3, head_dim=4).double()),
        "no softmax for a sink or a prefix",
    ),
    "twice": (lambda: call(StickBreaking() + StickBreaking()), "takes the place of the softmax: return one"),
    "flex": (lambda: call(StickBreaking(), backend="flex"), "no weights but the softmax's"),
    "flag": (lambda: StickBreaking(attend_current=1), "attend_current=1"),
    "linear": (lambda: posenc.linear_attention(*qkv(P), StickBreaking(), P), "no scores for .*modify"),
}

test_refusals = refusals(REFUSED)
