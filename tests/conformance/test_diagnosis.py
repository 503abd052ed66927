"""Every diagnosis of `conform` is brought out by a function that is wrong in that way; right ones pass."""

import itertools
import json
import math
import random
import re
from dataclasses import asdict

import pytest
import torch

from posenc import frequencies
from posenc import functional as F
from posenc.conformance import conform, golden
from posenc.conformance.diagnosis import Explanation, explain
from posenc.conformance.faults import FAULTS, ROUNDINGS
from posenc.conformance.golden import CaseResult
from posenc.conformance.kinds import KINDS, no_tolerance
from posenc.testing.oracles import schedules
from references.mutants import CACHE, MUTANTS, RIGHT, codes, slopes, turn, yarn


@pytest.fixture(autouse=True)
def _empty_cache():
    CACHE.clear()


def slow(kind, at):
    """Rotations take longest: one in three, as each fault comes back from its formula, too."""
    return pytest.mark.slow if kind.startswith("rotary") and at % 3 else ()


@pytest.mark.parametrize(
    ("kind", "function", "words"),
    [
        pytest.param(*mutant, marks=slow(mutant[0], at), id=f"{mutant[0]}: {mutant[2]}")
        for at, mutant in enumerate(MUTANTS)
    ],
)
def test_a_fault_is_named(kind, function, words):
    verdict = conform(function, kind)
    assert not verdict.passed
    for part in words.split("; "):
        assert any(part in finding for finding in verdict.findings), str(verdict)
        assert part in str(verdict)
    assert json.loads(json.dumps(asdict(verdict)))["findings"] == list(verdict.findings)


def returned(kind, explanation, cases):
    """What a function with these faults returns for each case."""
    convention = KINDS[kind]
    results = []
    for case in cases:
        values = explanation.values(case.arguments)
        dtype = torch.int64 if convention.tolerance is no_tolerance else torch.float64
        results.append(CaseResult(convention, case, values, dtype))
    return results


def answers(kind, explanation):
    try:
        return returned(kind, explanation, golden.cases(kind))
    except (ArithmeticError, ValueError, TypeError, LookupError, RuntimeError):
        return None  # such a function raises in some cases


def assert_named(kind, faults):
    """The faults are among those that explain the results; others do only if they give the same values."""
    planted = Explanation(kind, faults)
    results = answers(kind, planted)
    if results is None or all(result.right for result in results):
        return
    found = explain(results, Explanation(kind))
    assert found, (kind, faults)
    assert all(each.fits(result) for each in found for result in results)
    fewest = len(found[0].faults)
    assert fewest < len(faults) or any({*each.faults} == {*faults} for each in found), (kind, faults, found)


@pytest.mark.parametrize("kind", KINDS)
def test_every_known_fault_comes_back_under_its_name(kind):
    for fault in FAULTS[kind]:
        assert_named(kind, (fault,))


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_of_known_faults_come_back_under_their_names(kind):
    pairs = list(itertools.combinations(FAULTS[kind], 2))
    for pair in random.Random(kind).sample(pairs, min(2, len(pairs))):
        assert_named(kind, pair)


@pytest.mark.parametrize("kind", ["rotary", "sinusoidal", "m_rope", "rotary_packed"])
def test_all_roundings_to_a_dtype_are_named_together(kind):
    for names in ROUNDINGS.values():
        known = tuple(name for name in names if name in FAULTS[kind])
        assert_named(kind, known)


def test_a_function_that_raises_in_every_case_is_not_judged():
    def needs_clang(num_heads):
        raise SystemExit("clang")

    verdict = conform(needs_clang, "alibi")
    assert verdict.passed is None
    assert "could not be run" in str(verdict)
    assert re.fullmatch(r"raises SystemExit: clang \(.*test_diagnosis.py:\d+\)", verdict.findings[0])
    assert json.loads(json.dumps(asdict(verdict)))["passed"] is None


def test_a_function_that_answers_some_cases_is_judged():
    verdict = conform(lambda n: slopes(n) if n == 8 else 1 / 0, "alibi")
    assert verdict.passed is False
    assert "refuses 19 of 20 legal cases: raises ZeroDivisionError: division by zero" in verdict.findings[0]
    for answer, named in ((None, "None"), ((None, 1), "a tuple of None, a int")):
        assert conform(lambda n, answer=answer: answer, "alibi").findings[0].startswith(f"returns {named}, expected")


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


def test_the_first_difference_is_shown():
    verdict = conform(slopes, "alibi")
    assert verdict.example == "for num_heads=3: at [0] expected 0.0625, got 0.15749013"
    assert verdict.largest_error == pytest.approx(slopes(112)[-1] / float(F.alibi_slopes(112)[63]) - 1, abs=20)


def test_state_between_calls_is_noticed():
    calls = []

    def counting(head_dim, base):
        calls.append(head_dim)
        return [f * (1 + 1e-9 * len(calls)) for f in schedules.default(head_dim, base)]

    assert conform(counting, "default").findings == (
        "state between calls: the first call, repeated at the end, gives another result",
    )


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
    assert conform(nothing, "sinusoidal").passed is None


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
    assert "NaN" not in json.dumps(asdict(verdict))


def by_keywords(**given):
    return F.t5_bucket(**given)


def any_arguments(relative, *given, **named):
    return F.t5_bucket(
        relative, **dict(zip(("bidirectional", "num_buckets", "max_distance"), given, strict=False)), **named
    )


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

    (finding,) = [f for f in conform(strict, "rotary").findings if "no half" in f]
    assert finding.startswith("with x in float16: raises RuntimeError: no half precision here (")
