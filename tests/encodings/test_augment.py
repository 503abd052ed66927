"""SHAPE, CAPE, randomised and skipped positions: what they draw in training, what they leave alone, and that a forward
pass uses one draw in all layers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import posenc
from posenc import CAPE, SHAPE, PoSE, Positions, Randomized, Rotary, Sinusoidal
from posenc.lab.transformer import Transformer, TransformerConfig

MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
LAYOUTS = {
    "plain": (Positions.arange(5, causal=True), 3),
    "padded": (Positions.from_mask(MASK, causal=True), 2),
    "packed": (Positions.packed([2, 3], causal=True), 4),
}
EVERY_LAYOUT = pytest.mark.parametrize(("positions", "batch"), LAYOUTS.values(), ids=LAYOUTS.keys())


@EVERY_LAYOUT
@pytest.mark.parametrize(
    "encoding", [SHAPE(50), CAPE(), Randomized(64), Randomized(64, continuous=True), PoSE(512)], ids=repr
)
def test_queries_and_keys_see_one_draw_and_the_mask_stays(encoding, positions, batch):
    moved = encoding.train().augment(positions, batch)
    assert torch.equal(moved.q, moved.k)
    assert moved.q.shape == (batch, 5)
    assert torch.equal(moved.mask(), positions.mask().expand_as(moved.mask()))
    again = encoding.augment(positions, batch)
    assert not torch.equal(again.q, moved.q)
    assert moved.start is None, "positions that moved are not known to be contiguous"


@pytest.mark.parametrize("encoding", [SHAPE(50), CAPE(), Randomized(64, testing="plain"), PoSE(64)], ids=repr)
def test_nothing_moves_outside_training(encoding):
    positions = Positions.arange(5, 7)
    assert encoding.eval().augment(positions, 3) is positions


def test_shape_shifts_each_row_by_one_number_below_its_maximum():
    positions = Positions.arange(6)
    shifts = SHAPE(4).train().augment(positions, 500).q - positions.q
    assert torch.equal(shifts, shifts[:, :1].expand(-1, 6))
    assert sorted(set(shifts[:, 0].tolist())) == [0, 1, 2, 3], "the authors' code draws 0 .. K-1"


def test_shape_on_a_grid():
    positions = Positions.grid(2, 3)
    moved = SHAPE(9).train().augment(positions, 2)
    shift = (moved.q - positions.q).flatten(1)
    assert torch.equal(shift, shift[:, :1].expand_as(shift))


def test_cape_stays_within_its_bounds_and_reaches_them():
    positions, n = Positions.arange(40), 400
    moved = CAPE(max_shift=3.0, max_jitter=0.5, max_stretch=1.2).train().augment(positions, n).q
    low, high = (positions.q - 3.5) / 1.2, (positions.q + 3.5) * 1.2
    assert (moved >= torch.minimum(low, low * 1.44)).all()
    assert (moved <= high).all()
    only_shift = CAPE(3.0, max_jitter=0.0, max_stretch=1.0).train().augment(positions, n).q - positions.q
    assert torch.allclose(only_shift, only_shift[:, :1].expand_as(only_shift), atol=1e-12)
    assert only_shift.min() < -2.8
    assert only_shift.max() > 2.8
    only_jitter = CAPE(0.0, max_jitter=0.5, max_stretch=1.0).train().augment(positions, n).q
    assert (only_jitter.diff(dim=1) > 0).all(), "a jitter below one half keeps the order"
    stretch = CAPE(0.0, max_jitter=0.0, max_stretch=1.2).train().augment(positions, n).q[:, 1]
    assert torch.allclose(stretch.log().aminmax().max, torch.tensor(math.log(1.2)).double(), atol=0.01)
    assert abs(float(stretch.log().mean())) < 0.02, "the logarithm is uniform around 0"


def test_cape_centres_each_sequence():
    centred = CAPE(centre=True).eval()
    assert centred.augment(Positions.arange(5), 1).q[0].tolist() == [-2, -1, 0, 1, 2]
    assert centred.augment(Positions.packed([2, 3]), 1).q[0].tolist() == [-0.5, 0.5, -1, 0, 1]
    assert centred.augment(Positions.from_mask(MASK), 2).q[0, 2:].tolist() == [-1, 0, 1]
    with pytest.raises(posenc.InputError, match="full sequence"):
        centred.augment(Positions.arange(1, 4), 1)


@given(n=st.integers(1, 64), seed=st.integers(0, 2**20))
def test_randomized_is_a_sorted_sample_without_replacement(n, seed):
    torch.manual_seed(seed)
    drawn = Randomized(64).train().augment(Positions.arange(n), 3).q
    assert (drawn.diff(dim=1) > 0).all()
    assert drawn.min() >= 0
    assert drawn.max() < 64


def test_randomized_draws_every_position_equally_often():
    drawn = Randomized(8).train().augment(Positions.arange(3), 4000).q
    counts = torch.bincount(drawn.flatten(), minlength=8) / 4000
    assert torch.allclose(counts, torch.full((8,), 3 / 8), atol=0.04)  # five standard errors
    assert torch.allclose(drawn.double().mean(0), torch.tensor([9 / 4, 9 / 2, 27 / 4]).double() - 1, atol=0.1)


def test_randomized_draws_for_each_document_over_the_full_range():
    drawn = Randomized(100).train().augment(Positions.packed([3, 40]), 200).q
    assert (drawn[:, :3].diff(dim=1) > 0).all()
    assert (drawn[:, 3:].diff(dim=1) > 0).all()
    assert abs(float(drawn[:, 1].double().mean()) - 49.5) < 5, "the middle of three is in the middle of the range"
    padded = Randomized(100).train().augment(Positions.from_mask(MASK[:1]), 200).q[:, 2:]
    assert abs(float(padded[:, 1].double().mean()) - 49.5) < 5


@pytest.mark.parametrize("n", [1, 3, 31, 63, 64])
def test_randomized_tests_at_the_mean_of_its_draws(n):
    encoding = Randomized(64).eval()
    spread = encoding.augment(Positions.arange(n), 1).q[0]
    expected = (torch.arange(1, n + 1) * 65 / (n + 1)).floor() - 1
    assert torch.equal(spread, expected.long())
    assert n == 1 or int(spread.diff().min()) >= 1
    assert spread.min() >= 0
    assert spread.max() < 64
    drawn = Randomized(64, testing="random").eval().augment(Positions.arange(n), 1).q
    assert drawn.shape == (1, n)


def test_random_float_sampling_sorts_uniform_numbers():
    encoding = Randomized(10, continuous=True).train()
    drawn = encoding.augment(Positions.arange(4), 20000).q
    assert bool((drawn.diff() > 0).all())
    k = torch.arange(1, 5, dtype=torch.float64)
    mean, variance = 10 * k / 5, 100 * k * (5 - k) / (25 * 6)  # of the k-th of 4 sorted uniform numbers
    torch.testing.assert_close(drawn.mean(0), mean, atol=0.06, rtol=0)
    torch.testing.assert_close(drawn.var(0), variance, atol=0.15, rtol=0)
    torch.testing.assert_close(encoding.eval().augment(Positions.arange(4), 1).q[0], mean)
    packed = Randomized(10, continuous=True).train().augment(Positions.packed([1, 3]), 20000).q
    torch.testing.assert_close(packed.mean(0), torch.tensor([5, 2.5, 5, 7.5]).double(), atol=0.08, rtol=0)
    assert not torch.equal(
        Randomized(10, testing="random", continuous=True).eval().augment(Positions.arange(4), 1).q[0], mean
    )


@given(n=st.integers(1, 40), more=st.integers(0, 60), seed=st.integers(0, 2**20))
def test_pose_moves_the_second_part_and_keeps_the_order(n, more, seed):
    torch.manual_seed(seed)
    drawn = PoSE(n + more).train().augment(Positions.arange(n), 5).q
    torch.manual_seed(seed)
    assert torch.equal(drawn, PoSE(n + more).train().augment(Positions.arange(n), 5).q)
    for row in (drawn - torch.arange(n)).tolist():
        first = row.index(max(row)) if max(row) else n
        assert row == [0] * first + [max(row)] * (n - first)
        assert max(row) <= more
        assert first == n or 1 <= first <= (n + 1) // 2


def test_pose_draws_each_cut_and_each_skip_equally_often():
    rows, n, more = 6000, 7, 3
    moved = PoSE(n + more).train().augment(Positions.arange(n), rows).q - torch.arange(n)
    skips = torch.bincount(moved[:, -1], minlength=more + 1) / rows
    assert torch.allclose(skips, torch.full((more + 1,), 1 / (more + 1)), atol=0.03)  # five standard errors
    cuts = torch.bincount((moved[moved[:, -1] > 0] == 0).sum(1), minlength=n)[1:5].double()
    assert torch.allclose(cuts / cuts.sum(), torch.full((4,), 1 / 4).double(), atol=0.035), "1 to (n + 1) // 2 tokens"


def test_pose_draws_for_each_document():
    moved = PoSE(50).train().augment(Positions.packed([4, 6]), 200).q
    skips = moved[:, [3, 9]] - torch.tensor([3, 5])
    assert (skips[:, 0] != skips[:, 1]).any()
    assert int(skips[:, 0].max()) > 40
    assert skips.max(0).values.le(torch.tensor([46, 44])).all()
    padded = PoSE(50).train().augment(Positions.from_mask(MASK), 2)
    assert padded.q[0, 2] == 0
    assert padded.q[0, 4] <= 49


def test_a_model_trains_on_moved_positions_and_tests_on_unmoved_ones():
    config = TransformerConfig(11, dim=16, num_layers=2, num_heads=2)
    x = torch.randint(11, (2, 9))
    model = Transformer(config, SHAPE(100) + Sinusoidal(16))
    plain = Transformer(config, Sinusoidal(16))
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(x), plain.eval()(x))
    assert not torch.allclose(model.train()(x), plain(x))
    relative = Transformer(config, SHAPE(100) + Rotary(8)).double()
    assert torch.allclose(relative.train()(x), relative.eval()(x), atol=1e-10), "RoPE does not see a shift"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CAPE(max_stretch=0.9), "max_stretch=0.9"),
        (lambda: CAPE(max_jitter=-1.0), "max_jitter=-1.0"),
        (lambda: Randomized(8, testing="never"), "testing 'never'"),
        (lambda: Randomized(8).augment(Positions.arange(9), 1), "9 tokens: make it larger"),
        (lambda: Randomized(8).augment(Positions.arange(1, 5), 1), "full sequence"),
        (lambda: Randomized(8).augment(Positions.from_ids([0.5, 1.0]), 1), "0 .. n-1"),
        (lambda: PoSE(8).augment(Positions.arange(9), 1), "max_length=8: a text has 9 tokens"),
        (lambda: PoSE(8).augment(Positions.arange(1, 5), 1), "PoSE draws .* full sequence"),
        (lambda: PoSE(8).augment(Positions.from_ids([3, 4]), 1), "PoSE takes inputs whose positions are 0 .. n-1"),
        (lambda: PoSE(8).augment(Positions.grid(2, 2), 1), "PoSE takes one coordinate"),
        (lambda: (SHAPE(9) + posenc.Learned(4, dim=8)).train().embed(
            torch.zeros(1, 4, 8), SHAPE(9).augment(Positions.from_ids([9, 9, 9, 9]), 1)), "outside the table"),
    ],
)  # fmt: skip
def test_refusals(make, message):
    with pytest.raises(posenc.InputError, match=message):
        make()


@pytest.mark.parametrize("encoding", [SHAPE(9), CAPE()], ids=repr)
def test_a_cache_cannot_be_trained_on(encoding):
    """The cached keys have the positions of an earlier draw."""
    with pytest.raises(posenc.InputError, match="full sequence"):
        encoding.train().augment(Positions.arange(2, 3), 1)
    assert encoding.eval().augment(Positions.arange(2, 3), 1).start == (3, 0)


@pytest.mark.parametrize("encoding", [SHAPE(9), CAPE()], ids=["shape", "cape"])
def test_tokens_without_a_place_stay_without_one(encoding):
    moved = encoding.train().augment(Positions.grid(2, 2, prefix=1), 30)
    assert moved.q_placed.tolist() == [[False] + [True] * 4]
    assert not moved.q[:, 0].any()
    assert (moved.q[:, 1] != 0).any()


def test_cape_on_a_grid_moves_each_axis():
    positions = Positions.grid(3, 4)
    shift = CAPE(5.0, max_jitter=0.0, max_stretch=1.0).train().augment(positions, 50).q - positions.q
    assert torch.allclose(shift, shift[:, :1].expand_as(shift), atol=1e-12)
    assert (shift[:, 0, 0] != shift[:, 0, 1]).all()
    jittered = CAPE(0.0, max_jitter=0.5, max_stretch=1.0).train().augment(positions, 50).q - positions.q
    assert jittered.abs().max() <= 0.5
    assert len(jittered.unique()) == jittered.numel()


@pytest.mark.parametrize("ids", [[5, 6, 7], [-1, 0, 1], [0, 1, 3], [0.0, 1.0, 2.0]])
@pytest.mark.parametrize("training", [True, False])
def test_randomized_places_texts_that_count_from_0(ids, training):
    with pytest.raises(posenc.InputError, match=r"0 \.\. n-1"):
        Randomized(16).train(training).augment(Positions.from_ids(ids), 1)


def test_randomized_places_of_long_texts_stay_apart():
    spread = Randomized(20000).eval().augment(Positions.arange(20000), 1).q
    assert (spread.diff() > 0).all()
