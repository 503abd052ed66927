"""The golden vectors are what the formulas give now, and what posenc, which other tests compare with transformers, and the known answers say."""

import pytest
import torch

from posenc import frequencies
from posenc import functional as F
from posenc.conformance import golden
from posenc.conformance.kinds import FREQUENCIES, KINDS
from posenc.testing.oracles import biases, schedules

CASES = {kind: golden.cases(kind) for kind in KINDS}


def close(result, expected, **tolerance):
    torch.testing.assert_close(
        torch.as_tensor(result).double(), torch.as_tensor(expected, dtype=torch.float64), **tolerance
    )


def of_kinds(*kinds):
    """Run a test of one case on all cases of each kind."""

    def decorate(test):
        def all_cases(kind):
            for case in CASES[kind]:
                test(kind, case)

        all_cases.__doc__ = test.__doc__
        return pytest.mark.parametrize("kind", kinds)(all_cases)

    return decorate


# -------------------------------------------------------------------- the cases


def test_every_kind_has_cases_and_a_convention():
    assert CASES.keys() == KINDS.keys()
    for name, kind in KINDS.items():
        given = {argument for case in CASES[name] for argument in case.arguments}
        assert given == {*kind.arguments, *kind.options}
        assert all(set(kind.arguments) <= case.arguments.keys() for case in CASES[name])


def test_the_cases_reach_where_implementations_differ():
    assert {case.arguments["num_heads"] for case in CASES["alibi"]} >= {1, 3, 8, 12, 20}
    for kind in ("rotary", "rotary_interleaved", "rotary_partial"):
        assert max(p for case in CASES[kind] for p in case.arguments["positions"]) == 131071
        assert len({case.arguments["base"] for case in CASES[kind]}) > 1
    for case in CASES["t5"]:
        assert max(case.arguments["relative_position"]) > case.arguments["max_distance"]
        assert min(case.arguments["relative_position"]) < -case.arguments["max_distance"]


# -------------------------------------------------------------------- posenc's functions

LAYOUTS = {"rotary": "half", "rotary_interleaved": "interleaved", "rotary_partial": "half"}
CODES = {"sinusoidal": ("interleaved", False), "sinusoidal_concat": ("concat", False), "sinusoidal_endpoint": ("concat", True)}  # fmt: skip
SCHEDULES = sorted(
    name for name, kind in KINDS.items() if kind.returns == FREQUENCIES and name in frequencies.SCHEDULES
)


@of_kinds(*LAYOUTS)
def test_rotary(kind, case):
    given = case.arguments
    x, positions = torch.tensor(given["x"]).double(), torch.tensor(given["positions"])
    angles = positions.double()[:, None] * F.frequency_curve(given.get("rotary_dim", x.shape[-1]), base=given["base"])
    close(F.rotary(x, angles.cos(), angles.sin(), layout=LAYOUTS[kind]), case.expected, atol=1e-9, rtol=0)


@of_kinds(*CODES)
def test_sinusoidal(kind, case):
    layout, endpoint = CODES[kind]
    given = {**case.arguments, "positions": torch.tensor(case.arguments["positions"])}
    codes = F.sinusoidal(**given, layout=layout, endpoint=endpoint, dtype=torch.float64)
    close(codes, case.expected, atol=1e-9, rtol=0)


@of_kinds(*SCHEDULES)
def test_schedules(kind, case):
    result = frequencies.SCHEDULES[kind](**case.arguments)
    close(result.inv_freq, case.expected, rtol=1e-13, atol=0)
    assert result.attention_factor == pytest.approx(case.attention_factor, rel=1e-14)


# -------------------------------------------------------------------- known answers


def test_known_answers_of_deberta_buckets():
    distances = (127, 128, 129, 132, 150, 200, 256, 300, 400, 500, 511)
    known = [127, 128, 129, 131, 143, 169, 192, 207, 233, 254, 255]
    assert biases.deberta(distances, 256, 512).tolist() == known
    assert biases.deberta([-d for d in distances], 256, 512).tolist() == [-b for b in known]
    assert biases.deberta(range(8), 8, 32).tolist() == [0, 1, 2, 3, 4, 5, 5, 5]


def test_known_answers_of_xpos():
    """zeta of head_dim 64 begins at 0.285714 and ends at 0.977679 (torchscale's table); q and k together decay with
    the distance alone."""
    row = schedules.xpos([512, -512], 64, 512)
    assert (row[0][0], row[0][31]) == pytest.approx((0.285714, 0.977679), abs=1e-6)
    assert [a * b for a, b in zip(*row, strict=True)] == pytest.approx([1.0] * 32)
