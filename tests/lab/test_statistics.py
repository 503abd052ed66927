import math

import pytest
import torch

from posenc.lab.statistics import Z_975, estimate, wilson


@pytest.mark.parametrize(("of_seed", "of_window"), [(1.0, 0.2), (0.2, 2.0), (0.0, 1.0)])
def test_intervals_cover_the_truth(of_seed, of_window):
    g = torch.Generator().manual_seed(0)
    covered, trials = 0, 1500
    for _ in range(trials):
        noise = torch.randn(4, 24, generator=g).double()
        seeds, windows = torch.randn(4, 1, generator=g), torch.randn(1, 24, generator=g)
        e = estimate(3.0 + of_seed * seeds + of_window * windows + 0.5 * noise)
        covered += e.low <= 3.0 <= e.high
    assert 0.94 <= covered / trials <= 1.0


def test_one_seed_and_no_spread():
    single = estimate(torch.tensor([[1.0, 2.0, 3.0]]).double())
    assert single.mean == 2.0
    assert single.error == pytest.approx(1 / math.sqrt(3))
    flat = estimate(torch.ones(2, 3).double())
    assert (flat.error, flat.low, flat.high) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize(("hits", "count"), [(0, 8), (1, 8), (8, 8), (13, 40), (990, 1000)])
def test_a_wilson_interval_ends_where_the_share_would_be_just_rejected(hits, count):
    # its definition: the shares p whose normal approximation, with the variance under p, does not reject the observed one
    low, high = wilson(hits, count)
    assert 0 <= low <= hits / count <= high <= 1
    for end in {low, high} - {0.0, 1.0}:
        assert abs(hits / count - end) == pytest.approx(Z_975 * math.sqrt(end * (1 - end) / count), rel=1e-9)
