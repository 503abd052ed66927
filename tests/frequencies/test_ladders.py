# SPDX-License-Identifier: Apache-2.0
"""MrRoPE and HoPE: loops over the authors' formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from posenc import frequencies
from posenc.testing.oracles.schedules import default
from references.schedules import BASES, DIMS, LENGTHS


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


def test_a_ramp_within_one_pair_stays_finite():
    for progressive in (True, False):
        made = frequencies.mrrope(8, base=500.0, factor=4.0, original_max_positions=6, progressive=progressive)
        assert bool(made.inv_freq.isfinite().all())
        assert frequencies.stretch(made, 8, base=500.0)[-1] == 4


# -------------------------------------------------------------------- HoPE


def test_hope_is_tapered_hard_at_the_trained_length():
    # HoPE, as others read it (praxis, encoding/hope.py): pairs of less than one turn in training pass unrotated
    for base, length in ((1e4, 512), (5e5, 8192)):
        actual = frequencies.tapered(64, base=base, original_max_positions=length, hard=True).inv_freq
        expected = [f if f > 2 * math.pi / length else 0.0 for f in default(64, base)]
        assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
        assert 0 < sum(f == 0 for f in expected) < 32
