"""The lines of the answer, from made-up numbers."""

from posenc.lab.evals.results import BASE, BETTER, UNDECIDED, WORSE, answer


def interval(mean, low=None, high=None):
    return {"mean": mean, "low": mean if low is None else low, "high": mean if high is None else high, "n": 16}


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
    assert answer({"ranking": rows}) == [
        "yarn against the unmodified model: better on facts (+20 points, +10 to +30); worse on perplexity (+0.070 nats, "
        "+0.046 to +0.094); undecided on needle (+0 points, −20 to +20).",
        "ntk against the unmodified model: not measured yet.",
    ]
