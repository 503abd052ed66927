"""RoPE's decay bound, and the base's bound on the length of context."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import posenc
from posenc.analysis import analyze, base_bound, longest_length, smallest_base
from posenc.errors import InputError
from posenc.frequencies.schedules import first_negative


@pytest.mark.parametrize(
    ("head_dim", "base", "first"), [(128, 1e4, 1707), (128, 5e5, 18438), (128, 1e6, 27115), (64, 1e5, 3616)]
)
def test_longest_lengths_known(head_dim, base, first):
    assert longest_length(base, head_dim) == first


def test_the_search_ends_at_the_limit():
    theta = posenc.frequencies.default(128).inv_freq
    assert first_negative(theta, limit=1707) is None
    assert first_negative(theta, limit=1708) == 1707
    assert first_negative(theta, block=100) == 1707


KNOWN = {1024: 4.3e3, 2048: 1.2e4, 4096: 2.7e4, 8192: 8.4e4}


@pytest.mark.parametrize("length", KNOWN)
def test_smallest_bases_known(length):
    """Su's numbers for 128 channels, to the two digits that he gives."""
    assert float(f"{smallest_base(length, 128):.1e}") == KNOWN[length]


@pytest.mark.parametrize(("length", "base"), [(32768, 6.3e5), (65536, 2.1e6), (131072, 4.9e6)])
def test_smallest_bases_known_of_long_texts(length, base):
    assert float(f"{smallest_base(length, 128, step=1e-4):.1e}") == base


@settings(max_examples=20)
@given(length=st.integers(1, 200), pairs=st.sampled_from([4, 8, 16]))
def test_it_is_the_smallest_on_its_grid(length, pairs):
    step = 0.02
    found = smallest_base(length, 2 * pairs, step=step)

    def holds(base):
        return longest_length(base, 2 * pairs, limit=length) is None

    assert holds(found)
    below, tried = found / (1 + step), 0
    while below > 1 + step and tried < 60:
        assert not holds(below)
        below, tried = below / (1 + step), tried + 1


@pytest.mark.parametrize(("base", "longest", "verdict"), [(1e4, 725, "beyond"), (10.0, 5, "short of")])
def test_a_base_beside_the_smallest(base, longest, verdict):
    found = base_bound(base, 64, 128, step=0.01)
    assert (found.lengths, found.longest) == ((128, 512), longest)
    assert found.bases == (smallest_base(128, 64, step=0.01), smallest_base(512, 64, step=0.01))
    assert f"first negative at {longest}, {verdict} the length of training, 128." in found.summary()


@pytest.mark.parametrize("schedule", ["default", "linear:factor=4", "ntk:factor=4"])
def test_a_report_is_of_the_frequencies_that_rotate(schedule):
    rotary = posenc.Rotary(64, schedule=posenc.frequencies.parse(schedule))
    assert analyze(rotary, length=64)["base"].finding.longest == first_negative(rotary.inv_freq)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: longest_length(-1.0, 64), r"base=-1.0"),
        (lambda: smallest_base(0, 64), r"length=0"),
        (lambda: smallest_base(100, 63), r"head_dim=63"),
        (lambda: smallest_base(100, 64, step=0.0), r"step=0.0"),
        (lambda: smallest_base(100, 2, step=1.0), r"at every base up to 1e\+15"),
    ],
)
def test_bad_input(call, match):
    with pytest.raises(InputError, match=match):
        call()
