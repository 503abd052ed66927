# SPDX-License-Identifier: Apache-2.0
"""benchmarks/law_fit.py: known curves are found again, and what cannot be known is said to be so."""

import law_fit
import numpy as np
import pytest

BUDGETS = (1, 2, 4, 8)


def cells(sizes, budgets=BUDGETS, noise=0.0, seeds=(0, 1)):
    """alibi's fall needs half the text of rope's and costs 1.25 of its compute a megabyte: a multiplier of 2 / 1.25."""
    random, found = np.random.default_rng(1), []
    for size in sizes:
        for encoding, share, dear in (("rope", 1.0, 1.0), ("alibi", 0.5, 1.25)):
            for seed in seeds:
                for budget in budgets:
                    loss = 0.5 + 40.0 * size**-0.34 + 1.2 * (budget / share) ** -0.4
                    each = {"length": list(loss + noise * random.standard_normal(64))}
                    cell = {
                        "size": f"{size / 1e6:.1g}M",
                        "encoding": encoding,
                        "seed": seed,
                        "rate": 1.0,
                        "budget": budget,
                    }
                    weights = size + 24 * (encoding == "alibi")  # an encoding may have some, and is of the same size
                    more = {"weights": weights, "flops": dear * 1e12 * budget * size, "validation": loss}
                    found.append({"cell": cell, "prose": each, "code": each, **more})
    return found


@pytest.mark.parametrize("sizes", [(590_336,), (590_336, 3_000_000)])
def test_a_known_multiplier_is_found(sizes):
    some = law_fit.points(cells(sizes, noise=0.02), {"rope": 1.0, "alibi": 1.0})
    fit = law_fit.fitted(law_fit.means(some))
    assert fit.b == pytest.approx(0.4, abs=0.1)
    found = law_fit.multipliers(some, draws=40)
    for budget in (1, 2, 4):
        value, low, high = found["alibi", sizes[0], budget]
        assert low <= value <= high
        assert value == pytest.approx(1.6, rel=0.1)


def test_what_is_not_reached_or_not_fitted_is_not_known():
    some = law_fit.points(cells((590_336,)), {"rope": 1.0, "alibi": 1.0})
    assert np.isfinite(
        law_fit.multipliers(some, draws=5)["alibi", 590_336, 8][0]
    )  # at 16 MB of rope, twice the greatest
    beyond = [p for p in some if p.encoding != "rope" or p.budget <= 4]
    assert all(np.isnan(law_fit.multipliers(beyond, draws=5)["alibi", 590_336, 8]))
    assert law_fit.multipliers([p for p in some if p.budget <= 2], draws=5) == {}


@pytest.mark.parametrize(("budgets", "words"), [((1, 2), "Not known"), (BUDGETS, "compute multiplier")])
def test_the_page_says_what_is_known(budgets, words):
    some = cells((590_336,), budgets)
    for rate in (0.5, 2.0):
        some += [
            {**c, "cell": {**c["cell"], "rate": rate}, "validation": 9.0} for c in some if c["cell"]["budget"] == 1
        ]
    page = law_fit.page(some, draws=5)
    assert words in page
    assert ("Not known" in page) == (budgets == (1, 2))
    assert "| `alibi` | 1 |" in page


def test_trainings_that_do_not_count_are_left_out():
    some = cells((590_336,))
    for rate, validation in ((0.5, 9.0), (2.0, None)):
        some.append({**some[0], "cell": {**some[0]["cell"], "rate": rate}, "validation": validation})
    assert len(law_fit.points(some, {"rope": 1.0})) == 2 * len(BUDGETS)
