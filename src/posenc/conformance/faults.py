# SPDX-License-Identifier: Apache-2.0
"""Common faults of re-implementations, as data: the report, and how the formula changes.

A fault changes the formula's arguments (a dict: a value, or a function of the arguments) or replaces the formula (a
function of them). So a fault in an argument can be combined with any other.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc.conformance import formulas, golden

Arguments = Mapping[str, Any]
Formula = Callable[..., Any]
Faults = dict[str, dict[str, Any] | Formula]


def faulty_values(kind: str, faults: Sequence[str], arguments: Arguments) -> Tensor:
    """The values of a kind's formula with some of its faults, float64."""
    formula = FORMULAS[kind]
    for name in faults:
        fault = FAULTS[kind][name]
        if callable(fault):
            formula = fault
        else:
            arguments = {**arguments, **{k: v(arguments) if callable(v) else v for k, v in fault.items()}}
    return torch.as_tensor(formula(**arguments), dtype=torch.float64)


# -------------------------------------------------------------------- formulas with options for faults


def _rounded(values: Any, dtype: torch.dtype | None) -> Tensor:
    values = torch.as_tensor(values, dtype=torch.float64)
    return values if dtype is None else values.clamp(max=torch.finfo(dtype).max).to(dtype).double()


def rotary(
    x: Any, positions: Any, base: float, rotary_dim: int | None = None, *, layout: str, tables: str | None = None,
    frequency: torch.dtype | None = None, angle: torch.dtype | None = None, signs: tuple[int, int] = (-1, 1),
    sines_first: bool = False, transposed: bool = False,
) -> Tensor:  # fmt: skip
    """RoPE. frequency and angle: the dtype they are rounded to; tables: the layout of cos and sin, layout if not given;
    signs: of the sines of a pair; sines_first: cos and sin are exchanged; transposed: (batch, seq, heads, head_dim)."""
    x = torch.tensor(x, dtype=torch.float64)
    dim = rotary_dim or x.shape[-1]
    inv_freq = _rounded(formulas.default(dim, base), frequency)
    angles = _rounded(torch.tensor(positions, dtype=torch.float64)[:, None] * inv_freq, angle)
    angles = angles.repeat_interleave(2, -1) if (tables or layout) == "interleaved" else angles.repeat(1, 2)
    cos, sin = (angles.sin(), angles.cos()) if sines_first else (angles.cos(), angles.sin())
    interleaved = layout == "interleaved"
    a, b = (slice(i, dim, 2) if interleaved else slice(i * dim // 2, (i + 1) * dim // 2) for i in (0, 1))
    rotated = x.clone()
    rotated[..., a] = x[..., a] * cos[:, a] + signs[0] * x[..., b] * sin[:, a]
    rotated[..., b] = x[..., b] * cos[:, b] + signs[1] * x[..., a] * sin[:, b]
    return rotated.transpose(1, 2) if transposed else rotated


def sinusoidal(positions: Any, dim: int, base: float, *, layout: str, endpoint: bool = False, cosines_first: bool = False) -> Tensor:  # fmt: skip
    codes = torch.tensor(formulas.sinusoidal(positions, dim, base, layout, endpoint), dtype=torch.float64)
    if cosines_first:
        return (
            codes.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if layout == "interleaved" else codes.roll(dim // 2, -1)
        )
    return codes


def yarn(
    head_dim: int, base: float, factor: float, original_max_positions: int, beta_fast: float = 32.0, beta_slow: float = 1.0,
    truncate: bool = True, *, last: int | None = None, numerator: bool = False, inverted: bool = False, wavelengths: bool = False,
) -> list[float]:  # fmt: skip
    """YaRN by pair number. last: the highest pair that the ramp can end at; numerator: only that of a pair's number is
    rounded; wavelengths: these are blended."""
    ends, unit = [], 2 * math.log(base)
    for turns, rounded in ((beta_fast, math.floor), (beta_slow, math.ceil)):
        above = head_dim * math.log(original_max_positions / (turns * 2 * math.pi))
        ends.append(above / unit if not truncate else rounded(above) / unit if numerator else rounded(above / unit))
    low, high = max(ends[0], 0), min(ends[1], head_dim - 1 if last is None else last)
    high += 0.001 if low == high else 0
    ramp = [min(max((c - low) / (high - low), 0.0), 1.0) for c in range(head_dim // 2)]
    ramp = [1 - t for t in ramp] if inverted else ramp
    plain = formulas.default(head_dim, base)
    if wavelengths:
        return [f / (1 - t + t * factor) for f, t in zip(plain, ramp, strict=True)]
    return formulas.blend(plain, factor, ramp)


Ramp = Callable[[float, float, float], float]
"""Of the turns over the original length and the two limits: 0 where a frequency stays, 1 where it is divided."""


def _by_turns(ramp: Ramp, slow_name: str, fast_name: str, fast_default: float) -> Formula:
    """A schedule whose ramp goes by turns, with another ramp."""

    def formula(head_dim: int, base: float, factor: float, original_max_positions: int, **limits: float) -> list[float]:
        plain = formulas.default(head_dim, base)
        slow, fast = limits.get(slow_name, 1.0), limits.get(fast_name, fast_default)
        turns = [original_max_positions * f / (2 * math.pi) for f in plain]
        return formulas.blend(plain, factor, [min(max(ramp(r, slow, fast), 0), 1) for r in turns])

    return formula


def _yarn_paper(truncate: bool = True, **numbers: Any) -> list[float]:
    return formulas.yarn_paper(**numbers)


def _partial_rotary(head_dim: int, base: float, fraction: float) -> list[float]:
    nonzero = formulas.default(2 * int(fraction * head_dim // 2), base)
    return nonzero + [0.0] * (head_dim // 2 - len(nonzero))


FORMULAS: dict[str, Formula] = {
    **golden.FORMULAS,
    "rotary": partial(rotary, layout="half"),
    "rotary_interleaved": partial(rotary, layout="interleaved"),
    "rotary_partial": partial(rotary, layout="half"),
    "sinusoidal": partial(sinusoidal, layout="interleaved"),
    "sinusoidal_concat": partial(sinusoidal, layout="concat"),
    "sinusoidal_endpoint": partial(sinusoidal, layout="concat", endpoint=True),
    "yarn": yarn,
    "yarn_revised": partial(yarn, wavelengths=True),
}


# -------------------------------------------------------------------- the faults, the likeliest first


def each(change: Callable[[Any], Any], name: str = "positions") -> dict[str, Any]:
    """Every number of an argument changed."""
    return {name: lambda given: [change(number) for number in given[name]]}


def _ntk_base(given: Arguments) -> float:
    return given["base"] * given["factor"] ** (given["head_dim"] / (given["head_dim"] - 2))


BASES: Faults = {
    "base is ignored: 10000 is used": {"base": 10000.0},
    "wrong exponent: base^(-c/d), expected base^(-2c/d) (as of a head twice as wide)": {
        "base": lambda a: a["base"] ** 0.5
    },
}
CLAMPS: Faults = {
    f"positions are clamped: {end - 1} is used from position {end} on": each(partial(min, end - 1))
    for end in (128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
}
"""Not tried together with others."""
HALF_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
POSITIONS: Faults = {
    "positions are ignored: row n is taken to be at position n": {
        "positions": lambda a: list(range(len(a["positions"])))
    },
    "positions are taken relative to the first one": {
        "positions": lambda a: [p - a["positions"][0] for p in a["positions"]]
    },
    "positions start at 1 (position + 1 is used)": each(lambda p: p + 1),
    "positions are rounded to bfloat16, which counts to 256": each(lambda p: float(_rounded(p, torch.bfloat16))),
    "positions are rounded to float16, which counts to 2048": each(lambda p: float(_rounded(p, torch.float16))),
    **BASES,
    **CLAMPS,
}
ROTATIONS: Faults = {
    "rotates backwards (the sign of the sine is wrong)": each(lambda p: -p),
    "x comes back as it was": each(lambda p: 0),
    **{f"frequencies are stored in {name}": {"frequency": dtype} for name, dtype in HALF_DTYPES.items()},
    **{f"angles are rounded to {name}": {"angle": dtype} for name, dtype in HALF_DTYPES.items()},
    "cos and sin are exchanged": {"sines_first": True},
    "both halves of a pair have the sign +, expected -x2 sin in the first": {"signs": (1, 1)},
    "both halves of a pair have the sign -, expected +x1 sin in the second": {"signs": (-1, -1)},
    "axes 1 and 2 come back exchanged: (batch, seq, heads, head_dim)": {"transposed": True},
    **POSITIONS,
}
OF_HALF: Faults = {
    "layout is interleaved, expected half": {"layout": "interleaved"},
    "layouts are mixed: x is turned by halves with tables of interleaved pairs (repeat_interleave, expected cat)": {
        "tables": "interleaved"
    },
}
CODES: Faults = {
    "cosines come where sines belong": {"cosines_first": True},
    "the last frequency is 1/base: exponents c/(dim/2 - 1), expected 2c/dim": {"endpoint": True},
    **POSITIONS,
}
ALTERNATING: Faults = {"layout is interleaved, expected concat (all sines first)": {"layout": "interleaved"}}

UNSCALED = "nothing is scaled: these are the default frequencies"


def _scheduled(schedule: Formula) -> Formula:
    """Another schedule altogether, which has no limits."""
    return lambda head_dim, base, factor, original_max_positions, **limits: schedule(head_dim, base, factor)


SCHEDULES: Faults = {
    UNSCALED: _scheduled(lambda head_dim, base, factor: formulas.default(head_dim, base)),
    "is plain linear interpolation": _scheduled(formulas.linear),
    "is plain NTK-aware scaling": _scheduled(formulas.ntk),
    "base is ignored: 10000 is used": {"base": 10000.0},
    "original_max_positions is ignored: 8192 is used": {"original_max_positions": 8192},
    "original_max_positions is ignored: 2048 is used": {"original_max_positions": 2048},
    "original_max_positions is taken for the extended length (multiplied by factor)": {
        "original_max_positions": lambda a: a["original_max_positions"] * a["factor"]
    },
}
YARN: Faults = {
    "ramp inverted: high frequencies are interpolated, low ones unchanged": {"inverted": True},
    "ramp not truncated: its ends are not rounded (the gpt-oss form)": {"truncate": False},
    "ramp always truncated: truncate=False is ignored": {"truncate": True},
    "ramp by turns, as in the paper (yarn_paper), expected by pair number, as in the code": _yarn_paper,
    "floor and ceil cover only the numerator of the pair's number": {"numerator": True},
    "ramp clamped at head_dim/2 - 1, expected head_dim - 1": {"last": lambda a: a["head_dim"] // 2 - 1},
    "ramp clamped at head_dim/2, expected head_dim - 1": {"last": lambda a: a["head_dim"] // 2},
    "beta_fast and beta_slow are exchanged": {
        "beta_fast": lambda a: a.get("beta_slow", 1.0), "beta_slow": lambda a: a.get("beta_fast", 32.0)
    },
    **SCHEDULES,
}  # fmt: skip
RAMPS: dict[str, Ramp] = {
    "ramp inverted: high frequencies are divided, low ones unchanged": lambda r, slow, fast: (r - slow) / (fast - slow),
    "ramp linear in the wavelength, expected in the turns": lambda r, slow, fast: (
        (1 / r - 1 / fast) / (1 / slow - 1 / fast)
    ),
    "no ramp: frequencies between the two limits are divided": lambda r, slow, fast: float(r < fast),
    "frequencies between the two limits are unchanged: no ramp, or its limits exchanged": lambda r, slow, fast: float(
        r < slow
    ),
}


def _ramps(slow_name: str, fast_name: str, fast_default: float) -> Faults:
    return {says: _by_turns(ramp, slow_name, fast_name, fast_default) for says, ramp in RAMPS.items()} | SCHEDULES


FAULTS: dict[str, Faults] = {
    "rotary": {**OF_HALF, **ROTATIONS},
    "rotary_interleaved": {
        "layout is half, expected interleaved": {"layout": "half"},
        "layouts are mixed: pairs are interleaved with tables of halves (cat, expected repeat_interleave)": {"tables": "half"},
        **ROTATIONS,
    },
    "rotary_partial": {
        **OF_HALF,
        "wrong exponent: base^(-2c/head_dim), expected base^(-2c/rotary_dim)": {
            "base": lambda a: a["base"] ** (a["rotary_dim"] / len(a["x"][0][0][0]))
        },
        "the whole head is turned: rotary_dim is ignored": {"rotary_dim": None},
        **ROTATIONS,
    },
    "sinusoidal": {"layout is concat (all sines first), expected interleaved": {"layout": "concat"}, **CODES},
    "sinusoidal_concat": {**ALTERNATING, **CODES},
    "sinusoidal_endpoint": {
        "exponents are 2c/dim, expected c/(dim/2 - 1): the last frequency is not 1/base": {"endpoint": False},
        **ALTERNATING,
        **CODES,
    },
    "default": BASES,
    "linear": {
        UNSCALED: {"factor": 1.0},
        "is NTK-aware scaling": formulas.ntk,
        "frequencies are multiplied by factor, expected divided": {"factor": lambda a: 1 / a["factor"]},
        **BASES,
    },
    "ntk": {
        "is plain linear interpolation": formulas.linear,
        "is plain linear interpolation by factor^(d/(d-2))": lambda **a: formulas.linear(
            a["head_dim"], a["base"], _ntk_base(a) / a["base"]
        ),
        "exponent d/(d-2) missing: the base is multiplied by factor alone": lambda head_dim, base, factor: formulas.default(
            head_dim, base * factor
        ),
        UNSCALED: {"factor": 1.0},
        **BASES,
    },
    "ntk_mixed": {
        "exponent is ignored: 0.625 is used": {"exponent": 0.625},
        "the exponent is 0.75 where none is given, expected 0.625": {"exponent": lambda a: a.get("exponent", 0.75)},
        "is plain linear interpolation": {"exponent": 0.0},
        "is mixed with nothing: frequency m is divided by factor^(2m/d) (exponent 1)": {"exponent": 1.0},
        UNSCALED: {"factor": 1.0},
        **BASES,
    },
    "dynamic": {
        "factor is ignored: the scale is length / original_max_positions": {"factor": 1.0},
        "length is ignored: scaled by factor, as for every text": _scheduled(formulas.ntk),
        "texts shorter than original_max_positions are scaled, too": lambda **a: formulas.ntk(
            a["head_dim"], a["base"], a["factor"] * a["length"] / a["original_max_positions"] - (a["factor"] - 1)
        ),
        UNSCALED: {"length": 0},
        **BASES,
    },
    "longrope": {
        "long_factor is taken from original_max_positions on, expected for longer texts": {"length": lambda a: a["length"] + 1},
        "length is ignored: long_factor is always used": {"short_factor": lambda a: a["long_factor"]},
        "length is ignored: short_factor is always used": {"long_factor": lambda a: a["short_factor"]},
        "short_factor and long_factor are exchanged": {
            "short_factor": lambda a: a["long_factor"], "long_factor": lambda a: a["short_factor"]
        },
        "frequencies are multiplied by the factors, expected divided": {
            name: lambda a, name=name: [1 / x for x in a[name]] for name in ("short_factor", "long_factor")
        },
        **BASES,
    },
    "yarn": {"wavelengths are blended, expected frequencies (the 'revised' form)": {"wavelengths": True}, **YARN},
    "yarn_revised": {"frequencies are blended, expected wavelengths (yarn)": {"wavelengths": False}, **YARN},
    "yarn_paper": {
        "ramp by pair number, as in the code (yarn), expected by turns, as in the paper": formulas.yarn,
        **_ramps("beta_slow", "beta_fast", 32.0),
    },
    "llama3": _ramps("low_freq_factor", "high_freq_factor", 4.0),
    "proportional": {
        "exponents are 2c/rotary_dim (partial rotary), expected 2c/head_dim": _partial_rotary,
        "fraction is ignored: nothing is zero": {"fraction": 1.0},
        "the zeros are left out: head_dim/2 frequencies expected": lambda **a: [f for f in formulas.proportional(**a) if f],
        **BASES,
    },
    "alibi": {
        "they are 2^(-8(h+1)/heads), which holds for powers of two only": lambda num_heads: [
            2 ** (-8 * (h + 1) / num_heads) for h in range(num_heads)
        ],
        "another order: sorted from large to small": lambda num_heads: sorted(formulas.alibi(num_heads), reverse=True),
        "they start at 2^0: h is used, expected h + 1": lambda num_heads: [2 ** (-8 * h / num_heads) for h in range(num_heads)],
        "the sign is wrong: slopes are negative, expected positive": lambda num_heads: [-s for s in formulas.alibi(num_heads)],
        "those of the next power of two are used, cut off": lambda num_heads: formulas.alibi(
            2 ** math.ceil(math.log2(num_heads))
        )[:num_heads],
    },
    "t5": {
        "direction reversed: it takes query minus key": each(lambda r: -r, "relative_position"),
        "the bidirectional flag is ignored: always bidirectional": {"bidirectional": True},
        "the bidirectional flag is ignored: always causal": {"bidirectional": False},
        "the bidirectional flag is taken the wrong way round": {"bidirectional": lambda a: not a["bidirectional"]},
        "saturates at the wrong distance: max_distance is ignored, 128 is used": {"max_distance": 128},
        "saturates at the wrong distance: max_distance - 1": {"max_distance": lambda a: a["max_distance"] - 1},
        "num_buckets is ignored: 32 is used": {"num_buckets": 32},
        "off by one: distances are one too large": each(lambda r: r + (r > 0) - (r < 0), "relative_position"),
        "off by one: distances are one too small": each(lambda r: r - (r > 0) + (r < 0), "relative_position"),
    },
    "deberta": {
        "direction reversed: it takes key minus query": each(lambda r: -r, "relative_position"),
        "buckets is ignored: 256 is used": {"buckets": 256},
        "max_position is ignored: 512 is used": {"max_position": 512},
    },
    "xpos": {
        "this is the scale of keys, the inverse of that of queries": each(lambda p: -p),
        "scale_base is ignored: 512 is used": {"scale_base": 512},
        "positions are centred on the middle of the sequence": {
            "positions": lambda a: [p - len(a["positions"]) // 2 for p in a["positions"]]
        },
    },
}  # fmt: skip
TEMPERATURES: dict[str, Callable[[float], float]] = {
    "temperature missing: the attention factor is 1": lambda expected: 1.0,
    "temperature squared": lambda expected: expected**2,
    "temperature is the square root": lambda expected: expected**0.5,
    "temperature lacks the + 1": lambda expected: expected - 1,
}
"""What an attention factor can be instead of the expected one."""
