# SPDX-License-Identifier: Apache-2.0
"""The formulas with the faults that re-implementations have, as options: without them they are the authors'."""

import math
from collections.abc import Callable
from typing import Any

from posenc.conformance import formulas

Rounding = Callable[[float], float]


def _kept(value: float) -> float:
    return value


def rotary(layout: str) -> Callable[..., Any]:
    """frequency and angle: how they are rounded; tables: the layout of cos and sin, that of the pairs if not given; signs:
    those of the sines of a pair; sines_first: cos and sin are exchanged; transposed: (batch, seq, heads, head_dim)."""

    def turn(
        x: Any, positions: Any, base: float, rotary_dim: int | None = None, layout: str = layout, *,
        frequency: Rounding = _kept, angle: Rounding = _kept, tables: str | None = None, signs: tuple[int, int] = (-1, 1),
        sines_first: bool = False, transposed: bool = False,
    ) -> Any:  # fmt: skip
        dim = rotary_dim or len(x[0][0][0])
        frequencies = [frequency(f) for f in formulas.default(dim, base)]
        of_channel = [
            frequencies[c // 2 if (tables or layout) == "interleaved" else c % (dim // 2)] for c in range(dim)
        ]
        pairs = [(2 * c, 2 * c + 1) if layout == "interleaved" else (c, c + dim // 2) for c in range(dim // 2)]
        functions = (math.sin, math.cos) if sines_first else (math.cos, math.sin)

        def row(values: Any, cos: list[float], sin: list[float]) -> list[float]:
            turned = list(values)
            for a, b in pairs:
                turned[a] = values[a] * cos[a] + signs[0] * values[b] * sin[a]
                turned[b] = values[b] * cos[b] + signs[1] * values[a] * sin[b]
            return turned

        angles = [[angle(position * f) for f in of_channel] for position in positions]
        waves = [tuple([wave(a) for a in line] for wave in functions) for line in angles]
        found = [[[row(values, *w) for values, w in zip(head, waves, strict=True)] for head in seq] for seq in x]
        return [[list(heads) for heads in zip(*seq, strict=True)] for seq in found] if transposed else found

    return turn


def sinusoidal(layout: str, endpoint: bool) -> Callable[..., Any]:
    def code(
        positions: Any,
        dim: int,
        base: float,
        layout: str = layout,
        endpoint: bool = endpoint,
        cosines_first: bool = False,
    ) -> Any:
        rows = formulas.sinusoidal(positions, dim, base, layout, endpoint)
        if not cosines_first:
            return rows
        swap = [c ^ 1 for c in range(dim)] if layout == "interleaved" else [(c + dim // 2) % dim for c in range(dim)]
        return [[row[c] for c in swap] for row in rows]

    return code


def yarn(
    head_dim: int,
    base: float,
    factor: float,
    original_max_positions: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    *,
    schedule: Callable[..., list[float]] | None = None,
    last: Callable[[int], int] = lambda head_dim: head_dim - 1,
    rounding: str = "the pair",
    inverted: bool = False,
    wavelengths: bool = False,
) -> dict[str, list[float]]:
    """YaRN with what its re-implementations change: the highest pair, what is rounded, the ramp, what is blended."""
    length, numbers = original_max_positions, (head_dim, base, factor, original_max_positions)
    if schedule is not None:
        return {"inv_freq": schedule(*numbers)}
    above, below = (head_dim * math.log(length / (turns * 2 * math.pi)) for turns in (beta_fast, beta_slow))
    unit = 2 * math.log(base)
    low, high = above / unit, below / unit
    if truncate and rounding == "the pair":
        low, high = math.floor(low), math.ceil(high)
    elif truncate and rounding == "the numerator":
        low, high = math.floor(above) / unit, math.ceil(below) / unit
    elif truncate and rounding == "inwards":
        low, high = math.ceil(low), math.floor(high)
    low, high = max(low, 0), min(high, last(head_dim))
    high += 0.001 if low == high else 0
    ramp = [min(max((c - low) / (high - low), 0.0), 1.0) for c in range(head_dim // 2)]
    ramp = [1 - t for t in ramp] if inverted else ramp
    plain = formulas.default(head_dim, base)
    if wavelengths:
        return {"inv_freq": [f / (1 - t + t * factor) for f, t in zip(plain, ramp, strict=True)]}
    return {"inv_freq": formulas.blend(plain, factor, ramp)}


Ramp = Callable[[float, float, float], float]
"""Of the turns over the original length and the two limits: 0 where a frequency stays, 1 where it is divided."""


def _ramp(turns: float, slow: float, fast: float) -> float:
    return (fast - turns) / (fast - slow)


def yarn_paper(
    head_dim: int, base: float, factor: float, original_max_positions: int, *,
    beta_slow: float = 1.0, beta_fast: float = 32.0, schedule: Callable[..., list[float]] | None = None, shape: Ramp = _ramp,
) -> dict[str, list[float]]:  # fmt: skip
    """The paper's YaRN with another ramp, or another schedule altogether."""
    numbers = (head_dim, base, factor, original_max_positions)
    if schedule is not None:
        return {"inv_freq": schedule(*numbers)}
    plain = formulas.default(head_dim, base)
    turns = [original_max_positions * f / (2 * math.pi) for f in plain]
    ramp = [min(max(shape(r, beta_slow, beta_fast), 0), 1) for r in turns]
    return {"inv_freq": formulas.blend(plain, factor, ramp)}


def llama3(
    head_dim: int, base: float, factor: float, original_max_positions: int, *,
    low_freq_factor: float = 1.0, high_freq_factor: float = 4.0, **faults: Any,
) -> dict[str, list[float]]:  # fmt: skip
    """Llama 3.1's ramp is that of YaRN's paper with limits of its own."""
    numbers = (head_dim, base, factor, original_max_positions)
    return yarn_paper(*numbers, beta_slow=low_freq_factor, beta_fast=high_freq_factor, **faults)


def default(head_dim: int, base: float) -> dict[str, list[float]]:
    return {"inv_freq": formulas.default(head_dim, base)}


def linear(head_dim: int, base: float, factor: float, *, divide: float | None = None) -> dict[str, list[float]]:
    """divide: the number that frequencies are divided by, factor if not given."""
    return {"inv_freq": formulas.linear(head_dim, base, factor if divide is None else divide)}


def ntk(
    head_dim: int, base: float, factor: float, *, scaled: float | None = None, divide: float = 1.0
) -> dict[str, list[float]]:
    """scaled: the base that is used, that of NTK-aware scaling if not given."""
    plain = formulas.ntk(head_dim, base, factor) if scaled is None else formulas.default(head_dim, scaled)
    return {"inv_freq": [f / divide for f in plain]}


def ntk_mixed(
    head_dim: int, base: float, factor: float, exponent: float = 0.625, *, first: int = 1
) -> dict[str, list[float]]:
    """first: the number of the fastest frequency."""
    a = math.log(factor) / (head_dim / 2) ** exponent
    return {"inv_freq": [f / math.exp(a * m**exponent) for m, f in enumerate(formulas.default(head_dim, base), first)]}


def dynamic(
    head_dim: int,
    base: float,
    factor: float,
    original_max_positions: int,
    length: int,
    *,
    shortest: int | None = None,
    by: float | None = None,
) -> dict[str, list[float]]:
    """shortest: the length from which texts count as longer; by: the factor of the NTK scaling, for any length."""
    times = max(length, original_max_positions if shortest is None else shortest) / original_max_positions
    return {"inv_freq": formulas.ntk(head_dim, base, factor * times - (factor - 1) if by is None else by)}


def longrope(
    head_dim: int,
    base: float,
    short_factor: Any,
    long_factor: Any,
    original_max_positions: int,
    length: int,
    factor: float,
    *,
    power: int = -1,
) -> dict[str, list[float]]:
    """power: of the factor that frequencies are multiplied by."""
    short, long = ([x**-power for x in numbers] for numbers in (short_factor, long_factor))
    return {"inv_freq": formulas.longrope(head_dim, base, short, long, original_max_positions, length)}


def yarn_revised(*numbers: Any, wavelengths: bool = True, **options: Any) -> dict[str, list[float]]:
    return yarn(*numbers, wavelengths=wavelengths, **options)


def proportional(
    head_dim: int, base: float, fraction: float, width: int | None = None, cut: bool = False
) -> dict[str, list[float]]:
    kept = int(fraction * head_dim // 2)
    values = [
        f if c < kept else 0.0 for c, f in enumerate(formulas.default(width or head_dim, base) + [0.0] * head_dim)
    ]
    return {"inv_freq": values[: kept if cut else head_dim // 2]}


def alibi(num_heads: int, slopes: Callable[[int], list[float]] = formulas.alibi) -> list[float]:
    return slopes(num_heads)


def t5(
    relative_position: Any,
    bidirectional: bool,
    num_buckets: int,
    max_distance: int,
    *,
    half_steps: bool = False,
    late: int = 0,
) -> list[int]:
    """late: distances are `late` larger than they are; half_steps: the logarithm is rounded, not cut."""
    moved = [r + (r > 0) * late - (r < 0) * late for r in relative_position]
    if not half_steps:
        return formulas.t5(moved, bidirectional, num_buckets, max_distance)
    found = []
    for relative in moved:
        side = num_buckets // 2 if bidirectional else num_buckets
        exact, distance = side // 2, abs(relative) if bidirectional else max(-relative, 0)
        if distance >= exact:
            grown = math.log(distance / exact) / math.log(max_distance / exact) * (side - exact)
            distance = min(exact + round(grown), side - 1)
        found.append(distance + (side if bidirectional and relative > 0 else 0))
    return found


def deberta(relative_position: Any, buckets: int, max_position: int, *, step: Callable[[float], float] = math.ceil, end: int = 1) -> list[int]:  # fmt: skip
    """step: what rounds the logarithm; end: the last distance is max_position - end."""
    middle, found = buckets // 2, []
    for relative in relative_position:
        distance = abs(relative)
        if distance > middle:
            grown = math.log(distance / middle) / math.log((max_position - end) / middle) * (middle - 1)
            distance = int(step(round(grown, 9))) + middle
        found.append(distance if relative >= 0 else -distance)
    return found
