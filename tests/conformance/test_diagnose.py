"""Every diagnosis of `conform` is brought out by a function that is wrong in that way; right ones pass."""

import json
import math

import numpy
import pytest
import torch

from posenc import InputError, frequencies
from posenc import functional as F
from posenc.conformance import formulas
from posenc.conformance.diagnose import conform
from posenc.conformance.suspects import SUSPECTS, TEMPERATURES


def turn(x, positions, base, rotary_dim=None, layout="half", sign=1, exponent=1.0):
    dim = rotary_dim or x.shape[-1]
    angles = sign * positions.double()[:, None] * F.frequency_curve(dim, base) ** exponent
    dtype = torch.promote_types(x.dtype, torch.float32)
    return F.rotary(x, angles.cos().to(dtype), angles.sin().to(dtype), layout=layout)


def in_place(x, positions, base):
    return x.copy_(turn(x, positions, base))


CACHE = {}


def cached_tables(x, positions, base):
    key = x.shape[-2:]
    if key not in CACHE:
        CACHE[key] = positions.clone(), base
    return turn(x, *CACHE[key])


def cached_dtype(x, positions, base):
    return turn(x, positions, base).to(CACHE.setdefault(("dtype", x.shape), x.dtype))


def from_scratch(d, b):
    return b ** (-torch.arange(0, d, 2).double() / d)


def yarn(
    d, b, s, L, fast=32, slow=1, *, low=math.floor, high=math.ceil, last=None, blend=None, factor=None, numerator=False
):
    """YaRN with its ramp's ends and its blend in reach."""

    def end(turns, rounded):
        above = d * math.log(L / (turns * 2 * math.pi))
        return rounded(above) / (2 * math.log(b)) if numerator else rounded(above / (2 * math.log(b)))

    start, stop = max(end(fast, low), 0), min(end(slow, high), last or d - 1)
    stop += 0.001 if start == stop else 0
    ramp = ((torch.arange(d // 2).double() - start) / (stop - start)).clamp(0, 1)
    inv = from_scratch(d, b)
    mixed = blend(inv, s, ramp) if blend else inv * (1 - ramp) + inv / s * ramp
    return mixed if factor is None else (mixed, factor(0.1 * math.log(s) + 1))


def plain(value):
    return value


def by_turns(d, b, s, L, slow=1, fast=4, shape=lambda r, slow, fast: (r - slow) / (fast - slow)):
    inv = from_scratch(d, b)
    keep = shape(L * inv / (2 * math.pi), slow, fast).clamp(0, 1)
    return inv * keep + inv / s * (1 - keep)


def slopes(heads):
    return [2 ** (-8 * (h + 1) / heads) for h in range(heads)]


def right_slopes(heads):
    return F.alibi_slopes(heads)


def only_near(d, b, s, L):
    assert L < 100000
    return yarn(d, b, s, L)


def deberta(relative, buckets, far, step=math.ceil, end=1):
    middle, found = buckets // 2, []
    for r in relative.tolist():
        grown = math.log(max(abs(r), middle) / middle) / math.log((far - end) / middle) * (middle - 1)
        size = abs(r) if abs(r) <= middle else step(round(grown, 9)) + middle
        found.append(size if r >= 0 else -size)
    return found


def t5_with(relative, two, buckets, far, half_steps=False):
    side = buckets // 2 if two else buckets
    exact = side // 2
    found = []
    for r in relative.tolist():
        distance = abs(r) if two else max(-r, 0)
        if distance >= exact:
            grown = math.log(distance / exact) / math.log(far / exact) * (side - exact)
            distance = min(exact + (round(grown) if half_steps else math.floor(grown + 1e-9)), side - 1)
        found.append(distance + (side if two and r > 0 else 0))
    return found


def codes(positions, dim, base, layout="interleaved", **options):
    return F.sinusoidal(positions, dim, base, layout, **options)


MUTANTS = [
    ("rotary", lambda x, p, b: turn(x, p, b, layout="interleaved"), "layout is interleaved, expected half"),
    ("rotary_interleaved", turn, "layout is half, expected interleaved"),
    ("rotary", lambda x, p, b: turn(x, p, b, sign=-1), "rotates backwards"),
    ("rotary", lambda x, p, b: x.clone(), "x comes back as it was"),
    ("rotary", lambda x, p, b: turn(x, torch.arange(len(p)), b), "positions are ignored: row n is taken to be at position n"),
    ("rotary", lambda x, p, b: turn(x, p + 1, b), "positions start at 1"),
    ("rotary", lambda x, p, b: turn(x, p.bfloat16(), b), "positions are rounded to bfloat16"),
    ("rotary", lambda x, p, b: turn(x, p.clamp(max=65504).half(), b), "positions are rounded to float16"),
    ("rotary", lambda x, p, b: turn(x, p, 10000.0), "base is ignored: 10000 is used"),
    ("rotary", lambda x, p, b: turn(x, p, b, exponent=0.5), "wrong exponent: base^(-c/d), expected base^(-2c/d)"),
    ("rotary", lambda x, p, b: turn(x, p, b, exponent=2.0), "wrong exponent: base^(-4c/d)"),
    ("rotary", lambda x, p, b: turn(x, -p, 10000.0, layout="interleaved"), "layout is interleaved, expected half; rotates backwards"),
    ("rotary", in_place, "changes its input x in place"),
    ("rotary", lambda x, p, b: turn(x, p, b).float(), "result in the wrong dtype: float64 in, float32 out; bfloat16 in, float32 out"),
    ("rotary", lambda x, p, b: turn(x, p.to(x.dtype), b), "with x in bfloat16, values are wrong from position 257 on; positions are rounded to bfloat16, which counts to 256; with x in float16, values are wrong from position 2049 on"),
    ("rotary", cached_tables, "cached by shape only: answers with the positions and base of the first call of that shape"),
    ("rotary", cached_dtype, "cached by shape only: float32 in, float64 out after a call of that shape in float64"),
    ("rotary", lambda x, p, b: x + p[:, None], "not shift-invariant"),
    ("rotary", lambda x, p, b: 2 * x, "14 of 14 cases differ, in a way that is not known here"),
    ("rotary", lambda x, p, b: None, "returns None, expected x turned"),
    ("rotary", lambda x, p, b: turn(x, p, b)[:, :1], "10 of 14 cases differ"),
    ("rotary_partial", lambda x, p, b, r: turn(x, p, b), "the whole head is turned: rotary_dim is ignored"),
    ("rotary_partial", lambda x, p, b, r: turn(x, p, b ** (r / x.shape[-1]), r), "wrong exponent: base^(-2c/head_dim), expected base^(-2c/rotary_dim)"),
    ("sinusoidal", lambda p, d, b: codes(p, d, b, "concat"), "layout is concat (all sines first), expected interleaved"),
    ("sinusoidal_concat", codes, "layout is interleaved, expected concat"),
    ("sinusoidal", lambda p, d, b: codes(p, d, b).unflatten(-1, (-1, 2)).flip(-1).flatten(-2), "cosines come where sines belong"),
    ("sinusoidal_concat", lambda p, d, b: codes(p, d, b, "concat").roll(d // 2, -1), "cosines come where sines belong"),
    ("sinusoidal", lambda p, d, b: codes(p, d, b, endpoint=True), "the last frequency is 1/base: exponents c/(dim/2 - 1)"),
    ("sinusoidal_endpoint", lambda p, d, b: codes(p, d, b, "concat"), "exponents are 2c/dim, expected c/(dim/2 - 1)"),
    ("sinusoidal", lambda p, d, b: codes(p + 1, d, b), "positions start at 1"),
    ("sinusoidal", lambda p, d, b: codes(p, d, b).to(p.dtype), "integers in, integers out"),
    ("sinusoidal", lambda p, d, b: codes(p.mul_(2) // 2, d, b), "changes its input positions in place"),
    ("sinusoidal", lambda p, d, b: codes(p, d, b).bfloat16(), "result in the wrong dtype: bfloat16, expected float32 or more"),
    ("default", lambda d, b: from_scratch(d, b * b), "wrong exponent: base^(-4c/d)"),
    ("default", lambda d, b: from_scratch(d, b) + float("nan"), "12 of 12 cases differ"),
    ("linear", lambda d, b, s: from_scratch(d, b), "nothing is scaled"),
    ("linear", lambda d, b, s: from_scratch(d, b) * s, "frequencies are multiplied by factor, expected divided"),
    ("linear", lambda d, b, s: formulas.ntk(d, b, s), "is NTK-aware scaling"),
    ("ntk", lambda d, b, s: from_scratch(d, b) / s, "is plain linear interpolation"),
    ("ntk", lambda d, b, s: from_scratch(d, b) / s ** (d / (d - 2)), "is plain linear interpolation by factor^(d/(d-2))"),
    ("ntk", lambda d, b, s: from_scratch(d, b * s), "exponent d/(d-2) missing"),
    ("ntk", lambda d, b, s: from_scratch(d, b), "nothing is scaled"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, blend=lambda f, s, t: f * t + f / s * (1 - t)), "ramp inverted: high frequencies are interpolated"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, low=plain, high=plain), "ramp not truncated"),
    ("yarn", lambda head_dim, base, factor, original_max_positions, truncate=True: yarn(head_dim, base, factor, original_max_positions), "ramp always truncated: truncate=False is ignored"),
    ("yarn", lambda d, b, s, L: by_turns(d, b, s, L, 1, 32), "ramp by turns, as in the paper (yarn_paper)"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, numerator=True), "floor and ceil cover only the numerator"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, low=math.ceil, high=math.floor), "ramp rounded inwards"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, last=d // 2 - 1), "ramp clamped at head_dim/2 - 1, expected head_dim - 1"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, last=d // 2), "ramp clamped at head_dim/2, expected"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, blend=lambda f, s, t: f / (1 - t + t * s)), "wavelengths are blended"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, 1, 32), "beta_fast and beta_slow are exchanged"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, last=d // 2 - 1, blend=lambda f, s, t: f * t + f / s * (1 - t)), "ramp inverted: high frequencies are interpolated, low ones kept; ramp clamped at head_dim/2 - 1"),
    ("yarn", lambda d, b, s, L: from_scratch(d, b), "nothing is scaled"),
    ("yarn", lambda d, b, s, L: from_scratch(d, b) / s, "is plain linear interpolation"),
    ("yarn", lambda d, b, s, L: formulas.ntk(d, b, s), "is plain NTK-aware scaling"),
    ("yarn", lambda d, b, s, L: yarn(d, 10000.0, s, L), "base is ignored: 10000 is used"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, 8192), "original_max_positions is ignored: 8192 is used"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, 2048), "original_max_positions is ignored: 2048 is used"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, int(L * s)), "original_max_positions is taken for the extended length"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, factor=lambda t: 1.0), "temperature missing"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, factor=lambda t: t * t), "temperature squared"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, factor=lambda t: t**0.5), "temperature is the square root"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, factor=lambda t: 1 / t), "temperature is inverted"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, factor=lambda t: t - 1), "temperature lacks the + 1"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L, factor=lambda t: 2 * t), "temperature wrong (attention factor"),
    ("llama3", lambda d, b, s, L: (by_turns(d, b, s, L), 1.1), "temperature wrong (attention factor 1.1, expected 1"),
    ("yarn", only_near, "refuses 6 of 54 legal cases: raises AssertionError: assert 131072 < 100000 for head_dim=64"),
    ("yarn", lambda d, b, s, L: yarn(d, b, s, L).repeat(2), "54 of 54 cases differ"),
    ("yarn_paper", yarn, "ramp by pair number, as in the code (yarn)"),
    ("yarn_paper", lambda d, b, s, L: by_turns(d, b, s, L, 1, 32, lambda r, slow, fast: (fast - r) / (fast - slow)), "ramp inverted: high frequencies are divided, low ones kept"),
    ("llama3", lambda d, b, s, L: by_turns(d, b, s, L, shape=lambda r, slow, fast: 1 - (1 / r - 1 / fast) / (1 / slow - 1 / fast)), "ramp linear in the wavelength"),
    ("llama3", lambda d, b, s, L: by_turns(d, b, s, L, shape=lambda r, slow, fast: (r >= fast).double()), "no ramp: frequencies between the two limits are divided"),
    ("llama3", lambda d, b, s, L: by_turns(d, b, s, L, shape=lambda r, slow, fast: (r >= slow).double()), "frequencies between the two limits are kept: no ramp, or its limits exchanged"),
    ("proportional", lambda d, b, p: torch.cat((from_scratch(2 * int(p * d // 2), b), torch.zeros(d // 2 - int(p * d // 2)))), "exponents are 2c/rotary_dim (partial rotary)"),
    ("proportional", lambda d, b, p: from_scratch(d, b), "fraction is ignored"),
    ("proportional", lambda d, b, p: from_scratch(d, b)[: int(p * d // 2)], "the zeros are left out"),
    ("alibi", slopes, "slopes wrong for 3, 6, 10, 12, 20, 24, 25, 40, 48, 71, 96, 112 heads: they are 2^(-8(h+1)/heads), which holds for powers of two only"),
    ("alibi", lambda n: [2 ** -(1 + 7 * h / max(n - 1, 1)) for h in range(n)], "their exponents are spread evenly from -1 to -8"),
    ("alibi", lambda n: right_slopes(n).sort(descending=True).values, "slopes wrong for 3, 6, 10, 12, 20, 24, 25, 40, 48, 71, 96, 112 heads: another order: sorted from large to small"),
    ("alibi", lambda n: right_slopes(n).sort().values, "another order: sorted from small to large"),
    ("alibi", lambda n: right_slopes(n).flip(0), "another order: reversed"),
    ("alibi", lambda n: [2 ** (-8 * h / n) for h in range(n)], "they start at 2^0: h is used, expected h + 1"),
    ("alibi", lambda n: -right_slopes(n), "the sign is wrong: slopes are negative"),
    ("alibi", lambda n: slopes(2 ** math.ceil(math.log2(n)))[:n], "those of the next power of two are used, cut off"),
    ("t5", lambda r, two, n, far: F.t5_bucket(-r, two, n, far), "direction reversed: it takes query minus key"),
    ("t5", lambda r, two, n, far: F.t5_bucket(r, True, n, far), "the bidirectional flag is ignored: always bidirectional"),
    ("t5", lambda r, two, n, far: F.t5_bucket(r, False, n, far), "the bidirectional flag is ignored: always causal"),
    ("t5", lambda r, two, n, far: F.t5_bucket(r, not two, n, far), "the bidirectional flag is taken the wrong way round"),
    ("t5", lambda r, two, n, far: F.t5_bucket(r, two, n, 128), "saturates at the wrong distance: max_distance is ignored"),
    ("t5", lambda r, two, n, far: F.t5_bucket(r, two, n, 2 * far), "saturates at the wrong distance: twice max_distance"),
    ("t5", lambda r, two, n, far: F.t5_bucket(r, two, n, far - 1), "saturates at the wrong distance: max_distance - 1"),
    ("t5", lambda r, two, n, far: F.t5_bucket(r, two, 32, far), "num_buckets is ignored: 32 is used"),
    ("t5", lambda r, two, n, far: F.t5_bucket(r + r.sign(), two, n, far), "off by one: distances are one too large"),
    ("t5", lambda r, two, n, far: F.t5_bucket(r - r.sign(), two, n, far), "off by one: distances are one too small"),
    ("t5", lambda r, two, n, far: t5_with(r, two, n, far, half_steps=True), "the logarithm is rounded to the nearest bucket"),
    ("deberta", lambda r, n, far: deberta(-r, n, far), "direction reversed: it takes key minus query"),
    ("deberta", lambda r, n, far: deberta(r, n, far, math.floor), "the logarithm is cut off, expected rounded up"),
    ("deberta", lambda r, n, far: deberta(r, n, far, round), "the logarithm is rounded to the nearest bucket, expected rounded up"),
    ("deberta", lambda r, n, far: deberta(r, n, far, end=0), "saturates at the wrong distance: max_position"),
    ("deberta", lambda r, n, far: deberta(r, 256, far), "buckets is ignored: 256 is used"),
    ("deberta", lambda r, n, far: deberta(r, n, 512), "max_position is ignored: 512 is used"),
    ("xpos", lambda p, d, b: formulas.xpos((-p).tolist(), d, b), "this is the scale of keys"),
    ("xpos", lambda p, d, b: formulas.xpos(p.tolist(), d, 512), "scale_base is ignored: 512 is used"),
    ("xpos", lambda p, d, b: formulas.xpos((p - len(p) // 2).tolist(), d, b), "positions are centred"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _empty_cache():
    CACHE.clear()


@pytest.mark.parametrize(("kind", "function", "words"), MUTANTS, ids=[f"{kind}: {words}" for kind, _, words in MUTANTS])
def test_a_fault_is_said_in_words(kind, function, words):
    verdict = conform(function, kind)
    assert not verdict.passed
    for part in words.split("; "):
        assert any(part in finding for finding in verdict.findings), str(verdict)
        assert part in str(verdict)
    assert json.loads(json.dumps(verdict.to_dict()))["findings"] == list(verdict.findings)


def test_every_suspicion_is_brought_out_by_a_mutant():
    said = [part for _, _, words in MUTANTS for part in words.split("; ")]
    known = {suspect.says for _, suspects in SUSPECTS.values() for suspect in suspects} | {t for t, _ in TEMPERATURES}
    assert not [says for says in known if not any(part in says or says in part for part in said)]


RIGHT = [
    ("rotary", turn),
    ("rotary_interleaved", lambda x, positions, base: turn(x, positions, base, layout="interleaved")),
    ("rotary_partial", turn),
    ("rotary", lambda x, positions, base: turn(x, positions, base).tolist()),
    ("rotary", lambda *given: turn(*given).requires_grad_()),
    ("sinusoidal", codes),
    ("sinusoidal", lambda positions, dim, base: codes(positions, dim, base).numpy()),
    ("sinusoidal", lambda positions, dim, base: codes(positions, dim, base)[None]),
    ("sinusoidal_concat", lambda p, d, b: codes(p, d, b, "concat").tolist()),
    ("sinusoidal_endpoint", lambda p, d, b: codes(p, d, b, "concat", endpoint=True)),
    ("proportional", lambda d, b, p: (formulas.proportional(d, b, p), 1.0)),
    ("alibi", lambda n: F.alibi_slopes(n).float().view(n, 1, 1)),
    ("alibi", lambda n: numpy.array(formulas.alibi(n), dtype=numpy.float32)),
    ("t5", F.t5_bucket),
    ("t5", lambda relative, *rest: t5_with(relative, *rest)),
    ("deberta", deberta),
    ("xpos", lambda p, d, b: torch.tensor(formulas.xpos(p.tolist(), d, b))),
    ("yarn", lambda head_dim, base, factor, original_max_positions: yarn(head_dim, base, factor, original_max_positions, factor=plain)),
    ("yarn", lambda *numbers: yarn(*numbers).float()),
    *frequencies.SCHEDULES.items(),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "function"), RIGHT)
def test_a_right_function_conforms(kind, function):
    verdict = conform(function, kind)
    assert verdict.passed, str(verdict)
    assert str(verdict).startswith(f"{kind}: conforms")
    assert verdict.example is None
    assert verdict.cases > 0


def test_what_was_not_judged_is_said():
    verdict = conform(lambda d, b, s, L: yarn(d, b, s, L), "yarn")
    assert any("no attention factor was returned" in note for note in verdict.notes)
    assert any("36 cases with beta_fast, beta_slow, truncate were left out" in note for note in verdict.notes)
    assert not conform(frequencies.yarn, "yarn").notes
    assert conform(frequencies.yarn, "yarn").cases == verdict.cases + 36


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
        "keeps state between calls: the first question, asked again at the end, is answered differently",
    )


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
    return F.t5_bucket(r, both, n, far)


def other_order(max_distance, num_buckets, bidirectional, relative_position):
    return F.t5_bucket(relative_position, bidirectional, num_buckets, max_distance)


@pytest.mark.parametrize("function", [by_keywords, any_arguments, other_names, other_order, F.t5_bucket])
def test_arguments_are_given_by_name_where_the_names_match(function):
    assert conform(function, "t5").passed
