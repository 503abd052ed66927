"""Every public name with every hostile value: a right result, or InputError that names what to change.

`POSENC_FUZZ=minutes pytest tests/hostile/test_library.py -m slow` tries combinations for so long.
"""

import contextlib
import os
import random
import time
from inspect import isclass, isfunction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import posenc
from hostile import library, library_models
from hostile.values import bad_values
from posenc import InputError, Positions
from posenc.blocks import Cache
from posenc.transformer import Transformer, TransformerConfig

ROWS = library.rows()
TOLD_APART = {"Positions", "Explanation", "InputError", "Encoding", "evaluate"}
"""Classes that have rows by their constructors, or that nobody makes; and what takes its arguments as evals.Settings."""

SLOW_ANALYSES = {
    "add_or_concat", "analyze", "base_bound", "breakers", "codes_of", "counter", "curves", "decay_asymptote",
    "decay_integral", "diagonal_parts", "digits", "equivariance", "expansion", "first_zero", "four_terms",
    "longest_length", "random_dots", "rope_bound", "smallest_base", "subspaces", "survival", "trained_model", "twins", "vector_model",
}  # fmt: skip
"""Analyses that are checked by the types they declare, and have no row of their own."""


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    """Where what takes a text for a folder may write."""
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        yield


def test_every_public_name_has_a_row():
    known = {name.split(" ")[0] for name in ROWS} | set(library_models.rows())
    public = {name for name in posenc.__all__ if isclass(value := getattr(posenc, name)) or isfunction(value)}
    assert public - known - TOLD_APART - set(library.ABSTRACT) == set()
    for module in ("functional", "frequencies", "position_maps"):
        names = library.public(f"posenc.{module}")
        assert {f"{module}.{name}" for name in names if name not in library.INTERNAL} - known == set()
    methods = {name for name in dir(Positions) if name[0] != "_" and callable(getattr(Positions, name))}
    unspoilt = {
        "at",
        "batch",
        "distances",
        "for_pass",
        "knowing",
        "lengths",
        "mask_mod",
        "moved",
        "of_images",
        "own",
        "require_one_axis",
        "require_whole",
        "shared",
    }
    without = {"visible_counts"}  # takes no argument
    assert {f"Positions.{name}" for name in methods - unspoilt - without} - known <= {"Positions.own"}
    assert library_models.unlisted() == SLOW_ANALYSES


@pytest.mark.parametrize("name", sorted(ROWS))
def test_one_bad_argument_at_a_time(name):
    """Of every argument some values, drawn by a fixed seed; all of them with -m slow."""
    tried = list(library.cases(ROWS[name]))
    random.Random(name).shuffle(tried)
    assert library.faults(ROWS[name], tried[:24]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(library.every()))
def test_every_bad_argument(name):
    row = library.every()[name]
    assert library.faults(row, list(library.cases(row))) == {}


def combinations(name: str, data: st.DataObject) -> None:
    """Two or three arguments at once are bad."""
    row = ROWS[name]
    arguments, hints = library.good_arguments(row), row.hints()
    chosen = data.draw(st.lists(st.sampled_from(sorted(hints)), min_size=1, max_size=3, unique=True))
    bad = {n: data.draw(st.sampled_from(list(bad_values(hints[n], arguments.get(n)))), label=n) for n in chosen}
    found, why = library.outcome(row, arguments, bad, library.outcome_of(row, library.good_arguments(row)))
    assert found != "wrong", why


SEVERAL = sorted(name for name, row in ROWS.items() if row.hints())


@settings(max_examples=150, derandomize=True)
@given(st.sampled_from(SEVERAL), st.data())
def test_several_bad_arguments(name, data):
    combinations(name, data)


@pytest.mark.slow
@pytest.mark.skipif("POSENC_FUZZ" not in os.environ, reason="POSENC_FUZZ says for how many minutes")
def test_several_bad_arguments_for_minutes():
    end = time.monotonic() + 60 * float(os.environ["POSENC_FUZZ"])

    @settings(max_examples=500, database=None)
    @given(st.sampled_from(SEVERAL), st.data())
    def tried(name, data):
        combinations(name, data)

    while time.monotonic() < end:
        tried()


# ---------------------------------------------------------------- nothing is half changed


@pytest.mark.parametrize("rotated", [False, True])
def test_a_refused_call_leaves_a_cache_as_it_was(rotated):
    model = Transformer(TransformerConfig(11, 16, 2, 2), posenc.T5(2) if not rotated else posenc.Rotary(8)).eval()
    cache, tokens = Cache(rotated), torch.arange(5)[None]
    model(tokens, cache=cache)
    before = dict(cache.layers)
    with pytest.raises(InputError, match=r"positions"):
        model(tokens, Positions.arange(5, 9, causal=True), cache)
    with pytest.raises(InputError, match=r"tokens from 0 to 11"):
        model(torch.tensor([[0, 11]]), cache=cache)
    assert len(cache) == 5
    assert all(a is b for layer in before for a, b in zip(before[layer], cache.layers[layer], strict=True))


@pytest.mark.parametrize(
    ("method", "factor"), [("yarn", 0.5), ("nonsense", 2.0), ("yarn", float("nan")), (5, 2.0), ("", 2.0)]
)
@pytest.mark.parametrize("extended", [False, True])
def test_a_refused_extension_leaves_the_model_as_it_was(method, factor, extended):
    model = library_models.llama()
    if extended:
        posenc.extend(model, "ntk", factor=4.0)
    before = library_models.state(model)
    try:
        with pytest.raises(InputError):
            posenc.extend(model, method, factor=factor)
        assert library_models.state(model) == before
    finally:
        posenc.restore(model)


# ---------------------------------------------------------------- what was silently wrong


@pytest.mark.parametrize("encoding", [posenc.NoPE(), posenc.ALiBi(4), posenc.T5(4)], ids=str)
@pytest.mark.parametrize("which", range(3))
def test_channels_apart_in_memory_are_read_as_they_are(encoding, which):
    """PyTorch's flash kernel for CPUs takes the channels to be next to one another, without a look."""
    good = list(library.tensors().values())
    odd = list(good)
    odd[which] = torch.stack((good[which], good[which]), -1)[..., 0]
    positions = Positions.arange(library.SEQ, causal=True)
    expected = posenc.attention(*good, encoding, positions, sink=0.0, backend="reference")
    torch.testing.assert_close(posenc.attention(*odd, encoding, positions, sink=0.0), expected)
