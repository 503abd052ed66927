"""The dot product of codes by distance."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc.analysis import kernel
from posenc.encodings import Rotary, Sinusoidal
from posenc.errors import InputError


def test_what_it_finds_in_sinusoidal_codes():
    found = kernel("sinusoidal", 128)
    assert found.stationary
    assert float(found.mean[50]) == pytest.approx(0.4898, abs=5.1e-5)  # below that of a greater distance:
    assert float(found.mean[100]) == pytest.approx(0.5586, abs=5.1e-5)
    assert not found.monotone
    assert found.mean[found.first_rise] > found.mean[found.first_rise - 1]
    assert bool((found.mean[: found.first_rise].diff() < 0).all())
    assert found.mean[found.half] <= 0.5 < found.mean[found.half - 1]
    assert found.first_zero is None


def test_rope_has_the_kernel_of_a_sinusoidal_code_of_its_width():
    rope, code = kernel(Rotary(32, rope_theta=500.0), 64), kernel(Sinusoidal(32, base=500.0), 64)
    torch.testing.assert_close(rope.mean, code.mean)


def _loop(values):
    """Every pair one by one."""
    n, power = len(values), values.pow(2).sum(-1).mean()
    dots = [[float(values[m] @ values[m + k]) / float(power) for m in range(n - k)] for k in range(n)]
    mean = [sum(d) / len(d) for d in dots]
    spread = [(sum((x - m) ** 2 for x in d) / len(d)) ** 0.5 for d, m in zip(dots, mean, strict=True)]
    deviation = max(abs(x - m) for d, m in zip(dots, mean, strict=True) for x in d)
    return torch.tensor(mean, dtype=torch.float64), torch.tensor(spread, dtype=torch.float64), deviation


@given(n=st.integers(3, 24), dim=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_against_a_loop_over_all_pairs(n, dim, seed):
    values = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = kernel(values, n)
    mean, spread, deviation = _loop(values)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.spread, spread, atol=1e-7, rtol=1e-6)
    assert found.deviation == pytest.approx(deviation, abs=1e-12)
    assert found.tail == pytest.approx(float(mean[n // 2 :].mean()), abs=1e-12)
    assert not found.stationary


def test_a_random_table_is_no_function_of_the_distance():
    table = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    found = kernel(table, 200)
    assert not found.stationary
    assert abs(found.tail) < 64**-0.5
    assert "no function of their distance" in found.sentences()[0]


def test_a_code_that_falls_with_every_step():
    """A step function of the distance: p_m . p_n counts the channels that both have, here 1 - |m - n| / 32."""
    channels = torch.arange(96)

    def codes(at):
        return ((channels >= at[:, None]) & (channels < at[:, None] + 32)).double()

    found = kernel(codes, 64)
    assert found.stationary
    assert found.monotone
    assert found.half == 16
    assert found.first_zero == 32
    torch.testing.assert_close(found.mean, (1 - torch.arange(64).double() / 32).clamp(min=0))
    assert "never rises up to distance 63; it halves at 16, reaches zero at 32" in found.sentences()[1]
    assert "falls with every step up to distance 31" in kernel(codes, 32).sentences()[1]
    assert "falls with every step" not in " ".join(kernel("rope", 64).sentences())


def test_codes_that_only_differ_in_length_depend_on_the_place():
    found = kernel(torch.eye(3, dtype=torch.float64) * torch.tensor([1.0, 2.0, 3.0]), 3)
    assert not found.stationary
    assert "at distance 0 its standard deviation is 0.7" in found.sentences()[0]


def test_one_code_that_differs_is_enough():
    """A standard deviation over many places hides what one of them does."""
    table = torch.ones(400, 2, dtype=torch.float64)
    table[200, 0] += 1e-3
    found = kernel(table, 400)
    assert not found.stationary


@pytest.mark.parametrize(
    ("subject", "length", "match"),
    [
        ("alibi", 16, r"alibi: its codes are of distances, and no position has a code"),
        ("rope@rerope:window=4", 16, r"its codes are of distances"),
        (torch.zeros(20, 4), 16, r"every code is zero"),
        (torch.ones(20, 4), 64, r"length=64: table has codes for 20 positions"),
        ("rope", 2, r"length=2: must be at least 3"),
        (lambda p: p[:, None] * float("nan"), 8, r"not finite"),
    ],
)
def test_bad_input(subject, length, match):
    with pytest.raises(InputError, match=match):
        kernel(subject, length)
