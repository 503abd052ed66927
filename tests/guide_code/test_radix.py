"""Positions as numbers: the binary counter, and the digits of RoPE under schedules."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guide_code import counter, digits
from posenc.encodings import Sinusoidal
from posenc.positions import Positions
from posenc.testing.oracles.rotations import frequencies


@given(length=st.integers(2, 600), bits=st.integers(1, 12))
def test_a_sine_of_a_bits_period_is_positive_where_it_is_one(length, bits):
    found = counter(length, bits)
    assert torch.equal(found.waves > 0, found.bits == 1)
    written = [int("".join(str(int(b)) for b in row.flip(0)), 2) for row in found.bits]
    assert written == [n % 2**bits for n in range(length)]


def test_the_counters_codes_are_the_sinusoidal_encodings():
    found = counter(50, 6, base=500.0)
    codes = Sinusoidal(12, base=500.0).codes(Positions.arange(50))[0]
    torch.testing.assert_close(found.codes, codes[:, 0::2])
    torch.testing.assert_close(found.wavelengths, math.tau / frequencies(12, 500.0))
    largest, smallest = found.code_steps
    assert largest == pytest.approx(smallest)
    assert smallest == pytest.approx(float((codes[1] - codes[0]).norm()))
    assert found.bit_steps == (pytest.approx(math.sqrt(6)), 1.0)  # 31 to 32 flips six bits


@given(n=st.lists(st.integers(0, 10**6 - 1), min_size=1, max_size=20), beta=st.sampled_from([2, 3, 10]))
def test_digits_of_an_integer_base(n, beta):
    """With base = beta^(head_dim/2) they are the digits that everybody writes."""
    pairs = math.ceil(6 / math.log10(beta)) + 1
    found = digits(n, 2 * pairs, float(beta**pairs))
    assert found.beta == beta
    assert found.values.tolist() == [[(number // beta**c) % beta for c in range(pairs)] for number in n]


def test_extrapolation_and_interpolation():
    plain, linear = digits([0], 128), digits([0], 128, schedule="linear")
    full = int((plain.trained >= math.tau).sum())
    assert plain.beyond == list(range(full, 64))
    assert torch.equal(plain.squeeze, torch.ones(64).double())
    assert linear.beyond == []
    torch.testing.assert_close(linear.reached[full:], linear.trained[full:])
    torch.testing.assert_close(linear.squeeze, torch.full((64,), 4.0).double())
    assert "furthest pair 54" in plain.sentences()[2]
    assert "All pairs are compressed 4 times" in linear.sentences()[3]


@pytest.mark.parametrize(
    ("schedule", "first", "last"),
    [("ntk", 1.0, 4.0), ("ntk_old", 1.0, 4 ** (126 / 128)), ("ntk_fixed", 4 ** (2 / 128), 4.0)],
)
def test_conversions_of_the_base(schedule, first, last):
    """beta becomes beta * factor^(2/d), or bloc97's factor^(2/(d-2)), and squeezes pair after pair a little more."""
    found = digits([0], 128, schedule=schedule)
    assert float(found.squeeze[0]) == pytest.approx(first)
    assert float(found.squeeze[-1]) == pytest.approx(last)
    assert bool((found.squeeze.diff() > 0).all())
    # the middle digits that did not finish a turn go on beyond what they met: the known weakness of all three
    assert set(range(46, 62)) <= set(found.beyond)
    assert bool((found.unseen < digits([0], 128).unseen)[50:].all())


def test_a_pair_that_a_schedule_stops():
    found = digits([3], 32, schedule="proportional:fraction=0.5", length=64)
    assert bool(found.squeeze[8:].isinf().all())
    assert "at the same angle" in found.sentences()[3]
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["squeeze"][-1] is None
