"""One matrix for every shift where there is one: rotations by known angles; and how far off where there is none."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc import functional
from posenc.analysis import codes_of, shift_matrix
from posenc.errors import InputError
from references import minilm


def codes8(at):
    return functional.sinusoidal(at, 8, dtype=torch.float64)


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
@pytest.mark.parametrize("shift", [1, 7, -3, 0.5, -2.5])
def test_sinusoidal_codes_have_the_matrix_of_the_formula(layout, shift):
    found = shift_matrix(f"sinusoidal:layout={layout}", shift, dim=16, length=64)
    assert torch.allclose(found.matrix, functional.shift_matrix(shift, dim=16, layout=layout), atol=1e-15)
    assert found.exact
    assert found.holds
    assert found.residual < 1e-13
    assert float(found.by_position.max()) < 1e-12  # at every t


@pytest.mark.parametrize(
    "text", ["rope", "rope:rotary_dim=32", "pope", "sinusoidal:curve=power:exponent=2", "sinusoidal:base=500", "m_rope"]
)
def test_the_fit_finds_the_known_rotation_on_the_codes(text):
    codes = codes_of(text)
    exact, fitted = shift_matrix(codes, 3, length=256), shift_matrix(codes, 3, length=256, fit=True)
    assert exact.exact
    assert not fitted.exact
    assert fitted.holds
    assert fitted.residual < 1e-8
    table = codes(torch.arange(250))
    assert torch.allclose(table @ fitted.matrix.T, table @ exact.matrix.T, atol=1e-7)


@settings(max_examples=40)
@given(a=st.integers(-40, 40).filter(bool), b=st.integers(-40, 40).filter(bool))
def test_shifts_add_up(a, b):
    first, second = (shift_matrix(codes8, k, length=256) for k in (a, b))
    table = codes8(torch.arange(256))
    together = torch.eye(8, dtype=torch.float64) if a + b == 0 else shift_matrix(codes8, a + b, length=256).matrix
    assert torch.allclose(table @ (first.matrix @ second.matrix).T, table @ together.T, atol=1e-8)
    waves = codes_of("sinusoidal").waves
    assert torch.allclose(waves.matrix(a, 64) @ waves.matrix(b, 64), waves.matrix(a + b, 64), atol=1e-13)


def test_an_untrained_table_has_no_such_matrix():
    torch.manual_seed(0)
    found = shift_matrix("learned")
    assert not found.holds
    assert found.still == pytest.approx(math.sqrt(2), rel=0.05)  # independent codes
    assert found.residual > 0.95
    assert "No one matrix" in found.sentences()[0]


def test_more_dimensions_than_positions_do_not_make_a_fit_exact():
    table = torch.randn(60, 64, generator=torch.Generator().manual_seed(0))
    found = shift_matrix(table, length=60)
    assert found.fitted == 29
    assert found.rank < 29  # all 29 directions would do: they would fit the positions that decide worse
    assert found.residual > 0.9
    assert not found.holds
    assert "A fit to 29 positions in 64 dimensions" in found.sentences()[1]


def test_integers_move_by_adding_not_by_a_matrix():
    found = shift_matrix(lambda at: at[:, None].double(), length=64)
    assert not found.holds
    assert found.added < 1e-12
    assert "Adding one vector does it everywhere" in found.sentences()[1]
    two = shift_matrix(lambda at: torch.stack((at, torch.ones_like(at)), -1).double(), length=64)
    assert two.holds
    assert torch.allclose(two.matrix, torch.tensor([[1.0, 1], [0, 1]], dtype=torch.float64), atol=1e-10)


def test_codes_that_are_all_the_same_need_no_matrix():
    assert "The identity misses by 0: codes so far apart are the same." in shift_matrix("multiplicative").sentences()
    sentences = shift_matrix("binary:bits=1", 2, length=64).sentences()  # 0 1 0 1 ..: the same at every other position
    assert "The identity misses by 0: codes so far apart are the same." in sentences
    assert not any("Adding one vector" in sentence for sentence in sentences)


def test_rounded_codes_are_shifted_to_their_rounding():
    low = shift_matrix(lambda at: functional.sinusoidal(at, 16, dtype=torch.float32))
    assert low.holds
    assert 1e-9 < low.residual < 1e-6
    assert not shift_matrix(lambda at: functional.sinusoidal(at, 16).bfloat16()).holds


@pytest.mark.parametrize(
    ("shift", "length", "message"),
    [
        (0, 64, r"shift=0: how many positions to move by"),
        (math.inf, 64, r"shift=inf"),
        (31, 64, r"length=64: must be at least 66"),
        (1, 5, r"length=5: must be at least 6"),
        (1, 100, r"length=100: table has codes for 64"),
        (0.5, 64, r"integer positions"),
    ],
)
def test_bad_arguments(shift, length, message):
    with pytest.raises(InputError, match=message):
        shift_matrix(torch.randn(64, 4), shift, length=length)


def test_the_table_of_a_trained_bert_is_not_shifted_by_a_matrix():
    found = shift_matrix(minilm.load()[0])
    assert (found.fitted, len(found.matrix)) == (255, 384)
    assert 0.05 < found.residual < found.still  # it is smooth, not shifted
    assert not found.holds
