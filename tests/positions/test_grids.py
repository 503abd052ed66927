"""Positions of images: aspect ratios, videos, tokens without a place, patches taken, several images."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
from posenc import InputError, Positions
from posenc.positions.ids import unplaced_index
from posenc.positions.patches import of_images

SIZES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4)


def places(positions: Positions, row: int = 0) -> list[list[int]]:
    return positions.q[row].tolist()


@given(
    height=st.integers(1, 5), width=st.integers(1, 5), frames=st.none() | st.integers(1, 3), prefix=st.integers(0, 2)
)
def test_patches_are_counted_row_by_row_and_frame_by_frame(height, width, frames, prefix):
    positions = Positions.grid(height, width, frames, prefix=prefix)
    axes = 2 if frames is None else 3
    want = [[t, y, x][-axes:] for t in range(frames or 1) for y in range(height) for x in range(width)]
    assert places(positions) == [[0] * axes] * prefix + want
    assert (positions.q_placed is None) == (prefix == 0)
    assert positions.q_placed is positions.k_placed
    assert prefix == 0 or positions.q_placed.tolist() == [[False] * prefix + [True] * len(want)]
    assert positions.mask().all()
    assert positions.images == (((height, width) if frames is None else (frames, height, width)),)


@given(sizes=SIZES, prefix=st.integers(0, 2))
def test_packed_images_are_separate_documents(sizes, prefix):
    packed, alone = Positions.grids(sizes, prefix=prefix), [Positions.grid(*size, prefix=prefix) for size in sizes]
    assert places(packed) == [place for each in alone for place in places(each)]
    blocks = torch.block_diag(*(each.mask()[0, 0].float() for each in alone)).bool()
    assert torch.equal(packed.mask()[0, 0], blocks)
    assert packed.all_visible == (len(sizes) == 1)
    q_sizes, k_sizes = of_images(packed, packed.images)
    want = [list(size) for size, each in zip(sizes, alone, strict=True) for _ in range(each.num_keys)]
    assert q_sizes.expand(1, packed.num_queries, 2)[0].tolist() == want
    assert torch.equal(q_sizes, k_sizes)


@given(sizes=SIZES, prefix=st.integers(0, 2))
def test_padded_images_are_separate_rows(sizes, prefix):
    padded = Positions.grids(sizes, prefix=prefix, padded=True)
    for row, size in enumerate(sizes):
        alone = Positions.grid(*size, prefix=prefix)
        n = alone.num_queries
        assert places(padded, row)[:n] == places(alone)
        mask = padded.mask().expand(len(sizes), -1, -1, -1)[row, 0]
        assert mask[:n, :n].all()
        assert not mask[n:].any()
        assert not mask[:, n:].any()
        known = of_images(padded, padded.images)[0]
        assert known[row % len(known), 0].tolist() == list(size)


@given(data=st.data(), sizes=SIZES, prefix=st.integers(0, 2), causal=st.booleans())
def test_taken_tokens_keep_place_document_and_whom_they_see(data, sizes, prefix, causal):
    full = Positions.grids(sizes, prefix=prefix).with_causal(causal)
    apart = [False] * full.num_queries if full.q_placed is None else (~full.q_placed[0]).tolist()
    patches = [n for n in range(full.num_queries) if not apart[n]]
    count = data.draw(st.integers(1, len(patches)))
    rows = [data.draw(st.permutations(patches))[:count] for _ in range(2)]
    first = [n for n in range(full.num_queries) if apart[n]]
    index = torch.tensor([first + row for row in rows])
    taken = full.take(index)
    for row, indices in enumerate(index):
        assert torch.equal(taken.q[row], full.q[0, indices])
        assert torch.equal(taken.mask()[row, 0], full.mask()[0, 0][indices][:, indices])
        one = full.take(indices)
        assert torch.equal(one.q[0], taken.q[row])
        assert torch.equal(one.mask()[0], taken.mask()[row])
    assert torch.equal(
        of_images(taken, taken.images)[0].expand(2, index.shape[1], 2),
        of_images(full, full.images)[0].expand(1, full.num_queries, 2)[0][index],
    )


def test_padding_is_taken_along():
    padded = Positions.grids([(2, 2), (1, 2)], padded=True)
    taken = padded.take([[3, 0, 1], [2, 0, 1]])
    assert taken.valid.tolist() == [[True] * 3, [False, True, True]]
    assert taken.q.tolist() == [[[1, 1], [0, 0], [0, 1]], [[0, 0], [0, 0], [0, 1]]]
    assert not taken.mask()[1, 0, 0].any()


def test_taking_text_apart_keeps_what_is_causal():
    taken = Positions.arange(5, causal=True).take([4, 1, 2])
    assert taken.q.tolist() == [[4, 1, 2]]
    assert taken.mask()[0, 0].tolist() == [[True, True, True], [False, True, False], [False, True, True]]
    assert taken.visible_counts().tolist() == [[3, 1, 2]]


@pytest.mark.parametrize("name", ["rope+alibi", "cope", "t5", "log_n:train_length=2+rope"])
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "flex"])
@pytest.mark.usefixtures("untraced")
def test_text_taken_apart_is_attended_as_where_the_rest_is_hidden(name, backend):
    encoding = posenc.create(name, head_dim=8, num_heads=2, causal=True).double()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    full, index = Positions.arange(6, causal=True), torch.tensor([5, 1, 4, 2])
    q, k, v = torch.randn(3, 1, 2, 6, 8, dtype=torch.float64)
    shown = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, index, True)
    hidden = full.derived(valid=shown, q_valid=shown)
    with torch.no_grad():
        want = posenc.attention(q, k, v, encoding, hidden, backend="reference")[:, :, index]
        actual = posenc.attention(*(x[:, :, index] for x in (q, k, v)), encoding, full.take(index), backend=backend)
    torch.testing.assert_close(actual, want, rtol=1e-10, atol=1e-12)


def test_places_among_the_tokens_before_the_patches():
    positions = Positions.grids([(1, 2), (2, 1)], prefix=2)
    assert unplaced_index(positions.q_placed, positions.q_document).tolist() == [[0, 1, -1, -1, 0, 1, -1, -1]]
    assert unplaced_index(Positions.grid(1, 2, prefix=2).q_placed, None).tolist() == [[0, 1, -1, -1]]


def test_moved_tokens_are_of_no_known_image():
    assert Positions.grid(2, 3).moved(lambda at, order: at + 1).images is None
    assert Positions.grid(2, 3).to("cpu").images == ((2, 3),)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Positions.grids([]), r"sizes=\[\]"),
        (lambda: Positions.grids([(2, 3), (2, 2, 2)]), r"images or videos, not both"),
        (lambda: Positions.grids([(2, 2.5)]), r"width=2.5"),
        (lambda: Positions.grids([4, 5]), r"pass \(height, width\)"),
        (lambda: Positions.grid(2, 2).take([4]), r"index from 4 to 4: must lie between 0 and 3"),
        (lambda: Positions.grid(2, 2).take([1, 1]), r"names a token twice"),
        (lambda: Positions.grid(2, 2).take([0.5]), r"integers"),
        (lambda: Positions.grids([(2, 2)] * 3 + [(1, 1)], padded=True).take([[0], [1]]), r"for the 4 rows"),
        (lambda: Positions.grid(2, 2, prefix=2).take([1, 2]), r"without a place.*not the first"),
        (lambda: Positions.grid(2, 2, prefix=2).take([1, 0, 2]), r"out of their order"),
        (lambda: Positions.arange(2, 3).take([0]), r"2 queries that are not the 5 keys cannot be taken apart"),
        (lambda: Positions.arange(4).shard(0, 2).take([0]), r"are a shard already"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
