# SPDX-License-Identifier: Apache-2.0
"""Sinks that see the query, and learned keys and values before all others, against the formula."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import nn

import posenc
from posenc import Encoding, InputError, Positions, Rotary, attention, create
from posenc.bias import Positional
from test_attention import LAYOUTS, B, D, H, tensors


def drawn(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator))


@dataclass(eq=False, repr=False)
class QuerySink(Encoding):
    """The logit of attending to nothing is a linear function of the query."""

    num_heads: int
    head_dim: int
    shift_invariant = True

    def setup(self):
        self.weight = drawn(1, self.num_heads, self.head_dim)

    def query_sink(self, q, positions, layer=0):
        return torch.einsum("bhnd,hd->bhn", q, self.weight.to(q.dtype))


@dataclass(eq=False, repr=False)
class Prefix(Encoding):
    """Learned keys and values, of the same width."""

    num_kv_heads: int
    head_dim: int
    length: int = 3
    shift_invariant = True

    def setup(self):
        self.keys, self.values_ = (drawn(n, self.num_kv_heads, self.length, self.head_dim) for n in (2, 3))

    def prefix_kv(self, layer=0):
        return self.keys, self.values_


class Waves(Encoding):
    """A term that the CPU's operator does not serve."""

    def bias(self, q, k, positions, layer=0):
        return Positional(lambda h, i, j: (h + 1) * (i.double() - 0.3 * j).sin(), H, positions)


KV = 2
SINK, PREFIX, ALIBI, WAVES = QuerySink(H, D), Prefix(KV, D), posenc.ALiBi(H), Waves()
CASES = {
    "sink": [SINK], "prefix": [PREFIX], "both": [SINK, PREFIX], "two": [PREFIX, Prefix(KV, D, 1)],
    "rope, alibi, both": [Rotary(D), ALIBI, SINK, PREFIX], "blocks, sink": [WAVES, SINK], "blocks, both": [WAVES, SINK, PREFIX],
}  # fmt: skip


def summed(case):
    parts = CASES[case]
    return parts[0] if len(parts) == 1 else posenc.Sum(*parts)


def expected(case, q, k, v, positions):
    """The equation, with dense tensors: a sink is one more key of value zero, and a prefix is more keys and values."""
    parts, groups, visible = CASES[case], q.shape[1] // k.shape[1], positions.mask()
    if positions.q_valid is not None:  # padding is not read
        q = q.masked_fill(~positions.q_valid[:, None, :, None], 0.0)
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    projected = q
    for part in parts:
        q, k = part.rotate(q, k, positions)
    scores = q @ k.mT * D**-0.5
    for term in [part.bias(q, k, positions) for part in parts if "bias" in part.sites()]:
        scores = scores + term.dense(q.device)
    weights, values = [scores.exp().masked_fill(~visible, 0.0)], [v]
    for part in parts:
        if isinstance(part, Prefix):
            keys, more = (x.repeat_interleave(groups, 0).expand(B, -1, -1, -1) for x in part.prefix_kv())
            weights.append((projected @ keys.mT * D**-0.5).exp())
            values.append(more)
        if isinstance(part, QuerySink):
            weights.append(part.query_sink(projected, positions)[..., None].exp())
            values.append(torch.zeros_like(v[:, :, :1]))
    every = torch.cat(weights, -1)
    total = every.sum(-1, keepdim=True)
    return every / total @ torch.cat(values, 2)


@pytest.mark.parametrize(
    ("layout", "backend"),
    [*product(LAYOUTS, ("reference", "auto")), *product(("bidirectional", "left padded", "cross"), ("flex",))],
)
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients(case, layout, backend, tiles):
    queries, keys, make = LAYOUTS[layout]
    encoding, trains = summed(case), backend != "flex"
    given = [x.requires_grad_(trains) for x in tensors(queries, keys, KV)]
    with torch.set_grad_enabled(trains):
        out, want = attention(*given, encoding, make(), backend=backend), expected(case, *given, make())
    assert torch.allclose(out, want, atol=1e-11)
    if trains:
        upstream = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(5))
        leaves = [*given, *encoding.parameters()]
        for grad, other in zip(*(torch.autograd.grad(x, leaves, upstream) for x in (out, want)), strict=True):
            assert torch.allclose(grad, other, atol=1e-10)


def test_through_our_kernel():
    """Under Triton's interpreter, where it is on."""
    given = [x.float() for x in tensors(5, 5, KV)]
    encoding, p = posenc.Sum(ALIBI, SINK, PREFIX), Positions.arange(5, causal=True)
    try:
        out = attention(*given, encoding, p, backend="triton")
    except InputError:
        pytest.skip("no GPU and no interpreter")
    assert torch.allclose(out, attention(*given, encoding, p, backend="reference"), atol=1e-5)


def test_a_sink_is_a_prefix_of_one_key_without_value():
    q, k, v = tensors(5, 5, KV)
    prefix = Prefix(KV, D, 1)
    with torch.no_grad():
        prefix.keys.zero_()
        prefix.values_.zero_()
    p = Positions.packed([2, 3], causal=True)
    assert torch.allclose(attention(q, k, v, prefix, p), attention(q, k, v, None, p, sink=0.0), atol=1e-12)
    logits = SINK.query_sink(q, p)
    assert torch.equal(attention(q, k, v, None, p, sink=logits), attention(q, k, v, SINK, p))


def test_dropout_drops_each_weight_of_a_prefix():
    given = [torch.zeros_like(x) for x in tensors(400, 400, KV)]
    prefix = Prefix(KV, D, 2)
    with torch.no_grad():
        prefix.keys.fill_(0.0)
        prefix.values_.fill_(1.0)
    torch.manual_seed(0)
    out = attention(*given, prefix, dropout_p=0.5)[..., 0]
    each = 2 / 402  # of a weight that is not dropped
    assert {round(float(x) / each) for x in out.detach().unique()} == {0, 1, 2}


def test_a_prefix_of_one_key_is_torchs_bias_kv():
    theirs = nn.MultiheadAttention(24, 4, bias=False, add_bias_kv=True, batch_first=True).double()
    x, prefix = torch.randn(2, 7, 24, dtype=torch.float64), posenc.PrefixKV(4, head_dim=6, length=1)
    for ours, given in ((prefix.prefix_keys, theirs.bias_k), (prefix.prefix_values, theirs.bias_v)):
        ours.data = given.detach().view(1, 4, 1, 6)
    q, k, v = ((x @ w.T).unflatten(-1, (4, 6)).transpose(1, 2) for w in theirs.in_proj_weight.chunk(3))
    out = attention(q, k, v, prefix).transpose(1, 2).flatten(2) @ theirs.out_proj.weight.T
    assert torch.allclose(out, theirs(x, x, x)[0], atol=1e-12)


def test_compiled():
    q, k, v = (x.float() for x in tensors(5, 5, KV))
    encoding = posenc.Sum(ALIBI, SINK, PREFIX)
    run = torch.compile(lambda *x: attention(*x, encoding, causal=True), backend="aot_eager", fullgraph=True)
    assert torch.allclose(run(q, k, v), attention(q, k, v, encoding, causal=True), atol=1e-6)


def returning(hook, value):
    return type("Mine", (Encoding,), {hook: lambda self, *args, **more: value})()


@pytest.mark.parametrize(
    ("hook", "value", "message"),
    [
        ("query_sink", torch.zeros(H), r"Mine.query_sink returned .*\(2, 4, 5\)"),
        ("query_sink", torch.zeros(B, H, 3), r"Mine.query_sink returned .*\(2, 4, 5\)"),
        ("prefix_kv", torch.zeros(KV, 3, D), r"Mine.prefix_kv returned .*pair"),
        ("prefix_kv", (torch.zeros(H, 3, D), torch.zeros(H, 3, D)), r"Mine.prefix_kv returned .*: return keys"),
        ("prefix_kv", (torch.zeros(KV, 3, D), torch.zeros(KV, 3, D + 1)), r"Mine.prefix_kv returned .*: return values"),
        ("prefix_kv", (torch.zeros(KV, 3, D), torch.zeros(KV, 2, D)), r"Mine.prefix_kv returned .*: return values"),
    ],
)
def test_what_the_hooks_return_is_validated(hook, value, message):
    with pytest.raises(InputError, match=message):
        attention(*tensors(5, 5, KV), returning(hook, value))


def test_one_sink_is_enough():
    with pytest.raises(InputError, match="several sinks"):
        attention(*tensors(5, 5, KV), SINK + create("softmax_n"))
    with pytest.raises(InputError, match=r"sink of shape \(2, 4, 3\)"):
        attention(*tensors(5, 5, KV), sink=torch.zeros(2, 4, 3))
