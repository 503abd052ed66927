"""Timing on a clock that is ours, and memory of an allocation that is known."""

import math
import os
import random
import signal
import time

import pytest
import torch
from bench.measure import in_new_process

from posenc.lab.machine import measurable, peak
from posenc.lab.timing import Effort, interleaved, ratios, spread

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
    assert spread(seconds["limit"])["high"] == pytest.approx(7.0)
    # medians of times drawn from different rounds would differ
    assert spread(seconds["peer"])["median"] == pytest.approx(8.0)


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


@pytest.mark.parametrize(("budget", "rounds"), [(0.0, 3), (35.0, 4), (math.inf, 9)])
def test_a_budget_ends_it_after_three_rounds_at_least(budget, rounds):
    fake = Fake({"a": 4.0, "b": 6.0})
    effort = Effort(rounds=9, block=0.0, budget=budget)
    seconds = interleaved(fake.works(), fake.costs, fake.clock, effort, now=lambda: fake.seconds)
    assert len(seconds["a"]) == len(seconds["b"]) == rounds


needs_linux = pytest.mark.skipif(not measurable(CPU), reason="peak memory is measured on Linux")


def peaks(mebibytes, announce):
    """Of one allocation, of two at a time, and of reading alone."""
    size = mebibytes * 2**18

    def two():
        for _ in range(3):
            torch.ones(size).add(1)

    tensor = torch.ones(size)
    torch.ones(3 * size)  # an earlier peak
    return peak(lambda: torch.ones(size), CPU), peak(two, CPU), peak(lambda: tensor.sum(), CPU)


@needs_linux
def test_known_allocations_are_measured_in_a_new_process():
    one, two, none = (found / 2**20 for found in in_new_process(peaks, 200))
    assert 199 <= one <= 208
    assert 399 <= two <= 408
    assert none < 8


def fails(announce):
    announce("nearly there")
    print("not a result")
    raise ValueError("no such size")


def dies(announce):
    os._exit(7)


def hangs(announce):
    announce("first")
    time.sleep(600)


def is_killed(announce):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_fails_or_dies_is_reported(capfd):
    names = []
    with pytest.raises(RuntimeError, match="ValueError: no such size"):
        in_new_process(fails, announce=names.append)
    assert names == ["nearly there"]
    with pytest.raises(RuntimeError, match=r"the process died \(exit code 7"):
        in_new_process(dies)
    with pytest.raises(RuntimeError, match=r"the process died \(SIGKILL, out of memory\?"):
        in_new_process(is_killed)
    assert capfd.readouterr().out == ""


def test_a_candidate_that_hangs_is_stopped_and_the_others_are_measured(monkeypatch):
    announced = []
    with pytest.raises(RuntimeError, match=r"the process hangs: it was stopped after 0.5 s without a sign"):
        in_new_process(hangs, announce=announced.append, seconds=0.5)
    assert announced in (["first"], [])
