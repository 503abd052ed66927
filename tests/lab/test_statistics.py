import math

import pytest
import torch
from pairs import BENJAMINI_HOCHBERG, HOLM, contrast, different, found
from scipy.special import stdtrit
from scipy.stats import false_discovery_control, ttest_1samp, ttest_rel

from posenc.errors import InputError
from posenc.lab.statistics import Z_975, average, chances, estimate, moderated, near_best, wilson  # fmt: skip


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


def test_means_differ_where_corrected_paired_tests_reject():
    noise = torch.Generator().manual_seed(5)
    values = torch.randn(6, 9, generator=noise, dtype=torch.float64) + torch.tensor([0, 0, 0.8, 2, 2, 6.0])[:, None]
    pairs = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    chances = sorted((ttest_rel(values[i], values[j]).pvalue, i, j) for i, j in pairs)
    rejected = 0
    while rejected < len(chances) and chances[rejected][0] * (len(chances) - rejected) <= 0.05:
        rejected += 1
    adjusted = false_discovery_control([chance for chance, _, _ in chances])
    expected = {HOLM: rejected, BENJAMINI_HOCHBERG: sum(adjusted <= 0.05)}
    assert 0 < expected[HOLM] < expected[BENJAMINI_HOCHBERG] < len(pairs)
    for correction, count in expected.items():
        found = different(values, correction)
        assert {(i, j) for i, j in pairs if found[i, j]} == {(i, j) for _, i, j in chances[:count]}
        assert torch.equal(found, found.T)


def test_two_rows_over_seeds_differ_where_the_interval_of_their_difference_is_off_zero():
    noise = torch.Generator().manual_seed(1)
    outcomes = set()
    for _ in range(60):
        values = torch.randn(2, 4, 12, generator=noise) + torch.tensor([0.0, 1.1])[:, None, None]
        values = values + torch.randn(2, 4, 1, generator=noise)
        e = estimate(values[0] - values[1])
        outcomes.add(bool(different(values)[0, 1]))
        assert bool(different(values)[0, 1]) == (not e.low <= 0 <= e.high)
        both = contrast(values, 0, 1)
        assert (both.mean, both.low, both.high) == pytest.approx((e.mean, e.low, e.high), abs=1e-6)
    assert outcomes == {True, False}
    assert not different(torch.zeros(3, 4, 5)).any()


def test_corrections_are_stepwise():
    """Of 0.01, 0.035 and 0.04 Holm's ends with the second, and Benjamini and Hochberg's begins from the last."""
    for by_chance, holm, hochberg in (([0.04, 0.02], 2, 2), ([0.04, 0.01, 0.035], 1, 3), ([], 0, 0)):
        assert found(torch.tensor(by_chance)).sum() == holm
        assert found(torch.tensor(by_chance), BENJAMINI_HOCHBERG).sum() == hochberg


def simulated(draws, rows, seeds, texts, world):
    """Encodings of equal means: trainings vary alike, each its own way, or learn with the same probability or do not."""
    noise = torch.randn(rows, seeds, 1, generator=draws).double()
    if world == "own":
        noise = noise * torch.randn(rows, 1, 1, generator=draws).double().exp()
    elif world == "jump":
        noise = 5 * (torch.rand(rows, seeds, 1, generator=draws) < 0.5).double() + 0.1 * noise
    return noise + torch.randn(rows, seeds, texts, generator=draws) + 0.5 * torch.randn(rows, 1, texts, generator=draws)


@pytest.mark.parametrize("world", ["alike", "own", "jump"])
def test_tables_of_equal_encodings_show_differences_as_rarely_as_stated(world):
    """Of few seeds: where each pair had its own variance, most such tables had some."""
    draws, tables = torch.Generator().manual_seed(4), 150
    wrong = own = 0
    for _ in range(tables):
        values = simulated(draws, 30, 4, 24, world)
        wrong += bool(different(values, BENJAMINI_HOCHBERG, jumps=world == "jump").any())
        first, second = torch.triu_indices(30, 30, 1)
        gaps = values.mean(2)[first] - values.mean(2)[second]
        own += bool(found(torch.tensor(ttest_1samp(gaps, 0, axis=1).pvalue), BENJAMINI_HOCHBERG).any())
    assert wrong / tables <= 0.05 + 3 * (0.05 * 0.95 / tables) ** 0.5
    if world == "jump":
        assert own / tables > 0.3


def test_variances_are_drawn_together_as_far_as_they_agree():
    draws = torch.Generator().manual_seed(0)
    alike, freedom = moderated(simulated(draws, 40, 4, 24, "alike"))
    assert freedom > 8
    assert alike.max() / alike.min() < 12
    values = simulated(draws, 40, 4, 24, "own")
    own, few = moderated(values)
    assert 3 < few < 15
    assert own.max() / own.min() > 30
    assert bool((moderated(values, jumps=True)[0] >= own).all())


def test_moderated_tests_find_more_than_those_of_each_pair():
    draws = torch.Generator().manual_seed(9)
    effects = torch.arange(12)[:, None, None] // 2 * 2.0
    values = effects + simulated(draws, 12, 4, 24, "alike")
    gaps = values.mean(2)[:, None] - values.mean(2)
    first, second = torch.triu_indices(12, 12, 1)
    own = found(torch.tensor(ttest_1samp(gaps[first, second], 0, axis=1).pvalue), BENJAMINI_HOCHBERG)
    assert different(values, BENJAMINI_HOCHBERG)[first, second].sum() > own.sum()
    assert float(chances(values)[0, 11]) < 1e-4


def test_near_the_best_is_a_probability_and_no_bonus_for_variance():
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(4, 4, 32, generator=draws).double()
    means = torch.tensor([0.0, 0.03, 0.5, 5.0]).double()[:, None, None]
    steady = near_best(means + 0.01 * noise, 0.05)
    assert steady.tolist() == [1, pytest.approx(1, abs=0.05), 0, 0]
    wild = torch.tensor([-3.0, 1.0, 2.0, 2.0]).double()[:, None]  # one lucky training among four
    values = torch.stack((0.01 * noise[0], 0.3 + wild + 0.01 * noise[1]))
    sure, unsure = near_best(values, 0.05).tolist()
    assert 0 < unsure < 0.4 < sure < 1
    assert torch.equal(near_best(values, 0.05), near_best(values, 0.05))
    assert near_best(torch.zeros(3, 5), 0).tolist() == [1, 1, 1]
    with pytest.raises(InputError, match="two samples or more"):
        near_best(torch.zeros(3, 1), 0.1)


def test_an_average_covers_the_truth_and_is_of_equal_weights():
    draws, covered = torch.Generator().manual_seed(0), 0
    for _ in range(400):
        tasks = [k + torch.randn(4, 1, generator=draws) + torch.randn(1, 24, generator=draws) for k in range(3)]
        e = average([task.double() for task in tasks])
        covered += e.low <= 1.0 <= e.high
    assert covered / 400 >= 0.93
    assert e.mean == pytest.approx(sum(float(task.mean()) for task in tasks) / 3)


def test_intervals_of_several_comparisons_are_wider():
    values = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    one, ten = estimate(values), estimate(values, 10)
    assert ten.mean == one.mean
    assert ten.high - ten.mean == pytest.approx((one.high - one.mean) * stdtrit(7, 0.9975) / stdtrit(7, 0.975))
