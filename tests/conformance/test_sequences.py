"""Earlier calls do not change later ones: random sequences of calls over everything that is registered."""

import pytest

import posenc
from posenc.conformance.fixtures import EncodingUnderTest, named, uncompiled
from posenc.conformance.sequences import BASES, CallSequences
from posenc.position_maps import MAPS
from test_conformance import VARIANTS

NAMES = [*posenc.ENCODINGS, *VARIANTS]
FAST = [*posenc.ENCODINGS, *VARIANTS[::4]]


def test_every_position_map_is_among_them():
    assert set(MAPS) - {"inverse_leaky"} <= {name.split("@")[1].split(":")[0] for name in VARIANTS if "@" in name}


@pytest.mark.parametrize("name", [name for name in FAST if "floater" not in name])  # whose ODE takes long
def test_a_call_is_answered_as_it_is_alone(name):
    """From a third of the bases in turn; the slow test has all."""
    with uncompiled():
        CallSequences(EncodingUnderTest(named(name))).compare(seed=1, bases=BASES[FAST.index(name) % 3 :: 3])


@pytest.mark.parametrize("name", NAMES)
def test_many_calls_are_answered_as_they_are_alone(name):
    sequences = CallSequences(EncodingUnderTest(named(name)))
    with uncompiled():
        for seed in range(1, 9):
            sequences.compare(seed)
