"""The sentences of the answer, from made-up numbers."""

import re

import pytest

from posenc.lab.evals.results import BASE, BETTER, UNDECIDED, WORSE, answer


def interval(mean, low=None, high=None):
    return {"mean": mean, "low": mean if low is None else low, "high": mean if high is None else high, "n": 16}


def results(cells, middle=None, generates=True, ranking=()):
    """Of one task and the unmodified model; cells: share or loss by (length, depth)."""
    by = "exact" if generates else "loss"
    none = {
        "method": "none",
        "cells": [
            {"length": n, "depth": d, "tokens": n, "score": None, by: interval(value)}
            for (n, d), value in cells.items()
        ],
        "by_length": [
            {"length": n, "score": None, by: interval(value), "middle": middle}
            for n, value in {n: value for (n, _), value in cells.items()}.items()
        ],
    }
    task = {"task": "passkey", "generates": generates, "methods": [none]}
    settings = {"lengths": [512]}
    return {"tasks": [task], "ranking": list(ranking), "model": {"trained_length": 512}, "settings": settings}


def between(mean, low, high, n=16):
    return {"measure": "exact", **interval(mean, low, high), "n": n}


LOST = {(256, 0.0): 1.0, (256, 0.25): 0.25, (256, 0.5): 0.0, (256, 0.75): 0.25, (256, 1.0): 0.75}


@pytest.mark.parametrize(
    ("cells", "middle", "values", "conclusion"),
    [
        (LOST, between(-0.88, -1.0, -0.1), "100 / 25 / 0 / 25 / 75 % right at depth 0 / 0.25 / 0.5 / 0.75 / 1",
         "Lost in the middle: .*−88 points, −100 to −10"),
        ({(256, 0.0): 0.9, (256, 0.3): 0.0, (256, 0.6): 0.2, (256, 1.0): 0.1}, between(-0.4, -0.6, -0.2),
         "90 / 0 / 20 / 10 % right", "Better at one end only: the end is no better"),
        ({(256, 0.0): 0.1, (256, 0.3): 0.0, (256, 0.6): 0.2, (256, 1.0): 0.9}, between(-0.4, -0.6, -0.2),
         "10 / 0 / 20 / 90 % right", "Better at one end only: the start is no better"),
        ({(256, 0.1): 0.5, (256, 0.5): 1.0, (256, 0.9): 0.5}, between(0.5, 0.25, 0.75),
         "50 / 100 / 50 % right at depth 0.1 / 0.5 / 0.9", "Better in the middle.*\\+50 points, \\+25 to \\+75"),
        ({(256, 0.0): 1.0, (256, 0.3): 0.5, (256, 1.0): 0.0}, between(-0.05, -0.4, 0.3),
         "100 / 50 / 0 % right", "undecided .−5 points, −40 to \\+30"),
        ({(256, 0.0): 0.5, (256, 1.0): 0.25}, None, "50 / 25 % right at depth 0 / 1", "$"),
    ],
)  # fmt: skip
def test_the_unmodified_model_by_depth(cells, middle, values, conclusion):
    (line,) = answer(results(cells, middle))
    assert line.startswith(f"passkey at 256 tokens, unmodified model: {values}")
    assert re.search(conclusion, line)


def test_the_unmodified_model_by_length():
    assert answer(results({(256, 0.5): 0.5, (512, 0.5): 0.25})) == [
        "passkey, unmodified model at depth 0.5: 50 / 25 % right at 256 / 512 tokens."
    ]
    assert answer(results({(256, None): 3.125, (512, None): 2.5}, generates=False)) == [
        "passkey, unmodified model: 3.12 / 2.50 nats a token at 256 / 512 tokens."
    ]


def test_the_longest_texts_where_the_middle_is_lost():
    made = results(LOST | {(512, depth): share for (_, depth), share in LOST.items()}, between(-0.2, -0.5, 0.1))
    assert answer(made)[0].startswith("passkey at 512 tokens")
    made["tasks"][0]["methods"][0]["by_length"][0]["middle"] = between(-0.8, -1.0, -0.1, n=15)
    assert answer(made)[0].startswith("passkey at 512 tokens")  # too few texts
    made["tasks"][0]["methods"][0]["by_length"][0]["middle"] = between(-0.8, -1.0, -0.1)
    assert answer(made)[0].startswith("passkey at 256 tokens")


def test_methods():
    def judged(task, verdict, against, measure="exact"):
        return {"task": task, "measure": measure, "value": interval(0.5), "against_none": against, "verdict": verdict}

    better, worse = interval(0.2, 0.1, 0.3), interval(0.0704, 0.046, 0.094)
    rows = [
        {"method": "none", "tasks": [judged("passkey", BASE, None)]},
        {
            "method": "yarn",
            "tasks": [
                judged("facts", BETTER, better),
                judged("perplexity", WORSE, worse, "loss"),
                judged("needle", UNDECIDED, interval(-0.001, -0.2, 0.2)),
                judged("copying", UNDECIDED, None),  # interrupted before both methods were measured
            ],
        },
        {"method": "ntk", "tasks": []},
    ]
    yarn, ntk = answer(results({}, ranking=rows))
    for part in ("better on facts (+20 points, +10 to +30)", "worse on perplexity (+0.070 nats, +0.046 to +0.094)",
                 "undecided on needle (+0 points, −20 to +20)", "not compared on copying"):  # fmt: skip
        assert part in yarn
    assert ntk.startswith("ntk ")
    assert "not measured" in ntk
