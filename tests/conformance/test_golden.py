"""The golden vectors are what the formulas give now, and what posenc, transformers and the known answers say."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from posenc import frequencies
from posenc import functional as F
from posenc.conformance import golden
from posenc.conformance.kinds import FREQUENCIES, KINDS
from posenc.testing.oracles import biases, schedules
from references.schedules import of_transformers

CASES = {kind: golden.cases(kind) for kind in KINDS}


def close(result, expected, **tolerance):
    torch.testing.assert_close(
        torch.as_tensor(result).double(), torch.tensor(expected, dtype=torch.float64), **tolerance
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
    close(result.inv_freq, case.expected["inv_freq"], rtol=1e-13, atol=0)
    assert result.attention_factor == pytest.approx(case.expected["attention_factor"], rel=1e-14)


@of_kinds("alibi")
def test_alibi(kind, case):
    close(F.alibi_slopes(**case.arguments), case.expected, rtol=1e-14, atol=0)


@of_kinds("t5")
def test_t5(kind, case):
    given = {**case.arguments, "relative_position": torch.tensor(case.arguments["relative_position"])}
    assert F.t5_bucket(**given).tolist() == case.expected


# -------------------------------------------------------------------- transformers


@of_kinds("rotary", "rotary_interleaved")
def test_rotary_is_that_of_transformers(kind, case):
    x = torch.tensor(case.arguments["x"]).double()
    angles = torch.tensor(case.arguments["positions"]).double()[:, None] * F.frequency_curve(
        x.shape[-1], base=case.arguments["base"]
    )
    if kind == "rotary":
        table = torch.cat((angles, angles), -1)[None]
        result = llama.apply_rotary_pos_emb(x, x, table.cos(), table.sin())[0]
    else:
        turned = gptj.apply_rotary_pos_emb(x.transpose(1, 2), angles.sin()[None], angles.cos()[None])
        result = turned.transpose(1, 2)
    close(result, case.expected, atol=1e-9, rtol=0)


@of_kinds("linear", "yarn", "llama3", "proportional", "dynamic", "longrope")
def test_schedules_are_those_of_transformers(kind, case):
    options = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    options |= case.arguments
    options |= {"seq_len": options.pop("length")} if "length" in options else {}
    options |= {"max_positions": options.pop("original_max_positions")} if kind == "dynamic" else {}
    inv_freq, attention_factor = of_transformers(kind, **options)
    close(inv_freq, case.expected["inv_freq"], rtol=4e-6, atol=0)
    assert attention_factor == pytest.approx(case.expected["attention_factor"], rel=1e-12)


@of_kinds("ntk")
def test_ntk_is_transformers_dynamic_with_the_ratio_of_lengths(kind, case):
    given = case.arguments
    length = int(512 * given["factor"])
    inv_freq, _ = of_transformers(
        "dynamic", given["head_dim"], given["base"], factor=1.0, max_positions=512, seq_len=length
    )
    close(inv_freq, case.expected["inv_freq"], rtol=4e-6, atol=0)


@of_kinds("alibi")
def test_slopes_are_those_of_bloom_and_mpt(kind, case):
    heads = case.arguments["num_heads"]
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]  # slope * position 1
    close(bloom, case.expected, rtol=4e-6, atol=0)
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]  # slope * (position 0 - position 1)
    close(mpt, case.expected, rtol=4e-6, atol=0)


@of_kinds("t5")
def test_buckets_are_those_of_t5attention(kind, case):
    given = {**case.arguments, "relative_position": torch.tensor(case.arguments["relative_position"])}
    assert T5Attention._relative_position_bucket(**given).tolist() == case.expected


@of_kinds("deberta")
def test_buckets_are_those_of_deberta(kind, case):
    given = case.arguments
    result = make_log_bucket_position(torch.tensor(given["relative_position"]), given["buckets"], given["max_position"])
    assert result.long().tolist() == case.expected


# -------------------------------------------------------------------- known answers


def test_known_answers_of_yarn():
    """The stretch of every fourth frequency, computed once outside posenc from the authors' code."""
    plain = schedules.default(64, 1e4)
    pairs = (0, 4, 8, 12, 16, 20, 24, 28, 31)
    known = {
        schedules.yarn: (1, 1, 1, 1.3, 1.857143, 3.25, 4, 4, 4),
        schedules.yarn_paper: (1, 1, 1, 2.104468, 3.282292, 3.988135, 4, 4, 4),
        schedules.llama3: (1, 1, 1, 1, 1.227185, 3.880699, 4, 4, 4),
    }
    for formula, stretch in known.items():
        scaled = formula(64, 1e4, 4.0, 2048)
        assert [plain[c] / scaled[c] for c in pairs] == pytest.approx(stretch, rel=1e-6)


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
