"""No call leaves anything behind that another one meets: random programs over everything that is registered."""

import functools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import posenc
from posenc.conformance import sequences
from posenc.conformance.matrix import named
from posenc.conformance.sequences import BASES, CAUSAL, DERIVED, LAYERS, MODES, WHAT, Ask, Derive, New, Overwrite
from posenc.conformance.subject import Subject, uncompiled
from posenc.position_maps import MAPS
from test_conformance import VARIANTS

NAMES = [*posenc.ENCODINGS, *VARIANTS]
NUMBER = st.integers(0, 3)
CALL = st.builds(
    Ask,
    NUMBER,
    st.sampled_from(WHAT),
    st.sampled_from(CAUSAL),
    st.sampled_from(LAYERS),
    st.sampled_from(["auto", "reference", "sdpa", "flex"]),
    st.sampled_from(sequences.DTYPES),
    st.sampled_from(MODES),
    st.booleans(),
)
STEP = CALL | CALL | st.builds(Derive, NUMBER, st.sampled_from(list(DERIVED))) | st.builds(Overwrite, NUMBER)
PROGRAM = st.builds(
    lambda bases, steps: [*map(New, bases), *steps],
    st.lists(st.sampled_from(BASES), min_size=1, max_size=2),
    st.lists(STEP, min_size=12, max_size=30),
)
QUIETLY = {"derandomize": True, "suppress_health_check": list(HealthCheck), "database": None}


@functools.cache
def programs_of(name):
    return sequences.Sequences(Subject(named(name)))


def test_every_position_map_is_among_them():
    assert set(MAPS) - {"inverse_leaky"} <= {name.split("@")[1].split(":")[0] for name in VARIANTS if "@" in name}


@settings(max_examples=60, **QUIETLY)
@given(st.sampled_from(NAMES), PROGRAM)
def test_a_call_is_answered_as_it_is_alone(name, program):
    with uncompiled():
        programs_of(name).run(program)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_calls_are_answered_as_they_are_alone(name):
    @settings(max_examples=60, **QUIETLY)
    @given(PROGRAM)
    def many(program):
        with uncompiled():
            programs_of(name).run(program)

    many()


def test_a_program_that_fails_is_shortened():
    class Forgets(sequences.Sequences):
        def __init__(self):
            pass

        def run(self, steps):
            if sum(isinstance(step, Ask) and step.number == 1 for step in steps) >= 2:
                raise sequences.Fails("twice")

    program = [
        New("arange"), Ask(0, "embed"), Derive(0, "deepcopy"), Derive(4, "deepcopy"), Ask(1, "embed"), Ask(4, "attention"),
        New("ids"), Ask(5, "attention"), Ask(3, "embed"),
    ]  # fmt: skip
    shortest, failure = Forgets().shortest(program)
    assert str(failure) == "twice"
    assert sequences._written(shortest) == "p0 = arange; p1 = p0.deepcopy; " + "; ".join(
        [
            f"{what} at p1, float64, no_grad"
            for what in ("embed(layer=0)", "attention(causal=None, layer=0, backend='auto')")
        ]
    )
