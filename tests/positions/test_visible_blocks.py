# SPDX-License-Identifier: Apache-2.0
"""Blocks of tokens that see one another: masks, backends, and that what is hidden is skipped."""

import pytest
import torch

import posenc
from posenc import InputError, Positions, attention
from posenc.backends import fused
from posenc.positions.segments import segments

SIZE = 4
B, H, KV, D = 2, 4, 2, 16


def big_bird(count, seed=0):
    """A diagonal band, the first block, and a random one: (count, count)."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.arange(count)
    table = (at[:, None] - at).abs() <= 1
    table[:, 0] = table[0] = True
    table[at, torch.randint(count, (count,), generator=generator)] = True
    return table


def rows(count):
    return torch.stack([big_bird(count, seed) for seed in range(B)])


MASK = torch.tensor([[0] * 5 + [1] * 14, [1] * 19])

LAYOUTS = {
    "text": lambda: Positions.arange(19, causal=True).with_blocks(SIZE, big_bird(5)),
    "both ways": lambda: Positions.arange(19).with_blocks(SIZE, big_bird(5)),
    "a table for each row": lambda: Positions.arange(19, causal=True).with_blocks(SIZE, rows(5)),
    "cached": lambda: Positions.arange(6, 13, causal=True).with_blocks(SIZE, big_bird(5)),
    "padded": lambda: Positions.from_mask(MASK, causal=True).with_blocks(SIZE, big_bird(5)),
    "packed": lambda: Positions.packed([8, 11], causal=True).with_blocks(SIZE, big_bird(3)),
    "windowed": lambda: Positions.arange(19, causal=True).with_window(6).with_blocks(SIZE, big_bird(5)),
    "twice": lambda: Positions.arange(19).with_blocks(SIZE, big_bird(5)).with_blocks(3, big_bird(7, 1)),
    "prefix": lambda: Positions.prefix_lm(7, 19).with_blocks(SIZE, big_bird(5)),
    "themselves": lambda: Positions.packed([8, 11]).with_blocks(3),
    "nothing for some": lambda: Positions.arange(19).with_blocks(SIZE, torch.eye(5).bool().roll(1, 0).triu()),
}
ENCODINGS = ["none", "rope", "alibi", "t5", "shaw", "rope+alibi+softmax_n", "kerple", "rope@rerope:window=5"]


def call(positions, text, backend, dtype=torch.float64, **more):
    torch.manual_seed(0)
    encoding = posenc.create(text, num_heads=H, head_dim=D, num_kv_heads=KV, num_layers=1).to(dtype)
    q = torch.randn(B, H, positions.num_queries, D, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(B, KV, positions.num_keys, D, dtype=dtype, requires_grad=True) for _ in range(2))
    out = attention(q, k, v, encoding, positions, backend=backend, **more)
    inputs = [q, k, v, *encoding.parameters()]
    grads = torch.autograd.grad(out.square().sum(), inputs, allow_unused=True)
    return out, [g for g in grads if g is not None]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", ENCODINGS)
def test_equals_the_dense_mask(layout, text):
    positions = LAYOUTS[layout]()
    if text == "shaw" and layout == "prefix":
        text = "t5"  # a term on the values takes one run of distances
    if "@" in text and (positions.sees_future or positions.window):
        positions = positions.with_window(None, None).derived(prefix=None).with_causal(True)
    (out, grads), (expected, of_expected) = (call(positions, text, backend) for backend in ("sdpa", "reference"))
    torch.testing.assert_close(out, expected)
    for one, other in zip(grads, of_expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_flex(layout):
    with torch.no_grad():
        positions, (q, k) = LAYOUTS[layout](), (torch.randn(B, n, 19, D) for n in (H, KV))
        q = q[:, :, -positions.num_queries :]
        out, expected = (attention(q, k, k, None, positions, backend=b) for b in ("flex", "reference"))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rectangles_are_the_mask(layout):
    positions = LAYOUTS[layout]()
    visible = segments(positions)
    seen = torch.zeros(B, positions.num_queries, positions.num_keys, dtype=torch.int)
    i, j = torch.arange(positions.num_queries)[:, None], torch.arange(positions.num_keys)
    for row, q0, q1, k0, k1, diagonal, _ in visible:
        distance = i - j + diagonal
        inside = (i >= q0) & (i < q1) & (j >= k0) & (j < k1)
        inside = inside & positions.region.contains(distance, torch.zeros_like(distance))
        inside = inside & (distance >= 0) if positions.causal else inside
        seen[slice(None) if row < 0 else row] += inside.int()
    torch.testing.assert_close(seen.bool(), positions.mask()[:, 0].expand_as(seen))
    assert seen.max() == 1  # each pair once
    counts = positions.visible_counts()
    torch.testing.assert_close(counts, positions.mask()[:, 0].sum(-1))


@pytest.mark.parametrize("text", ["none", "t5", "alibi"])
def test_hidden_blocks_are_not_visited(text, monkeypatch):
    visited, flash = [], fused._flash

    def counting(q, k, *more, **options):
        visited.append(q.shape[2] * k.shape[2])
        return flash(q, k, *more, **options)

    monkeypatch.setattr(fused, "_flash", counting)
    n, size = 1024, 64
    positions = Positions.arange(n, causal=True).with_blocks(size, torch.eye(n // size).bool())
    q = torch.randn(1, 2, n, D)
    attention(q, q, q, posenc.create(text, num_heads=2), positions)
    assert 0 < sum(visited) <= n * size * (1 if text == "none" else 2)  # those of a term are by head


def test_dropout_and_half_precision():
    positions = LAYOUTS["text"]()
    torch.manual_seed(0)
    out, _ = call(positions, "alibi", "sdpa", torch.bfloat16)
    expected, _ = call(positions, "alibi", "reference", torch.bfloat16)
    torch.testing.assert_close(out, expected, rtol=3e-2, atol=3e-2)
    dropped, _ = call(positions, "t5", "sdpa", dropout_p=0.5)
    assert bool(dropped.isfinite().all())


def test_compiles():
    compiled = torch.compile(lambda q, positions: attention(q, q, q, None, positions), backend="eager", fullgraph=True)
    positions, q = LAYOUTS["text"](), torch.randn(B, H, 19, D)
    torch.testing.assert_close(compiled(q, positions), attention(q, q, q, None, positions))


@pytest.mark.parametrize(
    ("table", "size", "message"),
    [
        (torch.ones(5, 5), 4, "pass bool"),
        (torch.ones(5).bool(), 4, "pass bool"),
        ([[True]], 4, "table"),
        (torch.ones(5, 5).bool(), 0, "size=0"),
        (torch.ones(4, 5).bool(), 4, r"4 blocks of 4 tokens for the queries, which take 5"),
        (torch.ones(5, 4).bool(), 4, r"4 blocks of 4 tokens for the keys"),
    ],
)  # fmt: skip
def test_bad_input(table, size, message):
    with pytest.raises(InputError, match=message):
        Positions.arange(19).with_blocks(size, table)


def test_refused():
    blocked, q = Positions.arange(8).with_blocks(2, torch.ones(4, 4).bool()), torch.randn(1, 1, 8, 4)
    with pytest.raises(InputError, match="blocks"):
        posenc.linear_attention(q, q, q, None, blocked)
    with pytest.raises(InputError, match="table of 3 rows"):
        Positions.from_mask(MASK).with_blocks(4, torch.ones(3, 5, 5).bool())
