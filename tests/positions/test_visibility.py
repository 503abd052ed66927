"""Prefixes and windows, against masks written by hand."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import posenc
from posenc import InputError, Positions, attention, explain, linear_attention
from posenc.cache import KVCache
from posenc.distributed.exchange import calls_of
from posenc.lab.transformer import Transformer, TransformerConfig

PREFIXES = {
    "plain": (Positions.prefix_lm(3, 7), lambda i, j: max(i, 2) >= j),
    "rows": (Positions.prefix_lm([0, 4], 7), lambda b, i, j: (j < [0, 4][b]) | (j <= i)),
    "after the prefix": (Positions.prefix_lm(3, 4, offset=5), lambda i, j: i + 5 >= j),
    "ragged": (Positions.prefix_lm([2, 3], 2, offset=torch.tensor([4, 3])), lambda b, i, j: j <= i + [4, 3][b]),
    "padded left": (
        Positions.from_mask([[0, 0, 1, 1, 1, 1, 1], [1] * 7]).with_prefix([2, 5]),
        lambda b, i, j: min(i, j) >= [2, 0][b] and (j < [4, 5][b] or j <= i),
    ),
    "padded right": (
        Positions.from_mask([[1, 1, 1, 1, 0, 0]]).with_prefix(2), lambda i, j: max(i, j) < 4 and (j < 2 or j <= i),
    ),
    "packed": (
        Positions.packed([4, 1, 3]).with_prefix([2, 1, 3]),
        lambda i, j: (i < 4 and j <= max(i, 1)) or i == j == 4 or min(i, j) > 4,
        ),
    "packed rows": (
        Positions.packed(document_ids=torch.tensor([[0, 0, 0, 1], [0, 1, 1, -1]])).with_prefix([[2, 0], [0, 2]]),
        lambda b, i, j: [i == j == 3 or (max(i, j) < 3 and j <= max(i, 1)), i == j == 0 or {i, j} <= {1, 2}][b],
    ),
    "in pieces": (
        Positions.packed(document_ids=[0, 1, 0, 1]).with_prefix(2), lambda i, j: i % 2 == j % 2,
    ),
}  # fmt: skip
WINDOWS = {
    "causal": (Positions.arange(7, causal=True).with_window(2), lambda i, j: 0 <= i - j <= 2),
    "both sides": (Positions.arange(7).with_window(2, 1), lambda i, j: -1 <= i - j <= 2),
    "before alone": (Positions.arange(7).with_window(1, None), lambda i, j: i - j <= 1),
    "after alone": (Positions.arange(7).with_window(None, 2), lambda i, j: i - j >= -2),
    "itself": (Positions.arange(7).with_window(0), lambda i, j: i == j),
    "offset": (Positions.arange(3, 4, causal=True).with_window(2), lambda i, j: 0 <= i + 4 - j <= 2),
    "one token": (Positions.arange(1, 6, causal=True).with_window(3), lambda i, j: j >= 3),
    "ragged": (
        Positions.arange(2, torch.tensor([5, 3]), causal=True).with_window(1), lambda b, i, j: 0 <= i + [5, 3][b] - j <= 1
    ),
    "padded": (
        Positions.from_mask([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]]).with_window(1, 2),
        lambda b, i, j: -2 <= i - j <= 1 and min(i, j) >= [2, 0][b] and max(i, j) < [6, 5][b],
    ),
    "packed": (
        Positions.packed([4, 3], causal=True).with_window(1), lambda i, j: 0 <= i - j <= 1 and (i < 4) == (j < 4)
    ),
    "gaps": (Positions.from_ids([0, 5, 6, 20], causal=True).with_window(1), lambda i, j: 0 <= i - j <= 1),
    "a prefix": (Positions.prefix_lm(4, 7).with_window(2, None), lambda i, j: i - j <= 2 and (j < 4 or j <= i)),
}  # fmt: skip
EVERYWHERE = pytest.mark.parametrize("case", [*PREFIXES, *(f"window: {name}" for name in WINDOWS)])


def case_of(name):
    """Positions, and their mask (batch, 1, queries, keys) by hand."""
    p, sees = WINDOWS[name[8:]] if name.startswith("window: ") else PREFIXES[name]
    rows = p.batch
    of = sees if rows > 1 else lambda b, i, j: sees(i, j)
    mask = [[[bool(of(b, i, j)) for j in range(p.num_keys)] for i in range(p.num_queries)] for b in range(rows)]
    return p, torch.tensor(mask)[:, None]


def inputs(p, batch=2, heads=4, kv_heads=2):
    generator = torch.Generator().manual_seed(1)
    shapes = (heads, p.num_queries), (kv_heads, p.num_keys), (kv_heads, p.num_keys)
    return [torch.randn(batch, *shape, 8, dtype=torch.float64, generator=generator) for shape in shapes]


@EVERYWHERE
def test_the_mask_is_what_is_visible(case):
    p, mask = case_of(case)
    assert torch.equal(p.mask().expand_as(mask), mask)
    assert torch.equal(p.visible_counts().expand(p.batch, -1), mask.sum(-1)[:, 0])
    assert not p.all_visible or bool(mask.all())
    assert torch.equal(p.keys(1, p.num_keys).mask().expand_as(mask[..., 1:]), mask[..., 1:])


@EVERYWHERE
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_attention_and_gradients_are_those_of_the_mask(case, backend):
    p, mask = case_of(case)
    given = [x.requires_grad_() for x in inputs(p, kv_heads=4)]
    seen = mask.any(-1, keepdim=True)
    want = scaled_dot_product_attention(*given, attn_mask=mask | ~seen).masked_fill(~seen, 0.0)
    actual = attention(*given, None, p, backend=backend)
    torch.testing.assert_close(actual, want)
    pull = torch.randn(actual.shape, dtype=actual.dtype, generator=torch.Generator().manual_seed(2))
    pairs = zip(torch.autograd.grad(actual, given, pull), torch.autograd.grad(want, given, pull), strict=True)
    for of_found, of_want in pairs:
        torch.testing.assert_close(of_found, of_want)


TERMS = ["rope+alibi", "t5", "shaw", "transformer_xl", "log_n:train_length=2+rope"]


@EVERYWHERE
@pytest.mark.parametrize(("name", "backend"), [*((name, "auto") for name in TERMS), ("t5", "flex")])
@pytest.mark.usefixtures("untraced")
def test_every_kind_of_term_sees_what_the_mask_shows(case, name, backend):
    p, _ = case_of(case)
    encoding = posenc.create(name, num_heads=4, num_kv_heads=4, head_dim=8, dim=32, max_positions=16).double()
    torch.manual_seed(0)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    given = [*inputs(p, kv_heads=4), encoding, p]
    with torch.no_grad():
        want, actual = attention(*given, backend="reference"), attention(*given, backend=backend)
    torch.testing.assert_close(actual, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", PREFIXES)
def test_linear_attention_sees_the_prefix(case):
    p, mask = case_of(case)
    q, k, v = inputs(p, kv_heads=4)
    fq, fk = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    weights = (fq @ fk.mT) * mask
    want = weights @ v / weights.sum(-1, keepdim=True).masked_fill(~mask.any(-1, keepdim=True), 1.0)
    torch.testing.assert_close(linear_attention(q, k, v, None, p, chunk_size=2), want)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("full", [Positions.prefix_lm(5, 8), Positions.arange(8, causal=True).with_window(2)])
def test_a_shard_sees_what_its_tokens_see(full, layout, rank):
    shard = full.shard(rank, 2, layout=layout)
    assert torch.equal(shard.mask(), full.mask()[:, :, shard.sharding.indices()])
    for call, run in zip(calls_of(shard, True), shard.sharding.runs, strict=True):
        rows = full.mask()[:, :, slice(*run)]
        assert torch.equal(call.mask(), rows[..., : call.num_keys])
        assert not rows[..., call.num_keys :].any()


def test_taken_tokens_see_what_they_saw():
    full, index = Positions.prefix_lm(3, 6), torch.tensor([4, 0, 2])
    assert torch.equal(full.take(index).mask()[0, 0], full.mask()[0, 0][index][:, index])


@pytest.mark.parametrize("rotated", [False, True])
def test_a_prefix_is_decoded_with_a_cache(rotated):
    torch.manual_seed(0)
    model = (
        Transformer(TransformerConfig(11, dim=16, num_layers=2, num_heads=2), posenc.Rotary(8) + posenc.ALiBi(2))
        .double()
        .eval()
    )
    x, cache = torch.randint(11, (2, 7)), KVCache(rotated=rotated)
    steps = [model(x[:, :4], Positions.prefix_lm([3, 2], 4), cache)]
    steps += [model(x[:, i : i + 1], Positions.prefix_lm([3, 2], 1, offset=i), cache) for i in range(4, 7)]
    torch.testing.assert_close(torch.cat(steps, 1), model(x, Positions.prefix_lm([3, 2], 7)))


def test_explain_says_how_they_are_computed():
    n = 64
    q, k, v = torch.randn(3, 1, 2, n, 8).unbind()
    rope, alibi = posenc.Rotary(8), posenc.ALiBi(2)
    windowed, prefix = Positions.arange(n, causal=True).with_window(7), Positions.prefix_lm(9, n)
    for encoding, p in ((rope, windowed), (alibi, windowed), (rope, prefix)):
        assert "dense" not in explain(q, k, v, encoding, p, backend="sdpa").reason
    assert "dense" in explain(q, k, v, alibi, prefix, backend="sdpa").reason


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Positions.prefix_lm(-1, 4), "prefix_lengths"),
        (lambda: Positions.prefix_lm(5, 4), "prefix_lengths"),
        (lambda: Positions.prefix_lm(1.5, 4), "prefix_lengths"),
        (lambda: Positions.prefix_lm([[1], [2]], 4), "prefix_lengths"),
        (lambda: Positions.from_mask([[1, 1], [0, 1]]).with_prefix([1, 1, 1]), "rows"),
        (lambda: Positions.from_mask([[1, 1], [0, 1]]).with_prefix([2, 2]), "prefix_lengths"),
        (lambda: Positions.packed([2, 3]).with_prefix([1]), "document"),
        (lambda: Positions.prefix_lm(3, 2, offset=2), "begin inside the prefix"),
        (lambda: Positions.arange(4).with_window(1, 0.5), "after=0.5"),
        (
            lambda: linear_attention(*torch.randn(3, 1, 2, 4, 8).unbind(), None, Positions.arange(4).with_window(1)),
            "window",
        ),
        (
            lambda: attention(
                *torch.randn(3, 1, 2, 4, 8).unbind(), None, Positions.arange(4).with_window(1), backend="triton"
            ),
            "window",
        ),
        (
            lambda: attention(
                *torch.randn(3, 1, 2, 4, 8).unbind(),
                posenc.create("rope@rerope:window=2", head_dim=8),
                Positions.prefix_lm(2, 4),
            ),
            "causal",
        ),
        (lambda: attention(*torch.randn(3, 1, 2, 4, 8).unbind(), posenc.CoPE(8), Positions.prefix_lm(2, 4)), "causal"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
