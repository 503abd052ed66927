"""Every diagnosis of `conform` is brought out by a function that is wrong in that way; right ones pass."""

import json
import math
import sys

import pytest
import torch

from posenc import InputError, frequencies
from posenc import functional as F
from posenc.conformance import conform, formulas
from posenc.conformance.faults import ATTENTION_FACTORS, FAULTS
from references.mutants import CACHE, MUTANTS, RIGHT, codes, slopes, turn, yarn


@pytest.fixture(autouse=True)
def _empty_cache():
    CACHE.clear()


@pytest.mark.parametrize(("kind", "function", "words"), MUTANTS, ids=[f"{kind}: {words}" for kind, _, words in MUTANTS])
def test_a_fault_is_named(kind, function, words):
    verdict = conform(function, kind)
    assert not verdict.passed
    for part in words.split("; "):
        assert any(part in finding for finding in verdict.findings), str(verdict)
        assert part in str(verdict)
    assert json.loads(json.dumps(verdict.to_dict()))["findings"] == list(verdict.findings)


def test_every_known_fault_has_a_mutant():
    reported = [part for _, _, words in MUTANTS for part in words.split("; ")]
    known = {fault for faults in FAULTS.values() for fault in faults} | ATTENTION_FACTORS.keys()
    assert not [name for name in known if not any(part in name or name in part for part in reported)]


@pytest.mark.parametrize(("kind", "function"), RIGHT)
def test_a_right_function_conforms(kind, function):
    verdict = conform(function, kind)
    assert verdict.passed, str(verdict)
    assert str(verdict).startswith(f"{kind}: conforms")
    assert verdict.example is None
    assert verdict.cases > 0


def test_what_was_not_judged_is_reported():
    verdict = conform(lambda d, b, s, L: yarn(d, b, s, L), "yarn")
    assert any("no attention factor was returned" in note for note in verdict.notes)
    assert any("42 cases with beta_fast, beta_slow, truncate were left out" in note for note in verdict.notes)
    assert not conform(frequencies.yarn, "yarn").notes
    assert conform(frequencies.yarn, "yarn").cases == verdict.cases + 42


def test_memory_is_filled_while_a_function_is_tested_only():
    filled = []

    def empties(num_heads):
        filled.append(bool(torch.empty(num_heads).isnan().all()))
        return F.alibi_slopes(num_heads)

    assert conform(empties, "alibi").passed
    assert filled
    assert all(filled)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_first_difference_is_shown():
    verdict = conform(slopes, "alibi")
    assert verdict.example == "for num_heads=3: at [0] expected 0.0625, got 0.15749013"
    assert verdict.largest_error == pytest.approx(slopes(112)[-1] / float(F.alibi_slopes(112)[63]) - 1, abs=20)


def test_state_between_calls_is_noticed():
    calls = []

    def counting(head_dim, base):
        calls.append(head_dim)
        return [f * (1 + 1e-9 * len(calls)) for f in formulas.default(head_dim, base)]

    assert conform(counting, "default").findings == (
        "state between calls: the first call, repeated at the end, gives another result",
    )


def test_the_old_module_warns():
    sys.modules.pop("posenc.conformance.diagnose", None)
    with pytest.warns(DeprecationWarning, match="use posenc.conformance"):
        from posenc.conformance.diagnose import conform as old
    assert old is conform


def test_an_unknown_kind_is_named():
    with pytest.raises(InputError, match="did you mean 'yarn'"):
        conform(slopes, "yran")


def test_cases_that_are_not_offered_are_left_out_and_counted():
    def fixed_base(positions, dim, base):
        if base != 10000:
            raise NotImplementedError
        return codes(positions, dim, base)

    def nothing(positions, dim, base):
        raise NotImplementedError

    verdict = conform(fixed_base, "sinusoidal")
    assert verdict.passed
    assert verdict.notes == ("5 cases were left out: the function answers them with NotImplementedError",)
    assert conform(nothing, "sinusoidal").findings == ("offers none of the cases",)


def test_a_fixed_base_is_tested_where_it_is_offered():
    def fixed_base(x, positions, base):
        if base != 10000:
            raise NotImplementedError
        return turn(x, positions, base)

    verdict = conform(fixed_base, "rotary")
    assert verdict.passed
    assert verdict.notes == ("3 cases were left out: the function answers them with NotImplementedError",)


def test_what_a_function_raises_is_a_finding():
    def leaves(num_heads):
        raise SystemExit

    assert conform(leaves, "alibi").findings == ("raises SystemExit",)
    single = conform(lambda x, p, b: turn(x, p, b) if x.dtype == torch.float32 else 1 / 0, "rotary")
    assert any("with x in bfloat16: raises ZeroDivisionError: division by zero" in f for f in single.findings)


def test_a_dtype_that_is_not_offered_is_no_fault():
    def single(x, positions, base):
        if x.dtype == torch.bfloat16:
            raise NotImplementedError
        return turn(x, positions, base)

    verdict = conform(single, "rotary")
    assert verdict.passed
    assert verdict.notes == ("not tried with x in bfloat16: the function answers with NotImplementedError",)


def test_numbers_that_are_none_do_not_break_the_json():
    verdict = conform(lambda num_heads: [math.nan] * num_heads, "alibi")
    assert not verdict.passed
    assert "NaN" not in json.dumps(verdict.to_dict())


def by_keywords(**given):
    return F.t5_bucket(**given)


def any_arguments(*given, **named):
    return F.t5_bucket(*given, **named)


def other_names(r, both, n, far):
    return F.t5_bucket(r, bidirectional=both, num_buckets=n, max_distance=far)


def other_order(max_distance, num_buckets, bidirectional, relative_position):
    return F.t5_bucket(
        relative_position, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance
    )


@pytest.mark.parametrize("function", [by_keywords, any_arguments, other_names, other_order, F.t5_bucket])
def test_arguments_are_given_by_name_where_the_names_match(function):
    assert conform(function, "t5").passed


def of_tables(interleaved=False, sign=1):
    def halves(x):
        if interleaved:
            return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    def apply(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return q * cos + sign * halves(q) * sin, k * cos + sign * halves(k) * sin

    return apply


def test_a_function_of_cos_and_sin_is_given_them():
    for kind, apply in (("rotary", of_tables()), ("rotary_interleaved", of_tables(interleaved=True))):
        verdict = conform(apply, kind)
        assert verdict.passed, str(verdict)
        assert verdict.notes[0].startswith("cos and sin were given to it")
    assert conform(lambda x, cos, sin: of_tables()(x, x, cos, sin)[0], "rotary").passed
    assert "rotates backwards" in conform(of_tables(sign=-1), "rotary").findings[0]
    assert not conform(lambda q, k, cos, sin: (of_tables()(q, k, cos, sin)[0], k), "rotary").passed


def test_what_fails_in_a_dtype_is_reported_once():
    def strict(x, positions, base):
        if x.dtype == torch.float16:
            raise RuntimeError("no half precision here")
        return turn(x, positions, base)

    assert [f for f in conform(strict, "rotary").findings if "no half" in f] == [
        "with x in float16: raises RuntimeError: no half precision here"
    ]
