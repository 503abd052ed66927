"""The integral of cos(x theta(t)): against mpmath and scipy, its asymptotes and first zeros."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from guide_code import curves, decay_integral, first_zero, rope_bound
from posenc import Positions
from posenc.encodings import Rotary
from posenc.errors import InputError

FAR = [1e-8, 0.3, 4.99, 5.01, 7.0, 41.0, 1234.5, 1e5, 1e8]


@pytest.mark.parametrize("base", [0.3, 1.5, 10.0, 1e4, 1e8])
def test_geometric_curves_against_mpmath(base):
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        b = mpmath.mpf(base)
        wanted = [float((mpmath.ci(mpmath.mpf(x)) - mpmath.ci(mpmath.mpf(x) / b)) / mpmath.log(b)) for x in FAR]
    torch.testing.assert_close(
        decay_integral(FAR, base=base), torch.tensor(wanted, dtype=torch.float64), atol=8e-15, rtol=0
    )


@pytest.mark.parametrize("exponent", [0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 5.0, 50.0])
def test_power_curves_against_mpmath(exponent):
    """Re 1F1(s; s+1; ix) with s = 1/exponent."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(40):
        s = 1 / mpmath.mpf(exponent)
        wanted = [float(mpmath.re(mpmath.hyp1f1(s, s + 1, mpmath.mpc(0, x)))) for x in FAR]
    found = decay_integral(FAR, "power", exponent=exponent)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), atol=8e-15, rtol=0)


@pytest.mark.parametrize("base", [1e-6, 1.1, 1e6])
@pytest.mark.parametrize("x", [0.0, 5e-324, 1e-300, 1e-8, 1.01e-8, 1e-6])
def test_at_no_distance_it_is_one(x, base):
    pytest.importorskip("scipy")
    assert float(decay_integral(x, "geometric", base)) == pytest.approx(1, abs=1e-9 + (x * max(1, 1 / base)) ** 2)


@pytest.mark.parametrize(
    ("curve", "base", "exponent", "zero"),
    [
        ("geometric", 1e4, 1.0, 6166),
        ("geometric", 1e8, 1.0, 61650548),
        ("geometric", 100.0, 1.0, 60.6524),
        ("geometric", 1e20, 1.0, 0.6165054856207162e20),
        ("power", 1.0, 1.0, math.pi),
        ("power", 1.0, 0.5, 2.3311),
        ("power", 1.0, 2.0, None),
    ],
)
def test_first_zeros(curve, base, exponent, zero):
    assert first_zero(curve, base, exponent) == (None if zero is None else pytest.approx(zero, rel=3e-5))


@given(exponent=st.floats(0.05, 4))
@settings(max_examples=15)
def test_a_power_curve_without_a_zero_has_none_further_out(exponent):
    zero = first_zero("power", exponent=exponent)
    far = torch.cat([torch.arange(0.0, 200, 0.5), torch.arange(1e5, 1e5 + 7, 0.5)]).double()
    found = decay_integral(far if zero is None else far[far < zero], "power", exponent=exponent)
    assert bool((found > 0).all())


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (([1.0], "cubic"), r"unknown curve 'cubic'.*geometric, power"),
        (([1.0], "geometric", 0.0), r"base=0.0"),
        (([1.0], "power", 1.0, -1.0), r"exponent=-1.0"),
        (([math.nan],), r"x has values that are not finite"),
    ],
)
def test_bad_input(arguments, match):
    with pytest.raises(InputError, match=match):
        decay_integral(*arguments)


def test_curves_are_the_integrals():
    x = torch.arange(100.0)
    found = curves(x, (1000.0,), (2.0,))
    assert found.names == ("1000^-t", "t^2")
    torch.testing.assert_close(found.integrals[1], decay_integral(x, "power", exponent=2.0))


def test_which_base_a_length_wants():
    """Su's choice of 1000 for texts of some 500: its integral stays above zero up to 617."""
    found = curves(torch.arange(617.0), (1000.0,), ())
    assert found.smallest_base == pytest.approx(1000, rel=2e-3)
    assert bool((decay_integral(torch.arange(616.0), base=found.smallest_base) > 0).all())
    assert "from a base of about 999.2 on" in found.sentences()[-1]


def test_bounds_known():
    found = rope_bound([0, 1, 10, 50, 100, 128, 200, 256], 128)
    wanted = torch.tensor([32.5, 31.5382, 17.9541, 12.6295, 10.2273, 9.2729, 7.2448, 6.5431]).double()
    torch.testing.assert_close(found, wanted, atol=5.1e-5, rtol=0)


@given(seed=st.integers(0, 10**6), pairs=st.integers(2, 16), base=st.floats(1.5, 1e6), at=st.integers(0, 4000))
def test_it_bounds_every_score(seed, pairs, base, at):
    """|score| <= max |h_(j+1) - h_j| * sum |S_(j+1)|, with h_j from the vectors and the score from our own rotation."""
    draw = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, 1, 1, 2 * pairs, generator=draw, dtype=torch.float64) for _ in range(2))
    rope = Rotary(2 * pairs, rope_theta=base, layout="interleaved")
    turned_q, turned_k = rope.rotate(q, k, Positions.from_ids([at], [0]))
    score = float((turned_q * turned_k).sum())
    h = torch.view_as_complex(q.view(pairs, 2)) * torch.view_as_complex(k.view(pairs, 2)).conj()
    steps = torch.cat((h, h.new_zeros(1))).diff().abs().max()
    bound = rope_bound(at, 2 * pairs, base) * pairs
    assert abs(score) <= float(steps * bound) * (1 + 1e-12)


def test_the_bound_is_reached():
    """Equal pairs: h is constant, its only step is the last, and the score at distance zero is one of the sums."""
    assert float(rope_bound(0, 8)) == pytest.approx((1 + 2 + 3 + 4) / 4)
