"""Selective attention: the formula, x-transformers' expression, caches, blocks of queries and of tokens."""

import pytest
import torch
from torch.testing import assert_close
from x_transformers.attend import selective_attn

from posenc import Positions, Rotary, SelectiveAttention, attention
from posenc.backends import sdpa
from posenc.encoding import gates_of
from posenc.encodings import selective
from posenc.testing.oracles import content
from references.calls import BACKENDS, CAUSAL, DIM, EXACT, check_against, document_by_document, qkv, refusals

EVERYWHERE = pytest.mark.parametrize("positions", CAUSAL.values(), ids=CAUSAL.keys())


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of tokens and of queries, also of a few."""
    monkeypatch.setattr(selective, "TOKENS", 2)
    monkeypatch.setattr(selective, "CELLS", 0)
    monkeypatch.setattr(sdpa, "BLOCK_CELLS", 1)
    monkeypatch.setattr(sdpa, "LEAST_ROWS", 3)


def tokens_of(positions):
    """As many queries of head 0 as there are keys."""
    return torch.randn(2, 1, positions.num_keys, 4, dtype=torch.float64)


@BACKENDS
@pytest.mark.parametrize("kv_heads", [3, 1])
@EVERYWHERE
def test_it_is_the_formula(positions, kv_heads, backend, small_blocks):
    encoding = SelectiveAttention(4)
    encoding.share([(torch.nn.Linear(DIM, 12).double(), None)])

    def formula(q, k, x):
        (gates,) = gates_of(encoding, x)

        def of_document(q, k, row, keys, rows):
            return content.selective_attention(gates[row, :, keys], k[:, 0])[:, :, rows]

        return document_by_document(positions, q, k, of_document)

    check_against(formula, encoding, positions, backend, kv_heads)


@pytest.mark.parametrize("rotation", ["", "half", "interleaved"])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_it_is_that_of_x_transformers(n, rotation, small_blocks):
    positions = Positions.arange(n, causal=True)
    q, k, v = qkv(positions)
    encoding, rotated = SelectiveAttention(4), (q, k)
    if rotation:
        rope = Rotary(4, rope_theta=100.0, layout=rotation)
        encoding = rope + SelectiveAttention(4, rope_theta=100.0, layout=rotation)
        rotated = rope.rotate(q, k, positions)
    scores = (rotated[0] @ rotated[1].mT / 2).masked_fill(~positions.mask(), -torch.finfo(torch.float64).max)
    wanted = selective_attn(scores).softmax(-1) @ v
    assert_close(attention(q, k, v, encoding, positions, gates=q[:, :1]), wanted, **EXACT)


@EVERYWHERE
def test_gradients_are_those_of_the_reference(positions, small_blocks):
    encoding = SelectiveAttention(4, rope_theta=100.0)
    leaves = [*(x.requires_grad_() for x in qkv(positions, 4, 2)), tokens_of(positions).requires_grad_()]
    results = []
    for backend in ("auto", "reference"):
        out = attention(*leaves[:3], encoding, positions, gates=leaves[3], backend=backend)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for ours, wanted in zip(*results, strict=True):
        assert_close(ours, wanted, **EXACT)


@pytest.mark.parametrize("blocks", [1, 2, 5, 256])
def test_sums_carried_on_are_the_sum(blocks, monkeypatch):
    positions = Positions.arange(7, 6, causal=True)
    q, k, _ = qkv(positions)
    gated = positions.with_gates((tokens_of(positions),))
    wanted = SelectiveAttention(4).bias(q, k, gated).dense(q.device)
    monkeypatch.setattr(selective, "TOKENS", blocks)
    rows = SelectiveAttention(4).bias(q, k, gated).rows(q.device)
    for first, end in ((0, 7), (0, 1), (3, 5), (6, 7)):
        assert_close(rows(first, end), wanted[:, :, first:end], **EXACT)


def test_blocks_select_from_what_they_see():
    # blocks of 3 that see themselves alone are documents, but for the first token, which is that of the text
    positions = Positions.arange(6, causal=True).with_blocks(3, torch.eye(2, dtype=torch.bool))
    q, k, v = qkv(positions)
    encoding, cached = SelectiveAttention(4), Positions.arange(2, 4, causal=True).with_blocks(3, torch.eye(2).bool())
    out = attention(q, k, v, encoding, positions, gates=q[:, :1])
    seen = positions.mask()[0, 0]
    scores = (q @ k.mT / 2).masked_fill(~seen, -torch.inf)
    counts = seen & ~torch.eye(6, dtype=torch.bool) & (torch.arange(6) > 0)
    selected = scores[:, 0].relu().masked_fill(~counts, 0.0).cumsum(1).roll(1, 1)
    selected[:, 0] = 0
    assert_close(out, (scores - selected[:, None]).softmax(-1) @ v, **EXACT)
    assert_close(attention(q[:, :, 4:], k, v, encoding, cached, gates=q[:, :1]), out[:, :, 4:], **EXACT)


def test_what_was_selected_loses_its_weight():
    # token 1 asks later ones to ignore key 0, which is the first and stays, token 2 to ignore key 1
    positions = Positions.arange(5, causal=True)
    gates, k = torch.zeros(1, 1, 5, 4), torch.zeros(1, 1, 5, 4)
    gates[0, 0, 1, 0] = gates[0, 0, 2, 1] = 200.0
    k[0, 0, 0, 0] = k[0, 0, 1, 1] = 1.0
    v = torch.eye(5)[None, None]
    weights = attention(torch.zeros(1, 1, 5, 4), k, v, SelectiveAttention(4), positions, gates=gates)[0, 0]
    assert_close(weights[2], torch.tensor([1, 1, 1, 0, 0]) / 3)
    assert_close(weights[3], torch.tensor([1, 0, 1, 1, 0]) / 3)
    assert_close(weights[4], torch.tensor([1, 0, 1, 1, 1]) / 4)


def call(positions=CAUSAL["causal"], gates=None, **options):
    return attention(*qkv(positions), SelectiveAttention(4, **options), positions, gates=gates)


REFUSED = {
    "no gates": (call, "gates: 0 tensors, selective_attention makes 1"),
    "not causal": (lambda: call(Positions.arange(7), torch.zeros(2, 1, 7, 4)), "pass causal positions"),
    "prefix": (lambda: call(Positions.prefix_lm(2, 7), torch.zeros(2, 1, 7, 4)), "pass causal positions"),
    "no projection": (lambda: gates_of(SelectiveAttention(4), torch.zeros(1, 3, 8)), "no query projection for layer 0"),
    "width": (lambda: attention(*qkv(CAUSAL["causal"]), SelectiveAttention(8), CAUSAL["causal"], gates=torch.zeros(2, 1, 7, 8)), "head_dim=8"),
    "rope_theta": (lambda: SelectiveAttention(4, rope_theta=-1.0), "rope_theta=-1"),
    "layout": (lambda: SelectiveAttention(4, layout="pairs"), "unknown layout 'pairs'"),
}  # fmt: skip

test_refusals = refusals(REFUSED)
