"""What the answer says of made-up numbers: one sentence for every combination of depths, lengths and measures."""

import pytest

from posenc.lab.evals.results import BASE, BETTER, SAME, WORSE, answer


def interval(mean, low=None, high=None):
    return {"mean": mean, "low": mean if low is None else low, "high": mean if high is None else high}


def results(cells, middle=None, generates=True, ranking=()):
    """Of one task and the model as it is; cells: share or loss by (length, depth)."""
    by = "exact" if generates else "loss"
    none = {
        "method": "none",
        "cells": [{"length": n, "depth": d, "score": None, by: interval(found)} for (n, d), found in cells.items()],
        "by_length": [
            {"length": n, "score": None, by: interval(found), "middle": middle}
            for n, found in {n: found for (n, _), found in cells.items()}.items()
        ],
    }
    task = {"task": "passkey", "generates": generates, "methods": [none]}
    return {"tasks": [task], "ranking": list(ranking), "model": {"trained_length": 512}}


def between(mean, low, high):
    return {"measure": "exact", **interval(mean, low, high)}


LOST = {(256, 0.0): 1.0, (256, 0.25): 0.25, (256, 0.5): 0.0, (256, 0.75): 0.25, (256, 1.0): 0.75}


@pytest.mark.parametrize(
    ("cells", "middle", "told"),
    [
        (
            LOST,
            between(-0.88, -1.0, -0.1),
            "passkey at 256 tokens, the model as it is: 100 % right at the start, 75 % right at the end and 0 % right at "
            "depth 0.5 between them, the worst there. Lost in the middle: between the two ends it finds 88 points less "
            "than at them (10 to 100).",
        ),
        (
            {(256, 0.0): 0.9, (256, 0.3): 0.0, (256, 0.6): 0.2, (256, 1.0): 0.1},
            between(-0.4, -0.6, -0.2),
            "passkey at 256 tokens, the model as it is: 90 % right at the start, 10 % right at the end and 0 % right at "
            "depth 0.3 between them, the worst there. Found at one end: what stands at the end is found no better than "
            "what stands between the two.",
        ),
        (
            {(256, 0.1): 0.5, (256, 0.5): 1.0, (256, 0.9): 0.5},
            between(0.5, 0.25, 0.75),
            "passkey at 256 tokens, the model as it is: 50 % right at depth 0.1, 50 % right at depth 0.9 and 100 % right at "
            "depth 0.5 between them. Better in the middle: between the two ends it finds 50 points more than at them "
            "(25 to 75).",
        ),
        (
            {(256, 0.0): 1.0, (256, 0.3): 0.5, (256, 0.6): 0.5, (256, 1.0): 0.0},
            between(-0.05, -0.4, 0.3),
            "passkey at 256 tokens, the model as it is: 100 % right at the start, 0 % right at the end and 50 % right "
            "everywhere between them. Between the two ends it finds 5 points less than at them, and these texts leave "
            "open whether it loses the middle (from 40 points less to 30 more).",
        ),
        (
            {(256, 0.0): 1.0, (256, 0.5): 1.0, (256, 1.0): 1.0},
            between(0.0, -0.33, 0.33),
            "passkey at 256 tokens, the model as it is: 100 % right at every depth, no depth is better or worse than "
            "another here.",
        ),
        (
            {(256, 0.0): 0.0, (256, 0.5): 0.0, (256, 1.0): 0.0},
            between(0.0, -0.33, 0.33),
            "passkey at 256 tokens, the model as it is: 0 % right at every depth, nothing is found here.",
        ),
        (
            {(256, 0.0): 0.5, (256, 1.0): 0.25},
            None,
            "passkey at 256 tokens, the model as it is: 50 % right at the start and 25 % right at the end.",
        ),
        (
            {(256, 0.5): 0.5, (512, 0.5): 0.25},
            None,
            "passkey, the model as it is, at depth 0.5: 50 % right at 256 tokens and 25 % right at 512 tokens.",
        ),
        ({(256, None): 0.5}, None, "passkey, the model as it is: 50 % right at 256 tokens."),
    ],
)
def test_the_model_as_it_is(cells, middle, told):
    assert answer(results(cells, middle)) == [told]


def test_losses():
    assert answer(results({(256, None): 3.125, (512, None): 2.5}, generates=False)) == [
        "passkey, the model as it is: 3.12 nats a token at 256 tokens and 2.50 nats a token at 512 tokens."
    ]
    by_depth = {(256, 0.0): 4.0, (256, 0.25): 5.0, (256, 0.5): 6.0, (256, 1.0): 1.0}
    assert answer(results(by_depth, generates=False)) == [
        "passkey at 256 tokens, the model as it is: 4.00 nats a token at the start, 1.00 nats a token at the end and 6.00 "
        "nats a token at depth 0.5 between them, the worst there."
    ]


def test_the_longest_texts_where_the_middle_is_lost():
    found = results(LOST | {(512, depth): share for (_, depth), share in LOST.items()}, between(-0.2, -0.5, 0.1))
    assert answer(found)[0].startswith("passkey at 512 tokens")
    found["tasks"][0]["methods"][0]["by_length"][0]["middle"] = between(-0.8, -1.0, -0.1)
    assert answer(found)[0].startswith("passkey at 256 tokens")


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
                judged("needle", SAME, interval(-0.001, -0.2, 0.2)),
                judged("copying", SAME, None),  # interrupted before both arms had it
            ],
        },
        {"method": "ntk", "tasks": []},
    ]
    assert answer(results({}, ranking=rows)) == [
        "yarn against the model as it is: better on facts (+20 points, +10 to +30); worse on perplexity (+0.070 nats a "
        "token, +0.046 to +0.094); no measurable difference on needle (+0 points, −20 to +20); not compared on copying.",
        "ntk against the model as it is: nothing measured yet.",
    ]
