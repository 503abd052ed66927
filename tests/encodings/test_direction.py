"""Encodings with a table for each direction: which one acts, and what a table that cannot learn says."""

import warnings

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc import InputError, Positions, from_spec
from posenc.conformance.fixtures import DECODER, tokens
from posenc.lab.transformer import Transformer

SHAPE = {"dim": DECODER.dim, "num_heads": 4, "head_dim": DECODER.width, "num_kv_heads": 2, "num_layers": 2}
DIRECTED = [name for name in posenc.ENCODINGS if "bidirectional" in posenc.ENCODINGS[name].arguments()]
EVERY = pytest.mark.parametrize("name", DIRECTED)
FEW = {"num_buckets": 8, "max_distance": 6}
LAYOUTS = {
    "causal": lambda: Positions.arange(9, causal=True),
    "cached": lambda: Positions.arange(2, 7, causal=True),
    "padded": lambda: Positions.from_mask(torch.tensor([[0] * 3 + [1] * 6, [1] * 9]), causal=True),
    "prefix": lambda: Positions.arange(9, causal=True).with_prefix(3),
    "both": lambda: Positions.arange(9),
}


def made(name, **options):
    torch.manual_seed(0)
    encoding = posenc.create(name, **SHAPE, max_positions=40, init_std=0.5, **options)
    return encoding.double()


def attend(encoding, positions):
    generator = torch.Generator().manual_seed(1)
    shapes = (4, positions.num_queries), (2, positions.num_keys), (2, positions.num_keys)
    q, k, v = (
        torch.randn(len(positions.q), *x, DECODER.width, generator=generator, dtype=torch.float64) for x in shapes
    )
    return posenc.attention(q, k, v, encoding, positions)


def test_there_are_some():
    assert set(DIRECTED) >= {"t5", "tupe_r"}


@EVERY
@pytest.mark.parametrize("layout", LAYOUTS)
def test_positions_decide_unless_told(name, layout):
    positions = LAYOUTS[layout]()
    with torch.no_grad():
        one, both, unset = (attend(made(name, bidirectional=b, **FEW), positions) for b in (False, True, None))
        assert_close(attend(made(name, **FEW), positions), unset, rtol=0, atol=0)
    assert_close(unset, one if positions.causal else both, rtol=0, atol=0)
    assert (one - both).abs().max() > 1e-3


@EVERY
@pytest.mark.parametrize("bidirectional", [None, False, True])
def test_a_direction_is_part_of_the_spec(name, bidirectional):
    encoding = made(name, bidirectional=bidirectional)
    assert from_spec(encoding.spec()).bidirectional is bidirectional
    assert made(name, causal=True).bidirectional is False
    assert made(name, causal=False).bidirectional is True


@EVERY
def test_every_bucket_of_a_causal_decoder_learns(name):
    encoding = posenc.create(name, **SHAPE, max_positions=200)
    model = Transformer(DECODER, encoding).double()
    model(tokens(1, 150)).square().sum().backward()
    table = encoding.table if name == "t5" else encoding.distances
    assert (table.grad[:, :32] != 0).any(0).all()


@EVERY
def test_half_a_table_that_cannot_learn_is_warned_of(name):
    both = made(name, bidirectional=True)
    with pytest.warns(UserWarning, match="half of its 32 buckets"):
        attend(both, LAYOUTS["causal"]())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            attend(both, LAYOUTS["causal"]())
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attend(both, LAYOUTS["both"]())
        attend(both, LAYOUTS["prefix"]())
        for bidirectional in (None, False):
            attend(made(name, bidirectional=bidirectional), LAYOUTS["causal"]())
        with torch.no_grad():
            attend(both, LAYOUTS["causal"]())
        attend(both.requires_grad_(False), LAYOUTS["causal"]())


@EVERY
def test_sizes_fit_each_direction_that_positions_may_have(name):
    made(name, bidirectional=True, max_distance=12)
    made(name, bidirectional=False, num_buckets=2)
    for sizes in ({"max_distance": 12}, {"num_buckets": 2}):
        with pytest.raises(InputError, match="max_distance"):
            made(name, **sizes)
