# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in practice, as data: what to say, and the arguments under which the suspected formula is right.

A suspect changes the arguments of a kind's formula, or sets a fault that the formula in variants.py knows; so several
can be tried together.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from posenc.conformance import formulas, variants
from posenc.conformance.halves import ROUNDED

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Suspect:
    """says completes the verdict; change gives the arguments of the suspected computation; one that is alone is not
    tried together with others."""

    says: str
    change: Callable[[Arguments], dict[str, Any]]
    alone: bool = False


def under(says: str, *, alone: bool = False, **changes: Any) -> Suspect:
    """A suspect with other values of some arguments; a callable is given the arguments."""

    def change(given: Arguments) -> dict[str, Any]:
        return {**given, **{k: v(given) if callable(v) else v for k, v in changes.items()}}

    return Suspect(says, change, alone)


# -------------------------------------------------------------------- what to look for, the likeliest first


def at(change: Callable[[float], float]) -> Callable[[Arguments], list[float]]:
    """Every position changed."""
    return lambda given: [change(position) for position in given["positions"]]


def divided(by: int) -> Suspect:
    return under(f"positions are divided by {by}", positions=at(lambda p: p / by), alone=True)


def clamped(end: int) -> Suspect:
    says = f"positions are clamped: {end - 1} is used from position {end} on"
    return under(says, positions=at(lambda p: min(p, end - 1)), alone=True)


def wrapped(end: int) -> Suspect:
    return under(f"positions start again at 0 from position {end} on", positions=at(lambda p: p % end), alone=True)


BASES = (
    under("base is ignored: 10000 is used", base=10000.0),
    under(
        "wrong exponent: base^(-c/d), expected base^(-2c/d) (as of a head twice as wide)",
        base=lambda a: a["base"] ** 0.5,
    ),
    under("wrong exponent: base^(-4c/d), expected base^(-2c/d)", base=lambda a: a["base"] ** 2),
)
ENDS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
POSITIONS = (
    under(
        "positions are ignored: row n is taken to be at position n",
        positions=lambda a: list(range(len(a["positions"]))),
    ),
    under(
        "positions are taken relative to the first one",
        positions=lambda a: [p - a["positions"][0] for p in a["positions"]],
    ),
    under("positions are sorted", positions=lambda a: sorted(a["positions"])),
    under("positions start at 1 (position + 1 is used)", positions=at(lambda p: p + 1)),
    under("positions are rounded to bfloat16, which counts to 256", positions=at(ROUNDED["bfloat16"])),
    under("positions are rounded to float16, which counts to 2048", positions=at(ROUNDED["float16"])),
    *BASES,
    *(divided(by) for by in (2, 4, 8, 16, 32, 64)),
    *(clamped(end) for end in ENDS),
    *(wrapped(end) for end in ENDS),
)
BACKWARDS = under("rotates backwards (the sign of the sine is wrong)", positions=at(lambda p: -p))
HALF = under("layout is half, expected interleaved", layout="half")
INTERLEAVED = under("layout is interleaved, expected half", layout="interleaved")
UNTURNED = under("x comes back as it was", positions=at(lambda p: 0))
ENDPOINT = under("the last frequency is 1/base: exponents c/(dim/2 - 1), expected 2c/dim", endpoint=True)
CONCAT = under("layout is concat (all sines first), expected interleaved", layout="concat")
ALTERNATING = under("layout is interleaved, expected concat (all sines first)", layout="interleaved")
COSINES = under("cosines come where sines belong", cosines_first=True)


TURNING = (
    BACKWARDS,
    UNTURNED,
    *(under(f"frequencies are held in {form}", frequency=lambda a, form=form: ROUNDED[form]) for form in ROUNDED),
    *(under(f"angles are rounded to {form}", angle=lambda a, form=form: ROUNDED[form], alone=True) for form in ROUNDED),
    under("cos and sin are exchanged", sines_first=True),
    under("both halves of a pair have the sign +, expected -x2 sin in the first", signs=(1, 1), alone=True),
    under("both halves of a pair have the sign -, expected +x1 sin in the second", signs=(-1, -1), alone=True),
    under("axes 1 and 2 come back exchanged: (batch, seq, heads, head_dim)", transposed=True),
    *POSITIONS,
)
"""What can be wrong in any layout."""
MIXED_HALF = under(
    "layouts are mixed: x is turned by halves with tables of interleaved pairs (repeat_interleave, expected cat)",
    tables="interleaved",
)
MIXED_INTERLEAVED = under(
    "layouts are mixed: pairs are interleaved with tables of halves (cat, expected repeat_interleave)", tables="half"
)


def ramp(*more: Suspect) -> tuple[Suspect, ...]:
    """What a schedule that divides some frequencies can be instead."""

    def instead(says: str, schedule: Callable[..., list[float]]) -> Suspect:
        return under(says, schedule=lambda given: schedule)

    return (
        *more,
        instead("nothing is scaled: these are the default frequencies", lambda d, b, s, length: formulas.default(d, b)),
        instead("is plain linear interpolation", lambda d, b, s, length: formulas.linear(d, b, s)),
        instead("is plain NTK-aware scaling", lambda d, b, s, length: formulas.ntk(d, b, s)),
        under("base is ignored: 10000 is used", base=10000.0),
        under("original_max_positions is ignored: 8192 is used", original_max_positions=8192),
        under("original_max_positions is ignored: 2048 is used", original_max_positions=2048),
        under(
            "original_max_positions is taken for the extended length (multiplied by factor)",
            original_max_positions=lambda a: a["original_max_positions"] * a["factor"],
        ),
    )


def _inverted(turns: float, slow: float, fast: float) -> float:
    return (turns - slow) / (fast - slow)


def _by_wavelength(turns: float, slow: float, fast: float) -> float:
    return (1 / turns - 1 / fast) / (1 / slow - 1 / fast)


def _ramped(name: str) -> Callable[[Arguments], Callable[..., list[float]]]:
    return lambda given: getattr(formulas, name)


SLOPES = tuple(
    under(says, slopes=lambda given, slopes=slopes: slopes)
    for says, slopes in (
        (
            "they are 2^(-8(h+1)/heads), which holds for powers of two only",
            lambda n: [2 ** (-8 * (h + 1) / n) for h in range(n)],
        ),
        (
            "their exponents are spread evenly from -1 to -8",
            lambda n: [2 ** -(1 + 7 * h / max(n - 1, 1)) for h in range(n)],
        ),
        ("another order: sorted from large to small", lambda n: sorted(formulas.alibi(n), reverse=True)),
        ("another order: sorted from small to large", lambda n: sorted(formulas.alibi(n))),
        ("another order: reversed", lambda n: formulas.alibi(n)[::-1]),
        ("they start at 2^0: h is used, expected h + 1", lambda n: [2 ** (-8 * h / n) for h in range(n)]),
        ("the sign is wrong: slopes are negative, expected positive", lambda n: [-s for s in formulas.alibi(n)]),
        (
            "those of the next power of two are used, cut off",
            lambda n: formulas.alibi(2 ** math.ceil(math.log2(n)))[:n],
        ),
    )
)

T5 = (
    under(
        "direction reversed: it takes query minus key", relative_position=lambda a: [-r for r in a["relative_position"]]
    ),
    under("the bidirectional flag is ignored: always bidirectional", bidirectional=True),
    under("the bidirectional flag is ignored: always causal", bidirectional=False),
    under("the bidirectional flag is taken the wrong way round", bidirectional=lambda a: not a["bidirectional"]),
    under("saturates at the wrong distance: max_distance is ignored, 128 is used", max_distance=128),
    under("saturates at the wrong distance: twice max_distance", max_distance=lambda a: 2 * a["max_distance"]),
    under("saturates at the wrong distance: max_distance - 1", max_distance=lambda a: a["max_distance"] - 1),
    under("num_buckets is ignored: 32 is used", num_buckets=32),
    under("off by one: distances are one too large", late=1),
    under("off by one: distances are one too small", late=-1),
    under("the logarithm is rounded to the nearest bucket, expected cut off", half_steps=True),
)
DEBERTA = (
    under(
        "direction reversed: it takes key minus query", relative_position=lambda a: [-r for r in a["relative_position"]]
    ),
    under("the logarithm is cut off, expected rounded up", step=lambda a: math.floor),
    under("the logarithm is rounded to the nearest bucket, expected rounded up", step=lambda a: round),
    under("saturates at the wrong distance: max_position, expected max_position - 1", end=0),
    under("buckets is ignored: 256 is used", buckets=256),
    under("max_position is ignored: 512 is used", max_position=512),
)
YARN = ramp(
    under("ramp inverted: high frequencies are interpolated, low ones kept", inverted=True),
    under("ramp not truncated: its ends are not rounded (the gpt-oss form)", truncate=False),
    under("ramp always truncated: truncate=False is ignored", truncate=True),
    under("ramp by turns, as in the paper (yarn_paper), expected by pair number, as in the code", schedule=_ramped("yarn_paper")),
    under("floor and ceil cover only the numerator of the pair's number", rounding="the numerator"),
    under("ramp rounded inwards (ceil below, floor above), expected outwards", rounding="inwards"),
    under("ramp clamped at head_dim/2 - 1, expected head_dim - 1", last=lambda a: lambda dim: dim // 2 - 1),
    under("ramp clamped at head_dim/2, expected head_dim - 1", last=lambda a: lambda dim: dim // 2),
    under("wavelengths are blended, expected frequencies (the 'revised' form)", wavelengths=True),
    under("beta_fast and beta_slow are exchanged", beta_fast=lambda a: a.get("beta_slow", 1.0), beta_slow=lambda a: a.get("beta_fast", 32.0)),
)  # fmt: skip
BY_TURNS = (
    under("ramp inverted: high frequencies are divided, low ones kept", shape=lambda a: _inverted),
    under("ramp linear in the wavelength, expected in the turns", shape=lambda a: _by_wavelength),
    under(
        "no ramp: frequencies between the two limits are divided", shape=lambda a: lambda r, slow, fast: float(r < fast)
    ),
    under(
        "frequencies between the two limits are kept: no ramp, or its limits exchanged",
        shape=lambda a: lambda r, slow, fast: float(r < slow),
    ),
)
UNSCALED = under("nothing is scaled: these are the default frequencies", divide=1.0)

SUSPECTS: dict[str, tuple[Callable[..., Any], tuple[Suspect, ...]]] = {
    "rotary": (variants.rotary("half"), (INTERLEAVED, MIXED_HALF, *TURNING)),
    "rotary_interleaved": (variants.rotary("interleaved"), (HALF, MIXED_INTERLEAVED, *TURNING)),
    "rotary_partial": (
        variants.rotary("half"),
        (
            INTERLEAVED,
            MIXED_HALF,
            under(
                "wrong exponent: base^(-2c/head_dim), expected base^(-2c/rotary_dim)",
                base=lambda a: a["base"] ** (a["rotary_dim"] / len(a["x"][0][0][0])),
            ),
            under("the whole head is turned: rotary_dim is ignored", rotary_dim=None),
            *TURNING,
        ),
    ),
    "sinusoidal": (variants.sinusoidal("interleaved", False), (CONCAT, COSINES, ENDPOINT, *POSITIONS)),
    "sinusoidal_concat": (variants.sinusoidal("concat", False), (ALTERNATING, COSINES, ENDPOINT, *POSITIONS)),
    "sinusoidal_endpoint": (
        variants.sinusoidal("concat", True),
        (
            under("exponents are 2c/dim, expected c/(dim/2 - 1): the last frequency is not 1/base", endpoint=False),
            ALTERNATING,
            COSINES,
            *POSITIONS,
        ),
    ),
    "default": (variants.default, BASES),
    "linear": (
        variants.linear,
        (
            UNSCALED,
            under("is NTK-aware scaling", divide=1.0, base=lambda a: _ntk_base(a)),
            under("frequencies are multiplied by factor, expected divided", divide=lambda a: 1 / a["factor"]),
            *BASES,
        ),
    ),
    "ntk": (
        variants.ntk,
        (
            under("is plain linear interpolation", scaled=lambda a: a["base"], divide=lambda a: a["factor"]),
            under(
                "is plain linear interpolation by factor^(d/(d-2))",
                scaled=lambda a: a["base"],
                divide=lambda a: _ntk_base(a) / a["base"],
            ),
            under("exponent d/(d-2) missing: the base is multiplied by factor alone", scaled=lambda a: a["base"] * a["factor"]),
            under("nothing is scaled: these are the default frequencies", scaled=lambda a: a["base"]),
            *BASES,
        ),
    ),
    "ntk_mixed": (
        variants.ntk_mixed,
        (
            under("exponent is ignored: 0.625 is used", exponent=0.625),
            under("the exponent is 0.75 where none is given, expected 0.625", exponent=lambda a: a.get("exponent", 0.75)),
            under("frequencies are counted from 0, expected from 1: the fastest stays", first=0),
            under("is plain linear interpolation", exponent=0.0),
            under("is mixed with nothing: frequency m is divided by factor^(2m/d) (exponent 1)", exponent=1.0),
            under("nothing is scaled: these are the default frequencies", factor=1.0),
            *BASES,
        ),
    ),
    "dynamic": (
        variants.dynamic,
        (
            under("factor is ignored: the scale is length / original_max_positions", factor=1.0),
            under("length is ignored: scaled by factor, as for every text", by=lambda a: a["factor"]),
            under("texts shorter than original_max_positions are scaled, too", shortest=lambda a: a["length"]),
            under("nothing is scaled: these are the default frequencies", by=1.0),
            *BASES,
        ),
    ),
    "longrope": (
        variants.longrope,
        (
            under("long_factor is taken from original_max_positions on, expected for longer texts", length=lambda a: a["length"] + 1),
            under("length is ignored: long_factor is always used", short_factor=lambda a: a["long_factor"]),
            under("length is ignored: short_factor is always used", long_factor=lambda a: a["short_factor"]),
            under("short_factor and long_factor are exchanged", short_factor=lambda a: a["long_factor"], long_factor=lambda a: a["short_factor"]),
            under("frequencies are multiplied by the factors, expected divided", power=1),
            *BASES,
        ),
    ),
    "yarn": (variants.yarn, YARN),
    "yarn_revised": (
        variants.yarn_revised,
        (
            under("frequencies are blended, expected wavelengths (yarn)", wavelengths=False),
            *(suspect for suspect in YARN if not suspect.says.startswith("wavelengths")),
        ),
    ),
    "yarn_paper": (
        variants.yarn_paper,
        ramp(
            under("ramp by pair number, as in the code (yarn), expected by turns, as in the paper", schedule=_ramped("yarn")),
            *BY_TURNS,
        ),
    ),
    "llama3": (variants.llama3, ramp(*BY_TURNS)),
    "proportional": (
        variants.proportional,
        (
            under(
                "exponents are 2c/rotary_dim (partial rotary), expected 2c/head_dim",
                width=lambda a: 2 * int(a["fraction"] * a["head_dim"] // 2),
            ),
            under("fraction is ignored: nothing is zero", fraction=1.0),
            under("the zeros are left out: head_dim/2 frequencies expected", cut=True),
            *BASES,
        ),
    ),
    "alibi": (variants.alibi, SLOPES),
    "t5": (variants.t5, T5),
    "deberta": (variants.deberta, DEBERTA),
    "xpos": (
        formulas.xpos,
        (
            under("this is the scale of keys, the inverse of that of queries", positions=lambda a: [-p for p in a["positions"]]),
            under("scale_base is ignored: 512 is used", scale_base=512),
            under("positions are centred on the middle of the sequence", positions=lambda a: _centred(a["positions"])),
        ),
    ),
}  # fmt: skip


TEMPERATURES: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("temperature missing: the attention factor is 1", lambda expected: 1.0),
    ("temperature squared", lambda expected: expected**2),
    ("temperature is the square root", lambda expected: expected**0.5),
    ("temperature is inverted", lambda expected: 1 / expected),
    ("temperature lacks the + 1", lambda expected: expected - 1),
)
"""What an attention factor can be instead of 0.1 ln(factor) + 1."""


def _centred(positions: list[float]) -> list[float]:
    return [p - len(positions) // 2 for p in positions]


def _ntk_base(given: Arguments) -> float:
    return given["base"] * given["factor"] ** (given["head_dim"] / (given["head_dim"] - 2))
