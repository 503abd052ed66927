"""The four properties against what is known of each encoding."""

import json
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc.analysis import bounded, codes_of, deterministic, properties, steps, unique
from posenc.analysis.codes import SHAPE
from posenc.encodings import create
from posenc.errors import InputError
from posenc.functional import sinusoidal
from posenc.testing.oracles.rotations import frequencies as ladder

# ---------------------------------------------------------------- unique


def test_the_closest_two_codes_are_neighbours_at_the_known_distance():
    found = unique("sinusoidal", dim=128, search=512)
    assert found.pair == (0, 1)
    assert found.smallest == pytest.approx(math.sqrt(128 * (1 - 0.9702)), rel=1e-2)  # kappa(1) at dim 128


@pytest.mark.parametrize(
    ("text", "collision"),
    [
        ("binary:bits=10", (1024, 0)),  # 10 digits
        ("binary", (65536, 0)),
        ("t5", (17, 16)),  # the first bucket of two distances
        ("learned:beyond=clamp", (512, 511)),
        ("hierarchical:rows=20", None),  # all of 20^2
        ("alibi", None),
    ],
)
def test_first_collisions(text, collision):
    torch.manual_seed(0)
    found = unique(text, length=300)
    assert found.collision == collision
    assert found.holds == (collision is None or collision[0] >= 300)


def test_half_and_half_is_where_hierarchical_codes_collide():
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = torch.arange(25)
    halves = unique((rows[at // 5] + rows[at % 5]) / 2, length=25)  # alpha = 1/2: (i, j) is (j, i)
    assert halves.collision == (5, 1)


@pytest.mark.parametrize("refusal", [IndexError, ValueError, None])
def test_a_search_that_nobody_asked_for_ends_with_the_codes(refusal):
    def function(at):
        if refusal is not None and int(at.max()) >= 9001:
            raise refusal
        return torch.where(at[:, None] == 9001, torch.nan, at[:, None].double())

    found = unique(function)
    assert (found.searched, found.collision) == (9001, None)
    with pytest.raises(InputError, match="not finite" if refusal is None else f"failed for .* {refusal.__name__}"):
        unique(function, search=20_000)


def test_normalized_codes_are_compared_within_one_text():
    torch.manual_seed(0)
    found = unique("normalized", length=100, search=1000)
    assert found.holds
    assert found.smallest == pytest.approx(found.norm * math.sqrt(3) / 99, rel=0.01)


def table(seed, rows=60, dim=6):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), twin=st.integers(1, 59), of=st.integers(0, 58))
def test_a_planted_twin_is_found(seed, twin, of):
    of = min(of, twin - 1)
    codes = table(seed)
    codes[twin] = codes[of]
    found = unique(codes, length=60)
    assert found.collision == (twin, of)
    assert found.smallest == 0
    assert found.pair == (of, twin)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), order=st.permutations(range(60)))
def test_shuffling_rows_changes_steps_but_not_whether_they_are_unique(seed, order):
    codes = table(seed).cumsum(0)
    mixed = codes[torch.tensor(order)]
    assert unique(mixed, 60).smallest == pytest.approx(unique(codes, 60).smallest, rel=1e-12)
    assert unique(mixed, 60).holds
    if order != sorted(order) and order != sorted(order, reverse=True):
        assert steps(mixed, 60).mean[0] != pytest.approx(steps(codes, 60).mean[0].item(), rel=1e-12)


def test_far_collisions_are_found_in_linear_memory():
    codes = codes_of(lambda at: sinusoidal(at % 70_001, 16, dtype=torch.float64))
    assert unique(codes, search=100_000).collision == (70_001, 0)


def test_codes_that_shrink_to_nothing_are_distinct_until_they_round_to_zero():
    at, earlier = unique("xpos", search=100_000).collision
    assert earlier == at - 1
    assert 70_000 < at < 80_000  # where a step is below 1e-6 of a code's norm


def test_many_that_are_alike_do_not_make_it_slow():
    assert unique(lambda at: at.clamp(max=30_000)[:, None].double(), search=60_000).collision == (30_001, 30_000)
    assert unique(lambda at: torch.ones(len(at), 2)).collision == (1, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, r"length=1: must be at least 2"),
        ({"length": 600}, r"length=600: table has codes for 60 positions"),
        ({"length": 50, "search": 40}, r"search=40: must be at least 50"),
    ],
)
def test_bad_arguments_of_unique(options, message):
    with pytest.raises(InputError, match=message):
        unique(table(0), **options)


# ---------------------------------------------------------------- steps


def test_a_step_of_sinusoidal_codes_is_the_same_everywhere():
    found = steps("sinusoidal")
    assert found.holds
    assert found.uneven < 1e-12
    frequencies = ladder(64)
    expected = [math.sqrt((2 - 2 * (k * frequencies).cos()).sum()) for k in found.steps]
    assert found.mean.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_step_of_normalized_positions_shrinks_with_the_text():
    torch.manual_seed(0)
    found = steps("normalized", length=128)
    assert not found.holds
    assert found.uneven < 1e-3  # within one text all are the same
    assert found.by_length[16] / found.by_length[256] == pytest.approx(255 / 15, rel=1e-3)
    assert "depends on the text's length" in found.sentences()[1]


def test_codes_that_are_all_the_same_have_no_steps():
    found = steps(lambda at: torch.ones(len(at), 4))
    assert not found.holds
    assert found.sentences() == ["Neighbours have the same code: every step is 0 (512 positions)."]


def test_texts_of_other_lengths_are_compared_in_the_same_positions():
    found = steps("binary")
    assert list(found.by_length) == [64, 128, 256, 512, 1024]
    first = [(t ^ (t + 1)).bit_count() ** 0.5 for t in range(63)]  # digits that a carry flips
    assert list(found.by_length.values()) == pytest.approx([sum(first) / 63] * 5)
    assert found.uneven_lengths == 0


def test_steps_that_do_not_fit_are_left_out():
    assert steps("sinusoidal", length=10).steps == [1, 2, 4, 8]


# ---------------------------------------------------------------- bounded


def test_sinusoidal_codes_are_as_long_everywhere():
    found = bounded("sinusoidal")
    assert found.holds
    assert (found.inside, found.past) == pytest.approx((math.sqrt(32), math.sqrt(32)))
    assert found.defined_to == found.up_to == 16 * 512


def test_integers_grow_like_the_position():
    torch.manual_seed(0)
    found = bounded("integer", trained=100, up_to=1000)
    assert not found.holds
    assert found.past / found.inside == pytest.approx(999 / 99, rel=1e-5)
    assert "10.1 times as much" in found.sentences()[1]


def test_a_table_ends_and_that_is_a_finding():
    found = bounded(table(0))
    assert not found.holds
    assert (found.trained, found.defined_to) == (60, 60)
    assert found.sentences()[1] == "From position 60 on there is no code: it is made for 60."
    assert found.to_dict()["past"] is None
    with pytest.raises(InputError, match=r"trained=61"):
        bounded(table(0), trained=61)


def test_where_a_function_ends_is_found():
    def function(at):
        if int(at.max()) >= 777:
            raise IndexError("index out of range")
        return at[:, None].cos()

    found = bounded(function, trained=100)
    assert (found.defined_to, found.refusal) == (777, "index out of range")
    assert "From position 777 on there is no code: index out of range." in found.sentences()
    hole = bounded(lambda at: torch.where(at == 9000, torch.nan, at.double().cos())[:, None], up_to=20_000)
    assert (hole.defined_to, hole.holds) == (9000, False)
    assert "9000 is not finite" in hole.refusal
    assert bounded(lambda at: 1 / (900 - at.clamp(max=900)).float()[:, None], trained=100).defined_to == 900
    assert found.past <= 1


def test_the_search_goes_past_the_trained_length():
    with pytest.raises(InputError, match=r"up_to=512: must be at least 513"):
        bounded("sinusoidal", up_to=512)


# ---------------------------------------------------------------- deterministic


@pytest.mark.parametrize("text", ["sinusoidal", "rope", "alibi", "learned", "t5", "binary", "pope", "tupe"])
def test_fixed_codes_are_deterministic(text):
    found = deterministic(text, 64)
    assert found.holds
    assert set(found.differences) == {"again", "order", "beside", "alone", "prefix", "training"}
    assert len(found.sentences()) == 1


def test_normalized_codes_depend_on_the_company():
    torch.manual_seed(0)
    found = deterministic("normalized", 64)
    assert not found.holds
    assert found.differences["again"] == found.differences["order"] == 0
    assert min(found.differences[aspect] for aspect in ("alone", "prefix", "beside")) > 0.1


@pytest.mark.parametrize("name", ["shape", "cape", "randomized", "pose"])
def test_positions_moved_in_training_are_another_code_in_it(name):
    encoding = create(f"{name}+sinusoidal", **SHAPE)
    assert encoding.training
    found = deterministic(encoding, 64)
    assert not found.holds
    assert found.differences["again"] == 0
    assert found.differences["training"] > 0.1
    assert encoding.training  # as it was
    assert any("in training" in sentence for sentence in found.sentences())


def test_modes_are_put_back_part_by_part():
    encoding = create("shape+sinusoidal", **SHAPE).eval()
    encoding.parts[1].train()
    deterministic(encoding, 16)
    assert [encoding.training, *(part.training for part in encoding.parts)] == [False, False, True]


@pytest.mark.parametrize("name", ["shape+sinusoidal", "randomized+sinusoidal", "pose+sinusoidal"])
def test_what_is_drawn_in_training_is_the_same_and_nobody_elses(name):
    encoding = create(name, **SHAPE)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = deterministic(encoding, 32).differences
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert deterministic(encoding, 32).differences == first


def test_a_pass_in_training_leaves_no_trace():
    class Normed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(1)

        def forward(self, at):
            return self.norm(at[:, None].float())

    module = Normed().eval()
    found = deterministic(module, 32)
    assert found.differences["training"] > 0.1
    assert module.norm.running_mean == 0
    assert module.norm.num_batches_tracked == 0
    assert not module.norm.training


@pytest.mark.parametrize("noise", [torch.rand, np.random.rand, lambda n, _: [[random.random()] for _ in range(n)]])
def test_a_noisy_function_is_measured_not_refused(noise):
    found, again = (deterministic(lambda at: at[:, None] + torch.as_tensor(noise(len(at), 1)), 64) for _ in range(2))
    assert found.differences == again.differences
    assert found.differences["again"] > 0
    assert "asked for a second time" in found.sentences()[0]


def test_refused_positions_are_reported():
    found = deterministic("randomized+sinusoidal", 64)
    assert math.isinf(found.differences["alone"])
    assert "The code of a position raises an error when asked for alone." in found.sentences()
    assert found.to_dict()["differences"]["alone"] is None


# ---------------------------------------------------------------- all four

VERDICTS = {  # unique, even steps, bounded and defined, deterministic
    "sinusoidal": (True, True, True, True),
    "rope": (True, True, True, True),
    "integer": (True, True, False, True),
    "normalized": (True, False, True, False),
    "binary": (True, False, False, True),
    "learned": (True, False, False, True),
    "t5": (False, False, True, True),
    "alibi": (True, True, False, True),
    "shape+sinusoidal": (True, True, True, False),
}


@pytest.mark.parametrize("text", VERDICTS)
def test_verdicts(text):
    torch.manual_seed(0)
    found = properties(text, 128, search=1000, max_positions=128)
    four = found.unique, found.steps, found.bounded, found.deterministic
    assert tuple(one.holds for one in four) == VERDICTS[text]
    assert [sentence.split(": ")[1][:2] in ("ye", "no") for sentence in found.sentences()] == [True] * 4
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_small_table_is_measured_as_far_as_it_goes():
    assert properties(table(0)).unique.length == 60
