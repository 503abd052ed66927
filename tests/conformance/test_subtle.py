"""Faults that show for some sizes, dtypes, orders or values only; each once passed for right."""

import math

import pytest
import torch

from posenc import functional as F
from posenc.conformance import conform
from posenc.testing.oracles import biases, schedules
from references.mutants import by_tables, codes, from_scratch, slopes, turn, yarn

HALF = torch.bfloat16


def first_only(axis, count):
    """Rows of x beyond the first few come back unturned."""

    def fault(x, p, b):
        turned = turn(x, p, b)
        turned.narrow(axis, count, max(x.shape[axis] - count, 0)).copy_(x[:, count:] if axis else x[count:])
        return turned

    return lambda x, p, b: fault(x, p, b) if x.shape[axis] > count else turn(x, p, b)


def where(condition, faulty, right=turn):
    """Faulty for some questions, right for the others."""
    return lambda *given: faulty(*given) if condition(*given) else right(*given)


def wide(*widths):
    """Frequencies are doubled for some widths."""
    return where(lambda x, p, b: x.shape[-1] in widths, lambda x, p, b: turn(x, 2 * p, b))


def cached(key, dtype=False):
    """Tables are cached by a key that leaves out an argument."""
    cached_tables = {}

    def fault(x, p, b):
        k = key(x, p, b)
        if k not in cached_tables:
            angles = p.double()[:, None] * F.frequency_curve(x.shape[-1], base=b)
            cached_tables[k] = [
                table.to(x.dtype).to(torch.promote_types(x.dtype, torch.float32))
                for table in (angles.cos(), angles.sin())
            ]
            if not dtype:
                cached_tables[k] = [angles.cos(), angles.sin()]
        return F.rotary(x.double(), *(table.double() for table in cached_tables[k])).to(x.dtype)

    return fault


def in_place_if(condition):
    return where(condition, lambda x, p, b: x.copy_(turn(x, p, b)))


def growing():
    """Tables grow with the longest text, in the dtype of the x that made them grow."""
    cached_tables = {}

    def fault(x, p, b):
        key = x.shape[-1], b
        if key not in cached_tables or len(cached_tables[key][0]) <= int(p.max()):
            angles = torch.arange(int(p.max()) + 1).double()[:, None] * F.frequency_curve(x.shape[-1], base=b)
            cached_tables[key] = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        cos, sin = (table[p].double() for table in cached_tables[key])
        return F.rotary(x.double(), cos, sin).to(x.dtype)

    return fault


def cached_run():
    """Tables of a text from 0 on are cached in the dtype of x, and used whenever they are long enough."""
    cached_tables = {}

    def fault(x, p, b):
        key = x.shape[-1], b
        if len(p) > 256 and key not in cached_tables:
            cached_tables[key] = p.to(x.dtype)
        positions = cached_tables[key][p] if len(cached_tables.get(key, ())) > int(p.max()) else p
        return turn(x, positions, b)

    return fault


def part(x, p, b, r, beyond=lambda rest: rest):
    return torch.cat((turn(x[..., :r], p, b), beyond(x[..., r:])), -1)


def rounded_share(d, b, fraction):
    return [f if c < round(fraction * d / 2) else 0.0 for c, f in enumerate(schedules.default(d, b))]


def doubled_for(*heads):
    return lambda n: [2 * s for s in biases.alibi(n)] if n in heads else biases.alibi(n)


def t5_rounded(r, two, n, far, dtype=torch.float16, more=0.0):
    side = n // 2 if two else n
    distance = r.abs() if two else (-r).clamp(min=0)
    exact = side // 2
    grown = (distance.clamp(min=1).to(dtype) / exact).log() / math.log(far / exact) * (side - exact) + more
    bucket = torch.where(distance < exact, distance, (exact + grown.long()).clamp(max=side - 1))
    return bucket + (r > 0).long() * side if two else bucket


def power(number):
    return 2 ** round(math.log2(number))


def yarn_with(head_dim, base, factor, original_max_positions, beta_fast=32.0, beta_slow=1.0, truncate=True):
    return schedules.yarn(head_dim, base, factor, original_max_positions, beta_fast, beta_slow, truncate)


def plain_only(name):
    """An option that has an effect for a head of 64 and base 10000 only."""

    def fault(head_dim, base, factor, original_max_positions, beta_fast=32.0, beta_slow=1.0, truncate=True):
        options = {"beta_fast": beta_fast, "beta_slow": beta_slow, "truncate": truncate}
        if (head_dim, base) != (64, 1e4):
            del options[name]
        return schedules.yarn(head_dim, base, factor, original_max_positions, **options)

    return fault


def below_zero(d, b, s, L):
    """YaRN's ramp may begin before the first pair."""
    low, high = (d * math.log(L / (turns * 2 * math.pi)) / (2 * math.log(b)) for turns in (32, 1))
    low, high = math.floor(low), min(math.ceil(high), d - 1)
    ramp = ((torch.arange(d // 2).double() - low) / (high - low)).clamp(0, 1)
    return from_scratch(d, b) * (1 - ramp) + from_scratch(d, b) / s * ramp


def truncate_without_limits(
    head_dim, base, factor, original_max_positions, beta_fast=32.0, beta_slow=1.0, truncate=True
):
    rounded = truncate or (beta_fast, beta_slow) != (32.0, 1.0)
    return schedules.yarn(head_dim, base, factor, original_max_positions, beta_fast, beta_slow, rounded)


SUBTLE = {
    "batch rows after the first": ("rotary", first_only(0, 1)),
    "heads after the second": ("rotary", first_only(1, 2)),
    "a single token is at 0": ("rotary", where(lambda x, p, b: len(p) == 1, lambda x, p, b: turn(x, p * 0, b))),
    "a single token is one early": ("rotary", where(lambda x, p, b: len(p) == 1, lambda x, p, b: turn(x, p - 1, b))),
    "positions sorted": ("rotary", lambda x, p, b: turn(x, p.sort().values, b)),
    "positions never go back": ("rotary", lambda x, p, b: turn(x, p.cummax(0).values, b)),
    "cached by last position and length": ("rotary", cached(lambda x, p, b: (x.shape[-1], b, len(p), int(p[-1])))),
    "cached by first position and length": ("rotary", cached(lambda x, p, b: (x.shape[-1], b, len(p), int(p[0])))),
    "codes of sorted positions": ("sinusoidal", lambda p, d, b: codes(p.sort().values, d, b)),
    "width 256": ("rotary", wide(256)),
    "width 96": ("rotary", wide(96)),
    "width 80": ("rotary", wide(80)),
    "width 48": ("rotary", wide(48)),
    "float64 gives zeros": ("rotary", where(lambda x, p, b: x.dtype == torch.float64, lambda x, p, b: x * 0)),
    "bfloat16 ignores the base": ("rotary", where(lambda x, p, b: x.dtype == HALF, lambda x, p, b: turn(x, p, 1e4))),
    "bfloat16 is clamped": ("rotary", where(lambda x, p, b: x.dtype == HALF, lambda x, p, b: turn(x, p.clamp(max=4095), b))),
    "float16 positions": ("rotary", where(lambda x, p, b: x.dtype == torch.float16, lambda x, p, b: turn(x, p.half(), b))),
    "float16 frequencies": ("rotary", where(lambda x, p, b: x.dtype == torch.float16, lambda x, p, b: by_tables(x, p, b, half=x.dtype))),
    "in place for long inputs": ("rotary", in_place_if(lambda x, p, b: x.numel() >= 4096)),
    "in place for short dtypes": ("rotary", in_place_if(lambda x, p, b: x.dtype in (HALF, torch.float16))),
    "tables in the dtype of the first call": ("rotary", cached(lambda x, p, b: (x.shape[-1], b, tuple(p.tolist())), dtype=True)),
    "tables that grow in the dtype of x": ("rotary", growing()),
    "a table cached from the first long text": ("rotary", cached_run()),
    "what is not turned goes through bfloat16": ("rotary_partial", lambda x, p, b, r: part(x, p, b, r, lambda y: y.to(HALF).to(y.dtype))),
    "a complete head is not turned": ("rotary_partial", lambda x, p, b, r: part(x, p, b, r) if r < x.shape[-1] else x),
    "at most half a head is turned": ("rotary_partial", lambda x, p, b, r: part(x, p, b, min(r, x.shape[-1] // 2))),
    "codes wider than 256": ("sinusoidal", lambda p, d, b: codes(p, min(d, 256), b).repeat(1, 3)[:, :d]),
    "base ignored for 128": ("sinusoidal", lambda p, d, b: codes(p, d, b if d in (4, 64) else 1e4)),
    "integer factors": ("linear", lambda d, b, s: from_scratch(d, b) / int(s)),
    "factors that are powers of two": ("linear", lambda d, b, s: from_scratch(d, b) / power(s)),
    "ntk of integer factors": ("ntk", lambda d, b, s: schedules.ntk(d, b, int(s))),
    "yarn of integer factors": ("yarn", lambda d, b, s, L: schedules.yarn(d, b, int(s), L)),
    "lengths that are powers of two": ("yarn", lambda d, b, s, L: schedules.yarn(d, b, s, power(L))),
    "llama3 lengths that are powers of two": ("llama3", lambda d, b, s, L: schedules.llama3(d, b, s, power(L))),
    "temperature of doublings": ("yarn", lambda d, b, s, L: (yarn(d, b, s, L), 0.1 * math.log(2) * int(math.log2(s)) + 1)),
    "a ramp that begins before the first pair": ("yarn", below_zero),
    "beta_fast for one base only": ("yarn", plain_only("beta_fast")),
    "beta_slow for one base only": ("yarn", plain_only("beta_slow")),
    "truncate for one base only": ("yarn", plain_only("truncate")),
    "truncate for the default limits only": ("yarn", truncate_without_limits),
    "heads wider than 128": ("yarn", lambda d, b, s, L: schedules.yarn(d, b, s, L) if d <= 128 else schedules.default(d, b)),
    "a share that is rounded": ("proportional", rounded_share),
    **{f"{heads} heads": ("alibi", doubled_for(heads)) for heads in (4, 6, 10, 24, 32, 48, 96, 128)},
    "logarithms in float16": ("t5", t5_rounded),
    "logarithms in bfloat16": ("t5", lambda *given: t5_rounded(*given, dtype=HALF)),
    "xpos heads wider than 64": ("xpos", lambda p, d, b: schedules.xpos(p.tolist(), d, b if d <= 64 else 512)),
}  # fmt: skip


SLOW = (
    "a single token is one early", "positions never go back", "cached by first position and length", "width 96", "width 80",
    "float16 frequencies", "at most half a head is turned",
)  # fmt: skip
"""Another of its kind is fast."""


@pytest.mark.parametrize(
    ("kind", "function"),
    [pytest.param(*SUBTLE[name], marks=pytest.mark.slow if name in SLOW else (), id=name) for name in SUBTLE],
)
def test_a_fault_of_some_cases_is_detected(kind, function):
    verdict = conform(function, kind)
    assert not verdict.passed
    assert not any(finding.startswith("raises") for finding in verdict.findings), str(verdict)


def test_the_same_functions_without_their_fault_conform():
    for kind, function in (
        ("rotary", where(lambda *given: False, slopes)),
        ("rotary_partial", part),
        ("yarn", yarn_with),
        ("t5", lambda *given: t5_rounded(*given, dtype=torch.float64, more=1e-9)),
        ("alibi", doubled_for()),
        ("rotary", in_place_if(lambda *given: False)),
    ):
        verdict = conform(function, kind)
        assert verdict.passed, str(verdict)
