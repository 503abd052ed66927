"""A shard is the part of the full sequence that its ranks and layout state; no processes are needed to see that."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import posenc
from posenc import InputError, Positions
from posenc.cache import KVCache
from posenc.distributed import LAYOUTS, exchange, gather, shard
from posenc.distributed.exchange import calls_of
from posenc.lab.transformer import Transformer, TransformerConfig

EXACT = {"rtol": 1e-10, "atol": 1e-11}
H, D = 4, 8


@st.composite
def sequences(draw) -> tuple[Positions, int]:
    """Positions of a complete text, and how many processes share it."""
    world_size = draw(st.integers(1, 4))
    n = 2 * world_size * draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["plain", "padded", "packed", "ids", "fractional"]))
    causal = draw(st.booleans())
    if kind == "padded":
        masks = [draw(st.integers(0, n - 1)) for _ in range(2)]
        rows = [[0] * m + [1] * (n - m) for m in masks]
        return Positions.from_mask(
            [row[::-1] if draw(st.booleans()) else row for row in rows], causal=causal
        ), world_size
    if kind == "packed":
        ids = sorted(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
        return Positions.packed(document_ids=torch.tensor(ids), causal=causal), world_size
    if kind == "plain":
        return Positions.arange(n, causal=causal), world_size
    ids = torch.tensor(draw(st.lists(st.integers(0, 30), min_size=n, max_size=n)))
    return Positions.from_ids(ids / 4 if kind == "fractional" else ids, causal=causal, packed=False), world_size


@given(case=sequences(), layout=st.sampled_from(LAYOUTS))
def test_positions_of_shards_are_those_of_the_unsharded_sequence(case, layout):
    full, world_size = case
    n, seen = full.num_queries, []
    for rank in range(world_size):
        local_positions = full.shard(rank, world_size, layout=layout)
        at = local_positions.sharding.indices()
        seen += at.tolist()
        assert local_positions.num_queries == n // world_size
        assert local_positions.sharding.full is full
        assert torch.equal(local_positions.k, full.k)
        for name in ("q", "q_order", "q_valid", "q_document"):
            ours, theirs = getattr(local_positions, name), getattr(full, name)
            assert (theirs is None and ours is None) or torch.equal(ours, theirs[:, at])
        assert torch.equal(local_positions.mask().expand(2, -1, -1, -1), full.mask().expand(2, -1, -1, -1)[:, :, at])
        for ours, theirs in (
            (local_positions.lengths(), full.lengths()),
            (local_positions.visible_counts(), full.visible_counts()),
        ):
            assert torch.equal(ours, theirs[:, at])
        masks = []
        for call in calls_of(local_positions, local_positions.causal):
            first = sum(mask.shape[2] for mask in masks)
            assert torch.equal(
                call.visible_counts(), local_positions.visible_counts()[:, first : first + call.num_queries]
            )
            hidden = n - call.num_keys
            masks.append(torch.nn.functional.pad(call.mask(), (0, hidden)))
        assert torch.equal(torch.cat(masks, 2), local_positions.mask())
    assert sorted(seen) == list(range(n))


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_zigzag_gives_everyone_the_same_work(world_size):
    n = 48
    work = {layout: [] for layout in LAYOUTS}
    for layout, done in work.items():
        for rank in range(world_size):
            calls = calls_of(Positions.arange(n, causal=True).shard(rank, world_size, layout=layout), True)
            assert all(call.start == (int(call.q[0, 0]), 0) and call.diagonal == call.start[0] for call in calls)
            assert all(call.num_keys == int(call.q.max()) + 1 for call in calls)
            done.append(sum(int(call.visible_counts().sum()) for call in calls))
    assert len(set(work["zigzag"])) == 1
    assert sum(work["contiguous"]) == sum(work["zigzag"]) == n * (n + 1) // 2
    assert len(set(work["contiguous"])) == world_size


def test_calls_of_a_shard_take_the_fast_path():
    q, k, v = torch.randn(3, 1, H, 16, D).unbind()
    for layout in LAYOUTS:
        local_positions = Positions.arange(64, causal=True).shard(1, 4, layout=layout)
        explanation = posenc.explain(q, k, v, posenc.ALiBi(H), local_positions, backend="sdpa")
        assert explanation.backend == "sdpa"
        assert explanation.reason.startswith("keys and values gathered from all processes")
        assert "a bias of the distance alone" in explanation.reason


def test_linear_attention_on_shards(monkeypatch):
    positions, encoding = Positions.packed([7, 9], causal=True), posenc.Rotary(D)
    q = torch.randn(2, H, 16, D, dtype=torch.float64)
    k, v = torch.randn(2, 2, 2, 16, D, dtype=torch.float64)
    want = posenc.linear_attention(q, k, v, encoding, positions)
    monkeypatch.setattr(exchange, "gather_keys", lambda *local: (k, v))
    for layout in LAYOUTS:
        for rank in range(2):
            local_positions = positions.shard(rank, 2, layout=layout)
            result = posenc.linear_attention(
                *(shard(x, local_positions, 2) for x in (q, k, v)), encoding, local_positions
            )
            assert_close(result, shard(want, local_positions, 2), **EXACT)


def test_prefix_tokens_of_a_grid_count_over_all_shards():
    table = posenc.GridTable(H, height=2, width=5, prefix=2).double()
    grid = Positions.grid(2, 5, prefix=2)
    back = torch.arange(11, -1, -1)
    grid = Positions.from_ids(grid.q[:, back], placed=grid.q_placed[:, back])  # the prefix comes last
    x = torch.zeros(1, 12, H, dtype=torch.float64)
    for layout in LAYOUTS:
        for rank in range(3):
            local_positions = grid.shard(rank, 3, layout=layout)
            assert_close(
                table.embed(shard(x, local_positions), local_positions),
                shard(table.embed(x, grid), local_positions),
                **EXACT,
            )


def test_one_process_needs_no_group():
    local_positions = Positions.arange(8, causal=True).shard(0, 1, layout="zigzag")
    assert local_positions.sharding.runs == ((0, 8),)
    x = torch.randn(2, 8, 3)
    assert torch.equal(gather(shard(x, local_positions), local_positions), x)
    model = Transformer(TransformerConfig(17, dim=16), posenc.create("randomized+rope", head_dim=4)).double()
    tokens = torch.randint(17, (2, 8))
    torch.manual_seed(3)
    want = model(tokens)
    torch.manual_seed(3)
    assert_close(model(tokens, local_positions), want, **EXACT)


def test_shards_are_copied_and_moved():
    local_positions = Positions.packed([3, 5], causal=True).shard(1, 2)
    for copy in (pickle.loads(pickle.dumps(local_positions)), local_positions.to("cpu")):
        assert copy.sharding.runs == local_positions.sharding.runs
        assert torch.equal(copy.lengths(), local_positions.lengths())
    shifted = local_positions.moved(lambda ids, order: ids + 5)
    assert torch.equal(shifted.sharding.take(shifted.sharding.full.q), shifted.q)


def test_refusals():
    full = Positions.arange(12, causal=True)
    for arguments, message in (
        ((0, 5), r"12 tokens cannot be cut into 5 equal parts .*pad it to 15"),
        ((2, 2), r"rank=2: must be at most 1"),
    ):
        with pytest.raises(InputError, match=message):
            full.shard(*arguments)
    with pytest.raises(InputError, match=r"cannot be cut into 8 equal parts .*pad it to 16"):
        full.shard(0, 4, layout="zigzag")
    with pytest.raises(InputError, match=r"unknown layout 'zigzg': did you mean 'zigzag'"):
        full.shard(0, 2, layout="zigzg")
    with pytest.raises(InputError, match=r"unknown layout array\(\[0, 1\]\)"):
        full.shard(0, 2, layout=torch.arange(2).numpy())
    local_positions = full.shard(0, 2)
    with pytest.raises(InputError, match=r"are a shard already"):
        local_positions.shard(0, 2)
    with pytest.raises(InputError, match=r"2 queries that are not the 12 keys"):
        Positions.arange(2, 10).shard(0, 2)
    with pytest.raises(InputError, match=r"queries that are not the 4 keys"):
        Positions.cross(Positions.arange(4), Positions.from_ids([3, 2, 1, 0])).shard(0, 2)
    with pytest.raises(InputError, match=r"without a shard: pass positions.shard"):
        shard(torch.zeros(1, 12), full)
    with pytest.raises(InputError, match=r"along dim=1: the full sequence has 12 tokens"):
        shard(torch.zeros(1, 6), local_positions)
    with pytest.raises(InputError, match=r"along dim=1: the shard has 6 tokens"):
        gather(torch.zeros(1, 12), local_positions)
    with pytest.raises(InputError, match=r"without a process group: .*torchrun"):
        gather(torch.zeros(1, 6), local_positions)
    q, local = torch.zeros(2, 1, 1, 12, 4)[0], torch.zeros(1, 1, 6, 4)
    with pytest.raises(InputError, match=r"a shard of 6 tokens, q has 12 and k 12"):
        posenc.attention(q, q, q, None, local_positions)
    with pytest.raises(InputError, match=r"k \(1, 1, 6, 4\) .* and v \(1, 1, 12, 4\) .* do not belong together"):
        posenc.attention(local, local, q, None, local_positions)
    with pytest.raises(InputError, match=r"keys_rotated=True: a cache and the shards"):
        posenc.attention(local, local, local, posenc.Rotary(4), local_positions, keys_rotated=True)
    model = Transformer(TransformerConfig(17, dim=16), posenc.Rotary(4))
    with pytest.raises(InputError, match=r"a cache and a shard of a sequence exclude one another"):
        model(torch.zeros(1, 6, dtype=torch.long), local_positions, KVCache())
