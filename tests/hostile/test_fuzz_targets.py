"""The targets of the fuzzer over their corpus and what a fixed seed makes of it, and sums written by a grammar."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile.fuzz_corpus import GGUFS, OPTIONS, VALUES, mutated
from hostile.fuzz_targets import TARGETS, accepts
from posenc.cli.refusal import one_line
from posenc.errors import InputError
from posenc.spec import parse_sum


@pytest.mark.parametrize("target", TARGETS)
def test_an_input_is_refused_or_holds_its_property(target):
    count = 50 if target in ("cell", "measured", "checkpoint") else 300  # these write files, or train
    taken = [accepts(target, data) for data in mutated(target, count)]
    assert any(taken)
    assert target == "line" or not all(taken)


@pytest.mark.parametrize("name", [name for name in GGUFS if name not in ("plain", "array", "alignment 0")])
def test_a_damaged_gguf_is_refused_before_it_is_read(name):
    assert not accepts("gguf", GGUFS[name])


def parts(language):
    """A name of a small language with some of its options."""
    texts = [
        st.lists(st.tuples(st.sampled_from(options), st.sampled_from(VALUES)), max_size=3).map(
            lambda given, name=name: ":".join([name, *(f"{option}={value}" for option, value in given)])
        )
        if options
        else st.just(name)
        for name, options in OPTIONS[language].items()
    ]
    return st.one_of(texts)


SUMS = {
    name: st.lists(parts(name), min_size=1, max_size=3).map("+".join) for name in ("encoding", "schedule", "method")
}
MAPPED = st.one_of(SUMS["encoding"], st.tuples(SUMS["encoding"], parts("position_map")).map("@".join))
WRITTEN = SUMS | {"encoding": st.lists(MAPPED, min_size=1, max_size=3).map("/".join)}


@pytest.mark.parametrize("language", WRITTEN)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_what_a_grammar_writes_is_refused_or_holds_its_property(language, data):
    accepts(language, data.draw(WRITTEN[language]).encode())


def test_long_texts_are_refused_at_once():
    with pytest.raises(InputError, match=r"joined by \+: join at most 64"):
        parse_sum("+".join(["rope"] * 100))


def test_a_message_keeps_its_start_and_its_remedy():
    told = one_line(f"--dim {'9' * 10**5}\x1b[2J\n: give a smaller one")
    assert told.startswith("--dim 9999")
    assert "(100004 characters)" in told
    assert told.endswith(": give a smaller one")
