# SPDX-License-Identifier: Apache-2.0
"""Positions are data: what one call computed never changes the answer of another."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch

import posenc
from posenc import Positions, attention
from posenc.lab.transformer import Transformer, TransformerConfig


def tensors(batch=1, heads=2, n=6, width=8):
    torch.manual_seed(0)
    return torch.randn(3, batch, heads, n, width, dtype=torch.float64).unbind(0)


@pytest.mark.parametrize("first", [True, False])
def test_a_factor_of_visible_keys_follows_the_calls_causality(first):
    q, k, v = tensors()
    encoding, p = posenc.LogN(3), Positions.arange(6, causal=first)
    attention(q, k, v, encoding, p)
    fresh = attention(q, k, v, encoding, Positions.arange(6, causal=not first))
    assert torch.equal(attention(q, k, v, encoding, p, causal=not first), fresh)


def test_a_table_of_visible_offsets_follows_the_calls_causality():
    encoding = posenc.create("swin_v2", num_heads=2, grid=(3, 3)).double()
    cross = Positions.cross(Positions.grid(3, 3), Positions.grid(6, 6))
    q, (k, v) = torch.randn(1, 2, 9, 8).double(), torch.randn(2, 1, 2, 36, 8).double()
    attention(q, k, v, encoding, cross, causal=True)
    fresh = Positions.cross(Positions.grid(3, 3), Positions.grid(6, 6))
    assert torch.equal(attention(q, k, v, encoding, cross), attention(q, k, v, encoding, fresh))


def test_an_encoder_and_a_decoder_share_positions_and_an_encoding():
    torch.manual_seed(0)
    encoding = posenc.Rotary(8) + posenc.LogN(4)
    models = [
        Transformer(TransformerConfig(11, dim=16, num_layers=2, num_heads=2, causal=causal), encoding)
        for causal in (False, True)
    ]
    x, shared = torch.randint(11, (2, 9)), Positions.arange(9)
    for model in models:
        assert torch.equal(model(x, shared), model(x, Positions.arange(9)))


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_what_is_replaced_is_seen(backend):
    q, k, v = tensors()
    packed = Positions.packed([2, 4], causal=True)
    attention(q, k, v, posenc.ALiBi(2), packed, backend=backend)
    mask = torch.tensor([[True, True, False, True, True, True]])
    actual = attention(q, k, v, posenc.ALiBi(2), packed.derived(valid=mask), backend=backend)
    ids = torch.tensor([0, 0, 1, 1, 1, 1])
    want = Positions(
        q=packed.q, k=packed.k, q_order=packed.q_order, k_order=packed.k_order, causal=True, valid=mask,
        q_document=ids[None], k_document=ids[None],
    )  # fmt: skip
    torch.testing.assert_close(actual, attention(q, k, v, posenc.ALiBi(2), want, backend="reference"))


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_prefix_seen_by_all_is_an_order_shared_by_its_tokens(backend):
    q, k, v = tensors()
    plain = Positions.arange(6, causal=True)
    prefix = plain.derived(q_order=plain.q_order.clamp(min=2), k_order=plain.k_order)
    assert (prefix.start, prefix.diagonal, prefix.span) == (None, None, (-5, 5))
    visible = torch.ones(6, 6).tril().bool() | (torch.arange(6) < 3)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    torch.testing.assert_close(attention(q, k, v, None, prefix, backend=backend), want)


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda ids: Positions.from_ids(ids), torch.tensor([[0, 1, 2, 3]])),
        (lambda ids: Positions.from_ids(ids), torch.tensor([0.0, 1.5, 2.0, 3.0], dtype=torch.float64)),
        (lambda ids: Positions.from_ids(ids), np.array([0, 1, 2, 3])),
        (lambda ids: Positions.from_mask(ids == 1), torch.tensor([[0, 1, 1, 1]])),
        (lambda ids: Positions.from_mask(ids), torch.tensor([[False, True, True, True]])),
        (lambda ids: Positions.packed(document_ids=ids), torch.tensor([[0, 0, 1, 1]])),
    ],
)
def test_what_the_caller_does_to_their_tensor_later_moves_nothing(make, given):
    p = make(given)
    before = [x.clone() for x in (p.q, p.k, p.mask())]
    given[...] = 1 if given.dtype == np.int64 or given.dtype == torch.int64 else 0
    assert all(torch.equal(a, b) for a, b in zip(before, (p.q, p.k, p.mask()), strict=True))


def test_copies_are_data_alone():
    p = Positions.arange(5, causal=True)
    here = posenc.Pass(posenc.Rotary(8), p)
    here.attention(*tensors(n=5))
    assert here.positions._memory is not None
    assert pickle.loads(pickle.dumps(here.positions))._memory is None
    assert not dataclasses.is_dataclass(
        p
    )  # what rebuilds and casts those among a module's inputs leaves positions alone


def test_one_trailing_axis_is_text():
    ids = torch.tensor([[3, 1, 4]])
    p = Positions.from_ids(ids[..., None])
    assert torch.equal(p.q, ids)
    x = torch.randn(1, 3, 8)
    for name in ("sinusoidal", "integer", "binary", "normalized", "complex_order"):
        assert posenc.create(name, dim=8).embed(x, p).shape == x.shape
    q = torch.randn(1, 2, 3, 8)
    for name in ("rope", "t5", "alibi", "shaw", "xlnet", "deberta", "fire", "pope"):
        encoding = posenc.create(name, dim=16, num_heads=2, max_positions=8)
        assert torch.equal(attention(q, q, q, encoding, p), attention(q, q, q, encoding, Positions.from_ids(ids)))


def test_cross_attention_knows_contiguous_sides():
    cross = Positions.cross(Positions.arange(3, offset=2), Positions.arange(4))
    assert (cross.start, cross.span) == ((2, 0), (-1, 4))
    padded = Positions.cross(Positions.arange(3), Positions.from_mask([[0, 1, 1, 1], [1, 1, 1, 1]]))
    assert (padded.start, padded.span) == (None, (-3, 2))
    for name in ("t5", "alibi"):
        encoding = posenc.create(name, num_heads=2).double()
        q, (k, v) = torch.randn(2, 2, 3, 8).double(), torch.randn(2, 2, 2, 4, 8).double()
        for p in (cross, padded):
            want = attention(q, k, v, encoding, p, backend="reference")
            torch.testing.assert_close(attention(q, k, v, encoding, p), want)


def test_positions_given_by_moved_are_copied():
    ids = torch.arange(6)[None].clone()
    p = Positions.arange(6).moved(lambda before, order: ids)
    ids += 3
    assert torch.equal(p.q, torch.arange(6)[None])
    assert p.k is p.q
