"""The lines of the answer, from made-up numbers."""

from posenc.lab.evals.results import BASE, BETTER, UNDECIDED, WORSE, answer


def interval(mean, low=None, high=None):
    return {"mean": mean, "low": mean if low is None else low, "high": mean if high is None else high, "n": 16}


def results(cells, middle=None, generates=True, ranking=()):
    """Of one task and the unmodified model; cells: share or loss by (length, depth)."""
    by = "exact" if generates else "loss"
    none = {
        "method": "none",
        "cells": [{"length": n, "depth": d, "score": None, by: interval(value)} for (n, d), value in cells.items()],
        "by_length": [
            {"length": n, "score": None, by: interval(value), "middle": middle}
            for n, value in {n: value for (n, _), value in cells.items()}.items()
        ],
    }
    return {"tasks": [{"task": "passkey", "generates": generates, "methods": [none]}], "ranking": list(ranking)}


DEPTHS = {(256, 0.0): 1.0, (256, 0.5): 0.25, (256, 1.0): 0.75, (512, 0.0): 0.5, (512, 0.5): 0.0, (512, 1.0): 0.5}


def test_methods():
    def judged(task, verdict, against, measure="exact"):
        return {"task": task, "measure": measure, "value": interval(0.5), "against_none": against, "verdict": verdict}

    rows = [
        {"method": "none", "tasks": [judged("passkey", BASE, None)]},
        {
            "method": "yarn",
            "tasks": [
                judged("facts", BETTER, interval(0.2, 0.1, 0.3)),
                judged("perplexity", WORSE, interval(0.0704, 0.046, 0.094), "loss"),
                judged("needle", UNDECIDED, interval(-0.001, -0.2, 0.2)),
                judged("copying", UNDECIDED, None),  # interrupted before both methods were measured
            ],
        },
        {"method": "ntk", "tasks": []},
    ]
    assert answer(results({}, ranking=rows)) == [
        "yarn against the unmodified model: better on facts (+20 points, +10 to +30); worse on perplexity (+0.070 nats, "
        "+0.046 to +0.094); undecided on needle (+0 points, −20 to +20).",
        "ntk against the unmodified model: not measured yet.",
    ]
