"""Timing on a clock that is ours, and memory of an allocation that is known."""

import math
import random

import pytest
import torch

from posenc.lab.bench.timing import CLOCKS, Effort, interleaved, ratios, spread
from posenc.lab.bench.worker import apart
from posenc.lab.machine import measurable, peak

CPU = torch.device("cpu")


class Fake:
    """A clock that only works move. Each round the machine is slower by another factor, for all alike."""

    def __init__(self, costs, drift=(1.0,)):
        self.costs, self.drift, self.seconds = costs, drift, 0.0
        self.calls: list[str] = []

    def work(self, name):
        def run():
            share = self.drift[(self.calls.count(name)) % len(self.drift)]
            self.seconds += self.costs[name] * share
            self.calls.append(name)

        return run

    def works(self):
        return {name: self.work(name) for name in self.costs}

    def clock(self, work, repeats):
        started = self.seconds
        for _ in range(repeats):
            work()
        return (self.seconds - started) / repeats


def test_ratios_are_of_the_same_round_and_drift_cancels():
    fake = Fake({"limit": 1.0, "ours": 1.5, "peer": 4.0}, drift=(1.0, 3.0, 0.5, 7.0, 2.0))
    effort = Effort(rounds=5, block=0.0, budget=math.inf)
    seconds = interleaved(fake.works(), fake.costs, fake.clock, effort, now=lambda: 0.0)
    assert [len(times) for times in seconds.values()] == [5, 5, 5]
    assert ratios(seconds["ours"], seconds["limit"]) == pytest.approx([1.5] * 5)
    assert ratios(seconds["peer"], seconds["limit"]) == pytest.approx([4.0] * 5)
    assert spread(seconds["limit"]).high == pytest.approx(7.0)
    # medians of times drawn from different rounds would differ
    assert spread(seconds["peer"]).median == pytest.approx(8.0)


def test_every_round_holds_every_candidate_in_another_order():
    fake = Fake(dict.fromkeys("abcd", 1.0))
    interleaved(fake.works(), fake.costs, fake.clock, Effort(rounds=6, block=0.0), seed=3, now=lambda: 0.0)
    rounds = [fake.calls[i : i + 4] for i in range(0, 24, 4)]
    assert all(sorted(order) == list("abcd") for order in rounds)
    assert len({tuple(order) for order in rounds}) > 2
    again = Fake(dict.fromkeys("abcd", 1.0))
    random.seed(99)  # the global generator has no say
    interleaved(again.works(), again.costs, again.clock, Effort(rounds=6, block=0.0), seed=3, now=lambda: 0.0)
    assert again.calls == fake.calls


def test_short_work_is_repeated_and_long_work_is_not():
    fake = Fake({"short": 0.001, "long": 5.0})
    interleaved(fake.works(), fake.costs, fake.clock, Effort(rounds=3, block=0.03), now=lambda: 0.0)
    assert fake.calls.count("short") == 90
    assert fake.calls.count("long") == 3


@pytest.mark.parametrize(("budget", "rounds"), [(0.0, 3), (35.0, 4), (math.inf, 9)])
def test_a_budget_ends_it_after_three_rounds_at_least(budget, rounds):
    fake = Fake({"a": 4.0, "b": 6.0})
    effort = Effort(rounds=9, block=0.0, budget=budget)
    seconds = interleaved(fake.works(), fake.costs, fake.clock, effort, now=lambda: fake.seconds)
    assert len(seconds["a"]) == len(seconds["b"]) == rounds


def test_spread_is_median_least_greatest():
    found = spread([3.0, 1.0, 2.0, 10.0])
    assert (found.median, found.low, found.high) == (2.5, 1.0, 10.0)
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize("name", ["cpu", "wall"])
def test_the_clocks_divide_by_the_calls(name):
    calls = []
    assert CLOCKS[name](lambda: calls.append(sum(range(20000))), 5) > 0
    assert len(calls) == 5


needs_linux = pytest.mark.skipif(not measurable(CPU), reason="peak memory is measured on Linux")


@needs_linux
@pytest.mark.parametrize("mebibytes", [64, 200])
def test_a_known_allocation_is_found_in_a_process_of_its_own(mebibytes):
    def allocate():
        return torch.ones(mebibytes * 2**18)

    found = apart(lambda: peak(allocate, CPU)) / 2**20
    assert mebibytes - 1 <= found <= mebibytes + 8

    def temporary():  # two at a time, one after another
        for _ in range(3):
            torch.ones(mebibytes * 2**18).add(1)

    assert 2 * mebibytes - 1 <= apart(lambda: peak(temporary, CPU)) / 2**20 <= 2 * mebibytes + 8


@needs_linux
def test_what_was_there_before_does_not_count():
    def work():
        kept = torch.ones(100 * 2**18)
        torch.ones(300 * 2**18)  # an earlier peak
        return peak(lambda: kept.sum(), CPU)

    assert apart(work) < 8 * 2**20


@needs_linux
def test_a_child_that_fails_or_dies_is_told():
    def fails():
        raise ValueError("no such size")

    with pytest.raises(RuntimeError, match="ValueError: no such size"):
        apart(fails)

    def dies():
        import os

        os._exit(7)

    with pytest.raises(RuntimeError, match=r"the process died \(exit 7"):
        apart(dies)
