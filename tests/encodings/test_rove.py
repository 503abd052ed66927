"""Rotated values: the sum over pairs, one value at a time; DeepSeek-V4's attention in transformers; caches and prefixes."""

import itertools

import pytest
import torch
from torch.testing import assert_close
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as deepseek
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

import posenc
from posenc import (
    DecoupledRotary,
    Encoding,
    LearnedSink,
    Positions,
    PrefixKV,
    Rotary,
    RoVE,
    Shaw,
    Window,
    linear_attention,
)
from posenc.attention import elu_plus_one
from posenc.bias import KeyValues
from posenc.cache import KVCache
from posenc.lab.transformer import Transformer, TransformerConfig
from posenc.testing.oracles import attention as oracles
from posenc.testing.oracles import rotations
from references.calls import BACKENDS, EVERYWHERE, EXACT, LAYOUTS, distances, qkv, random, refusals

ARGUMENTS = {
    "all": {},
    "interleaved": {"layout": "interleaved", "rope_theta": 50.0},
    "first four": {"rotary_dim": 4},
    "last half": {"rotary_dim": 0.5, "trailing": True, "layout": "interleaved"},
    "yarn": {"schedule": {"name": "yarn", "factor": 4.0, "original_max_positions": 16}},
}


def contribution(encoding: RoVE, v: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """What values (..., keys, width) are to queries at distances (..., queries, keys): each pair is a complex number that turns."""
    first = encoding.head_dim - encoding.rotated if encoding.trailing else 0
    each = v[..., None, :, :].expand(*v.shape[:-2], *distance.shape[-2:], -1)
    return rotations.turned(each, -distance[..., None].double() * encoding.inv_freq, encoding.layout, first)


def by_formula(encoding: RoVE, positions: Positions, q, k, v):
    of_heads = v.repeat_interleave(q.shape[1] // k.shape[1], 1)
    added = contribution(encoding, of_heads, distances(positions)) - of_heads[:, :, None]
    return oracles.attend(q, k, v, scale=q.shape[3] ** -0.5, visible=positions.mask(), added=added)


@BACKENDS
@EVERYWHERE
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_each_value_turns_by_its_distance(positions, arguments, backend):
    encoding = RoVE(8, **ARGUMENTS[arguments])
    q, k, v = qkv(positions, 4, 2, 8)
    out = posenc.attention(q, k, v, encoding, positions, backend=backend)
    assert_close(out, by_formula(encoding, positions, q, k, v), **EXACT)


def dense(encoding: Encoding, positions: Positions, q, k, v, prefix=None):
    """The same with tensors, keys and values of a prefix beside it."""
    if positions.q_valid is not None:  # padding is not read
        q = q.masked_fill(~positions.q_valid[:, None, :, None], 0.0)
    groups, (q_rotated, k_rotated) = q.shape[1] // k.shape[1], Rotary(8).rotate(q, k, positions)
    scores = (q_rotated @ k_rotated.repeat_interleave(groups, 1).mT * 8**-0.5).masked_fill(
        ~positions.mask(), -torch.inf
    )
    turned = contribution(encoding, v.repeat_interleave(groups, 1), distances(positions))
    if prefix is None:
        weights = scores.softmax(-1).nan_to_num()  # padding sees nothing
        return torch.einsum("bhij,bhijd->bhid", weights, turned)
    keys, values = (x.repeat_interleave(groups, 0) for x in prefix)
    weights, of_prefix = (
        torch.cat((scores, q @ keys.mT * 8**-0.5), -1).softmax(-1).split([k.shape[2], keys.shape[1]], -1)
    )
    return torch.einsum("bhij,bhijd->bhid", weights, turned) + of_prefix @ values


def test_it_is_deepseek_v4s_attention():
    """A layer of sliding attention: keys that are the values, both rotated at their end, a sink, and the output turned back."""
    torch.manual_seed(0)
    config = DeepseekV4Config(
        vocab_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, head_dim=16, q_lora_rank=8, o_groups=2,
        o_lora_rank=8, partial_rotary_factor=0.5, layer_types=["sliding_attention"], sliding_window=4,
    )  # fmt: skip
    config._attn_implementation = "eager"
    module = deepseek.DeepseekV4Attention(config, 0).eval()
    torch.nn.init.normal_(module.sinks)
    x, ids = torch.randn(2, 9, 32), torch.arange(9)[None] + 3
    positions = Positions.from_ids(ids, causal=True, packed=False)
    hidden = torch.where(positions.with_window(3).mask(), 0.0, -torch.inf)
    tables = deepseek.DeepseekV4RotaryEmbedding(config)(x, ids, layer_type="main")
    given = {}
    module.o_a_proj.register_forward_pre_hook(lambda _, inputs: given.update(out=inputs[0]))
    with torch.no_grad():
        module(x, {"main": tables}, ids, hidden)
        q = module.q_b_proj(module.q_a_norm(module.q_a_proj(x))).unflatten(-1, (4, 16)).transpose(1, 2)
        q, kv = module.q_b_norm(q), module.kv_norm(module.kv_proj(x))[:, None]
    rotated = {"rotary_dim": 8, "layout": "interleaved"}
    sink = LearnedSink(4)
    sink.logits.data[0] = module.sinks.data
    ours = DecoupledRotary(16, **rotated) + RoVE(16, trailing=True, **rotated) + sink + Window(3)
    out = posenc.attention(q, kv, kv, ours, positions)
    assert_close(out.transpose(1, 2).flatten(2), given["out"].flatten(2), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- beside others


@BACKENDS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prefix_has_no_position(layout, backend):
    positions = LAYOUTS[layout]
    q, k, v = qkv(positions, 4, 2, 8)
    prefix = random(PrefixKV(4, head_dim=8, length=2, num_kv_heads=2), 1.0)
    out = posenc.attention(q, k, v, Rotary(8) + RoVE(8) + prefix, positions, backend=backend)
    assert_close(out, dense(RoVE(8), positions, q, k, v, prefix.prefix_kv()), **EXACT)


def test_values_that_are_added_by_key_are_added_before_the_rotation():
    positions = Positions.arange(7, causal=True)
    q, k, v = qkv(positions, 3, 3, 8)
    added = torch.randn(1, 1, 7, 8, dtype=torch.float64)

    class Added(Encoding):
        def values(self, positions, layer=0):
            return KeyValues(added)

    both, want = Added() + RoVE(8), posenc.attention(q, k, v + added, RoVE(8), positions)
    assert_close(posenc.attention(q, k, v, both, positions), want, **EXACT)
    cached = RoVE(8).rotate_values(v, positions)
    assert_close(posenc.attention(q, k, cached, both, positions, keys_rotated=True), want, **EXACT)


REFUSED = {
    "by distance": (
        lambda: attend(RoVE(8) + Shaw(8, num_heads=3)),
        "what is added to values by distance cannot be turned back",
    ),
    "two": (lambda: RoVE(8) + Rotary(8) + RoVE(8, rotary_dim=4), "several encodings that rotate values"),
    "width": (lambda: attend(RoVE(6)), "head_dim 8.*head_dim=6"),
    "odd": (lambda: RoVE(7), "head_dim=7"),
    "odd share": (lambda: RoVE(12, rotary_dim=0.25), "rotary_dim=0.25: 3 of 12 channels"),
    "share": (lambda: RoVE(8, rotary_dim=1.5), "rotary_dim=1.5"),
    "too many": (lambda: RoVE(8, rotary_dim=10), "rotary_dim=10"),
}


def attend(encoding, positions=None):
    positions = Positions.arange(7) if positions is None else positions
    return posenc.attention(*qkv(positions, 3, 3, 8), encoding, positions)


test_refusals = refusals(REFUSED)


def test_a_share_of_the_head_is_a_number_of_channels():
    assert RoVE(64, rotary_dim=0.25).spec()["rotary_dim"] == 16
    assert Rotary(64, rotary_dim=0.25).spec() == Rotary(64, rotary_dim=16).spec()
    assert Rotary(64, rotary_dim=1.0).spec()["rotary_dim"] == 64


# ---------------------------------------------------------------- caches, and what else computes attention


@pytest.mark.parametrize(
    "text", ["rope+rove", "rove", "rope+rove/alibi", "rope+rove:rotary_dim=0.5:trailing=true+prefix_kv"]
)
def test_a_cache_has_values_rotated_or_not(text):
    host = Transformer(TransformerConfig(17, dim=32, num_layers=3, num_heads=4, num_kv_heads=2), text).double().eval()
    tokens = torch.randint(17, (2, 9))
    full = host(tokens)
    for rotated in (True, False):
        cache = KVCache(rotated=rotated)
        parts = [host(tokens[:, a:b], cache=cache) for a, b in itertools.pairwise((0, 4, 7, 8, 9))]
        assert_close(torch.cat(parts, 1), full, rtol=0, atol=1e-10)


def test_rotated_values_move_as_keys_do():
    rove = RoVE(8, rotary_dim=4, trailing=True)
    v, rows = torch.randn(2, 2, 5, 8, dtype=torch.float64), torch.tensor([0, 1, 7, 8, 9])
    moved = posenc.re_rotate(
        rove.rotate_values(v, Positions.from_ids(rows)), rove, rows, to=torch.arange(5), into=rove.with_schedule("linear", factor=2.0)
    )  # fmt: skip
    here = rove.with_schedule("linear", factor=2.0).rotate_values(v, Positions.arange(5))
    assert_close(moved, here, **EXACT)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_linear_attention_turns_values(layout):
    positions, encoding = LAYOUTS[layout], Rotary(8) + RoVE(8)
    q, k, v = qkv(positions, 4, 2, 8)
    out = linear_attention(q, k, v, encoding, positions)
    rq, rk = Rotary(8).rotate(elu_plus_one(q), elu_plus_one(k), positions)
    seen = positions.mask()
    total = (rq @ rk.repeat_interleave(2, 1).mT).masked_fill(~seen, 0.0)
    weight = (
        (elu_plus_one(q) @ elu_plus_one(k).repeat_interleave(2, 1).mT).masked_fill(~seen, 0.0).sum(-1, keepdim=True)
    )
    turned = RoVE(8).rotate_values(v, positions).repeat_interleave(2, 1)
    want = RoVE(8).turn_back(total @ turned / weight.masked_fill(weight == 0, torch.inf), positions)
    assert_close(out, want, **EXACT)
