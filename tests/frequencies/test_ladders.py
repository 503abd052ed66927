# SPDX-License-Identifier: Apache-2.0
"""MrRoPE, EVQ-Cosh, Moebius RoPE and HoPE: loops over the authors' formulas, and what the papers say of them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from posenc import InputError, Positions, Rotary, frequencies
from posenc.testing.oracles.schedules import default

DIMS = st.integers(2, 96).map(lambda n: 2 * n)
BASES = st.sampled_from([1e4, 5e5, 1e6])
LENGTHS = st.integers(64, 200000)


def radixes(head_dim, base, factor, length, progressive):
    """The radix of each pair, by which its successors are divided: eq. 15 of MrRoPE, counted from 0."""
    ends = [head_dim / 2 * math.log(length / (turns * 2 * math.pi)) / math.log(base) for turns in (32, 1)]
    low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), head_dim - 1)
    n = high - low
    for pair in range(head_dim // 2):
        if not low <= pair < high:
            yield 1.0
        elif progressive:
            yield factor ** (2 * (1 + pair - low) / ((1 + n) * n))
        else:
            yield factor ** (1 / n)


@pytest.mark.parametrize("progressive", [True, False])
@given(head_dim=DIMS, base=BASES, factor=st.floats(1, 64), length=LENGTHS)
def test_mrrope_divides_by_the_product_of_the_radixes_before(progressive, head_dim, base, factor, length):
    options = {"factor": factor, "original_max_positions": length}
    actual = frequencies.mrrope(head_dim, base=base, **options, progressive=progressive)
    plain, product, expected = default(head_dim, base), 1.0, []
    for pair, radix in enumerate(radixes(head_dim, base, factor, length, progressive)):
        expected.append(plain[pair] / product)
        product *= radix
    assert_close(actual.inv_freq, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    assert actual.attention_factor == frequencies.yarn(head_dim, base=base, **options).attention_factor


@pytest.mark.parametrize(
    ("dim", "base", "length", "factor"), [(128, 1e4, 4096, 16.0), (64, 5e5, 8192, 4.0), (128, 1e6, 32768, 2.5)]
)
def test_mrrope_is_the_expression_of_the_authors_code(dim, base, length, factor):
    # scaled_rope/LlamaYaRNRadix.py: yarn_radix3 (Pro) and yarn_radix (Uni), with YaRN's find_correction_range
    low, high = (
        f(dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base)))
        for f, turns in ((math.floor, 32), (math.ceil, 1))
    )
    plain = frequencies.default(dim, base=base).inv_freq.tolist()
    for progressive in (True, False):
        expected = []
        for i, f in enumerate(plain):
            middle = (
                (i + 1 - low) * (i - low) / ((high - low) * (high - low + 1))
                if progressive
                else (i - low) / (high - low)
            )
            expected.append(f / factor ** (0 if i < low + 1 else 1 if i > high - 1 else middle))
        actual = frequencies.mrrope(
            dim, base=base, factor=factor, original_max_positions=length, progressive=progressive
        )
        assert_close(actual.inv_freq, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_radixes_grow_in_mrrope_and_shrink_in_the_papers_yarn():
    # the argument of MrRoPE: lambda_j < lambda_(j+1) under Pro, > under YaRN as its paper states it, equal under Uni
    def between(name, **options):
        made = frequencies.create(
            {"name": name, "factor": 8.0, "original_max_positions": 4096, **options}, 128, base=1e4
        )
        stretch = frequencies.stretch(made, 128, base=1e4)
        middle = stretch[(stretch > 1 + 1e-9) & (stretch < 8 - 1e-9)]
        return middle.log().diff().diff()

    assert bool((between("mrrope") > 0).all())
    assert bool((between("mrrope", progressive=False).abs() < 1e-12).all())
    assert bool((between("yarn_paper") < 0).all())


def test_a_ramp_within_one_pair_stays_finite():
    for progressive in (True, False):
        made = frequencies.mrrope(8, base=500.0, factor=4.0, original_max_positions=6, progressive=progressive)
        assert bool(made.inv_freq.isfinite().all())
        assert frequencies.stretch(made, 8, base=500.0)[-1] == 4


# -------------------------------------------------------------------- EVQ-Cosh


@given(head_dim=DIMS, base=BASES, tau=st.floats(1e-3, 20))
def test_evq_cosh_is_the_inverse_of_its_density(head_dim, base, tau):
    actual = frequencies.evq_cosh(head_dim, base=base, tau=tau).inv_freq.tolist()
    pairs = head_dim // 2
    for c, f in enumerate(actual):
        phi = -math.log(f) / math.log(base)
        # the integral of tau cosh(tau (1 - x)) / sinh(tau) from 0 to phi is the pair's share (c + 1/2) / pairs
        below = 1 - math.sinh(tau * (1 - phi)) / math.sinh(tau)
        assert below == pytest.approx((c + 0.5) / pairs, abs=1e-9)


def test_evq_cosh_is_the_expression_of_the_authors_code():
    # scripts/lib/rope/schedules.py, evq_cosh_phi with midpoint=True
    for head_dim, base, tau in ((64, 5e5, 1.5), (128, 1e4, 4.0)):
        u = (torch.arange(head_dim // 2, dtype=torch.float64) + 0.5) / float(head_dim // 2)
        phi = 1.0 - (1.0 / tau) * torch.asinh((1.0 - u) * math.sinh(tau))
        theirs = torch.pow(torch.tensor(base, dtype=torch.float64), -phi)
        assert_close(frequencies.evq_cosh(head_dim, base=base, tau=tau).inv_freq, theirs, rtol=1e-13, atol=0)


def test_evq_cosh_without_tau_follows_from_width_and_length_and_is_geometric_at_0():
    a, b = frequencies.evq_cosh(64, original_max_positions=1024), frequencies.evq_cosh(64, tau=64 / 32)
    assert torch.equal(a.inv_freq, b.inv_freq)
    half_a_step = 10000.0 ** (-1 / 64)
    geometric = frequencies.default(64).inv_freq * half_a_step
    assert_close(frequencies.evq_cosh(64, tau=0.0).inv_freq, geometric, rtol=1e-13, atol=0)
    assert_close(frequencies.evq_cosh(64, tau=1e-6).inv_freq, geometric, rtol=1e-10, atol=0)
    for options, named in (({}, "pass tau, or original_max_positions"), ({"tau": -1.0}, "tau=-1.0"),
                           ({"tau": 701.0}, "tau=701"), ({"original_max_positions": 0}, "original_max_positions=0")):  # fmt: skip
        with pytest.raises(InputError, match=named):
            frequencies.evq_cosh(64, **options)


# -------------------------------------------------------------------- Moebius RoPE


def test_over_the_trained_length_the_anti_periodic_rotation_is_minus_one():
    length = 24
    rope = Rotary(8, schedule={"name": "anti_periodic", "original_max_positions": length})
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    at = [Positions.from_ids([n + k * length for n in range(5)]) for k in range(3)]
    once, half, full = (rope.rotate(x, x, positions)[0] for positions in at)
    assert_close(half, -once)
    assert_close(full, once)


@given(pairs=st.integers(1, 64), length=st.integers(2, 4096), share=st.floats(0, 1))
def test_its_mean_cosine_is_the_dirichlet_kernel(pairs, length, share):
    distance = 1 + round(share * (length - 2))
    theta = frequencies.anti_periodic(2 * pairs, original_max_positions=length).inv_freq
    expected = math.sin(2 * pairs * math.pi * distance / length) / (2 * pairs * math.sin(math.pi * distance / length))
    assert (distance * theta).cos().mean().item() == pytest.approx(expected, abs=1e-9)


def test_anti_periodic_refuses_no_length():
    with pytest.raises(InputError, match="original_max_positions=0"):
        frequencies.anti_periodic(8, original_max_positions=0)


# -------------------------------------------------------------------- HoPE


def test_hope_is_tapered_hard_at_the_trained_length():
    # HoPE, as others read it (praxis, encoding/hope.py): pairs of less than one turn in training pass unrotated
    for base, length in ((1e4, 512), (5e5, 8192)):
        actual = frequencies.tapered(64, base=base, original_max_positions=length, hard=True).inv_freq
        expected = [f if f > 2 * math.pi / length else 0.0 for f in default(64, base)]
        assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
        assert 0 < sum(f == 0 for f in expected) < 32
