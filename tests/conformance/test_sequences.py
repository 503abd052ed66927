"""No call leaves anything behind that another one meets: random programs over everything that is registered."""

import functools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import posenc
from posenc.conformance import sequences
from posenc.conformance.fixtures import CheckFailed, EncodingUnderTest, named, uncompiled
from posenc.conformance.sequences import (
    BASES,
    CAUSAL,
    DERIVED,
    DTYPES,
    LAYERS,
    MODES,
    WHAT,
    CallSequences,
    EncodingCall,
)
from posenc.position_maps import MAPS
from test_conformance import VARIANTS

NAMES = [*posenc.ENCODINGS, *VARIANTS]
POSITIONS = st.builds(
    lambda base, derived: (base, *derived),
    st.sampled_from(BASES),
    st.lists(st.sampled_from(list(DERIVED)), max_size=2),
)
CALL = st.builds(
    EncodingCall,
    POSITIONS,
    st.sampled_from([*WHAT, "make", "overwrite"]),
    st.sampled_from(CAUSAL),
    st.sampled_from(LAYERS),
    st.sampled_from(["auto", "reference", "sdpa", "flex"]),
    st.sampled_from(DTYPES),
    st.sampled_from(MODES),
    st.booleans(),
)
CALLS = st.lists(CALL, min_size=12, max_size=30)
QUIETLY = {"derandomize": True, "suppress_health_check": list(HealthCheck), "database": None}


@functools.cache
def sequences_of(name):
    return CallSequences(EncodingUnderTest(named(name)))


def test_every_position_map_is_among_them():
    assert set(MAPS) - {"inverse_leaky"} <= {name.split("@")[1].split(":")[0] for name in VARIANTS if "@" in name}


@settings(max_examples=25, **QUIETLY)
@given(st.sampled_from(NAMES), CALLS)
def test_a_call_is_answered_as_it_is_alone(name, calls):
    with uncompiled():
        sequences_of(name).run(calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_calls_are_answered_as_they_are_alone(name):
    @settings(max_examples=60, **QUIETLY)
    @given(CALLS)
    def many(calls):
        with uncompiled():
            sequences_of(name).run(calls)

    many()


def test_calls_that_fail_are_shortened():
    class Forgets(CallSequences):
        def __init__(self):
            pass

        def run(self, calls):
            if sum(call.what == "embed" for call in calls) >= 2:
                raise CheckFailed("twice")

    calls = sequences.in_turn("arange")
    shortest = Forgets().shortest(calls)
    assert [call.what for call in shortest] == ["embed", "embed"]
    assert str(EncodingCall(("ids", "deepcopy"), causal=True)) == (
        "attention(layer=0, causal=True, backend='auto') at ids.deepcopy in float64, no_grad"
    )
