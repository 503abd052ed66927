# SPDX-License-Identifier: Apache-2.0
"""The authors' formulas in plain Python numbers (float64), one entry at a time: the source of the golden vectors.

Nothing here is shared with the rest of posenc, so an error there cannot hide here. Arguments are those of the calling
conventions (docs/conform.md).
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

from posenc.errors import InputError, unknown

Vector = list[float]
Rows = list[Vector]


def rotary(
    x: Sequence[Sequence[Sequence[Sequence[float]]]], positions: Sequence[float], base: float, layout: str = "half",
    rotary_dim: int | None = None,
) -> list[list[Rows]]:  # fmt: skip
    """x (batch, heads, seq, head_dim), each row turned by its position: pair c by the angle position * base^(-2c/d).

    The pairs are channels (2c, 2c+1) in the interleaved layout (Su et al. 2021, RoFormer, eq. 34) and (c, c + d/2) in
    the half layout (GPT-NeoX; Llama in transformers). Only the first d = rotary_dim channels turn (GPT-J, GPT-NeoX).
    """
    return [
        [
            [_turned(row, at, base, layout, rotary_dim or len(row)) for row, at in zip(head, positions, strict=True)]
            for head in sequence
        ]
        for sequence in x
    ]


def _turned(row: Sequence[float], position: float, base: float, layout: str, dim: int) -> Vector:
    if layout not in ("half", "interleaved"):
        raise unknown("layout", layout, ("half", "interleaved"))
    turned = list(row)
    for c, frequency in enumerate(default(dim, base)):
        a, b = (2 * c, 2 * c + 1) if layout == "interleaved" else (c, c + dim // 2)
        cos, sin = math.cos(position * frequency), math.sin(position * frequency)
        turned[a], turned[b] = row[a] * cos - row[b] * sin, row[b] * cos + row[a] * sin
    return turned


def sinusoidal(
    positions: Sequence[float], dim: int, base: float, layout: str = "interleaved", endpoint: bool = False
) -> Rows:
    """sin and cos of position * frequency_c, (seq, dim) (Vaswani et al. 2017, section 3.5).

    layout "interleaved" alternates them (the paper), "concat" has all sines first (Transformer-XL, Marian). With
    endpoint the frequencies are base^(-c/(dim/2 - 1)), so the last one is 1/base (tensor2tensor's get_timing_signal_1d,
    fairseq, Whisper).
    """
    pairs = dim // 2
    rows = []
    for position in positions:
        angles = [position * base ** -(c / (pairs - 1) if endpoint else 2 * c / dim) for c in range(pairs)]
        sines, cosines = [math.sin(a) for a in angles], [math.cos(a) for a in angles]
        if layout == "interleaved":
            rows.append([value for pair in zip(sines, cosines, strict=True) for value in pair])
        elif layout == "concat":
            rows.append(sines + cosines)
        else:
            raise unknown("layout", layout, ("interleaved", "concat"))
    return rows


# -------------------------------------------------------------------- rotary frequencies


def default(head_dim: int, base: float) -> Vector:
    """base^(-2c/head_dim), c = 0 .. head_dim/2 - 1 (Su et al. 2021, section 3.2.2)."""
    return [base ** (-2 * c / head_dim) for c in range(head_dim // 2)]


def linear(head_dim: int, base: float, factor: float) -> Vector:
    """Position interpolation: every frequency over factor (Chen et al. 2023, eq. 4)."""
    return [f / factor for f in default(head_dim, base)]


def ntk(head_dim: int, base: float, factor: float) -> Vector:
    """NTK-aware: the base times factor^(d/(d-2)) (bloc97, reddit.com/r/LocalLLaMA 14lz7j5, 2023)."""
    return default(head_dim, base * factor ** (head_dim / (head_dim - 2)))


def ntk_mixed(head_dim: int, base: float, factor: float, exponent: float = 0.625) -> Vector:
    """Frequency m = 1 .. d/2 divided by exp(a m^exponent), a = ln(factor) / (d/2)^exponent (Su, kexue.fm/archives/9706;
    bojone/rerope, ntk_patch.py)."""
    a = math.log(factor) / (head_dim / 2) ** exponent
    return [f / math.exp(a * m**exponent) for m, f in enumerate(default(head_dim, base), 1)]


def dynamic(head_dim: int, base: float, factor: float, original_max_positions: int, length: int) -> Vector:
    """Dynamic NTK for texts of that length: NTK-aware by factor * length / original - (factor - 1), from the original
    length on (emozilla, reddit.com/r/LocalLLaMA 14mrgpr, 2023; transformers)."""
    times = max(length, original_max_positions) / original_max_positions
    return ntk(head_dim, base, factor * times - (factor - 1))


def longrope(
    head_dim: int, base: float, short_factor: Sequence[float], long_factor: Sequence[float], original_max_positions: int,
    length: int,
) -> Vector:  # fmt: skip
    """LongRoPE: frequencies over long_factor for texts longer than the original length, else over short_factor (Ding et
    al. 2024; microsoft/LongRoPE; transformers)."""
    divisors = long_factor if length > original_max_positions else short_factor
    return [f / divisor for f, divisor in zip(default(head_dim, base), divisors, strict=True)]


def longrope_attention_factor(factor: float, original_max_positions: int) -> float:
    """sqrt(1 + ln(factor) / ln(original length)), which multiplies cos and sin (Ding et al. 2024)."""
    return math.sqrt(1 + math.log(factor) / math.log(original_max_positions))


def yarn(
    head_dim: int, base: float, factor: float, original_max_positions: int, beta_fast: float = 32.0,
    beta_slow: float = 1.0, truncate: bool = True,
) -> Vector:  # fmt: skip
    """YaRN as its authors' code computes it (jquesnelle/yarn, LlamaYaRNScaledRotaryEmbedding.py; transformers).

    The ramp is linear in the pair's number, between the pairs that make beta_fast and beta_slow turns over the
    original length, rounded outwards (`truncate`; gpt-oss does not round) and clamped to 0 .. head_dim - 1.
    """
    ramp = yarn_ramp(head_dim, base, original_max_positions, beta_fast, beta_slow, truncate)
    return blend(default(head_dim, base), factor, ramp)


def yarn_ramp(
    head_dim: int, base: float, original_max_positions: int, beta_fast: float, beta_slow: float, truncate: bool
) -> Vector:
    """The ramp of `yarn`: 0 where a frequency stays, 1 where it is divided."""
    low, high = (
        head_dim * math.log(original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (beta_fast, beta_slow)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    return [min(max((c - low) / (high - low), 0.0), 1.0) for c in range(head_dim // 2)]


def yarn_revised(
    head_dim: int, base: float, factor: float, original_max_positions: int, beta_fast: float = 32.0,
    beta_slow: float = 1.0, truncate: bool = True,
) -> Vector:  # fmt: skip
    """YaRN whose ramp lies between wavelengths (jquesnelle/yarn issue 24; dwzhu-pku/PoSE, revised_yarn)."""
    ramp = yarn_ramp(head_dim, base, original_max_positions, beta_fast, beta_slow, truncate)
    return [f / ((1 - t) + t * factor) for f, t in zip(default(head_dim, base), ramp, strict=True)]


def yarn_paper(
    head_dim: int, base: float, factor: float, original_max_positions: int, beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Vector:  # fmt: skip
    """YaRN as its paper states it: the ramp is linear in the number of turns (Peng et al. 2023, eq. 18 to 20)."""
    frequencies = default(head_dim, base)
    turns = [original_max_positions * f / (2 * math.pi) for f in frequencies]
    return blend(frequencies, factor, [1 - min(max((r - beta_slow) / (beta_fast - beta_slow), 0), 1) for r in turns])


def yarn_attention_factor(factor: float) -> float:
    """0.1 ln(factor) + 1, which multiplies cos and sin (Peng et al. 2023, eq. 22; the code's get_mscale)."""
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1


def llama3(
    head_dim: int, base: float, factor: float, original_max_positions: int, low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> Vector:  # fmt: skip
    """Llama 3.1 (meta-llama/llama-models, models/llama3/model.py, apply_scaling)."""
    scaled = []
    for frequency in default(head_dim, base):
        wavelength = 2 * math.pi / frequency
        if wavelength < original_max_positions / high_freq_factor:
            scaled.append(frequency)
        elif wavelength > original_max_positions / low_freq_factor:
            scaled.append(frequency / factor)
        else:
            turns = original_max_positions / wavelength
            smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
            scaled.append((1 - smooth) * frequency / factor + smooth * frequency)
    return scaled


def proportional(head_dim: int, base: float, fraction: float) -> Vector:
    """p-RoPE: the first share of the frequencies of the whole head, the rest zero (Barbero et al. 2024, section 6;
    transformers' rope_type "proportional", Gemma 4)."""
    kept = int(fraction * head_dim // 2)
    return [f if c < kept else 0.0 for c, f in enumerate(default(head_dim, base))]


def blend(frequencies: Sequence[float], factor: float, ramp: Sequence[float]) -> Vector:
    """Each frequency as it is where ramp is 0, over factor where it is 1."""
    return [(1 - t) * f + t * f / factor for f, t in zip(frequencies, ramp, strict=True)]


# -------------------------------------------------------------------- biases


def alibi(num_heads: int) -> Vector:
    """ALiBi's slopes (Press et al. 2022, section 3; get_slopes in ofirpress/attention_with_linear_biases)."""
    lower = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (h + 1) / lower) for h in range(lower)]
    return slopes if lower == num_heads else slopes + alibi(2 * lower)[0::2][: num_heads - lower]


def t5(relative_position: Sequence[int], bidirectional: bool, num_buckets: int, max_distance: int) -> list[int]:
    """T5's buckets of key position minus query position (Raffel et al. 2020, section 2.1; _relative_position_bucket in
    mesh_tensorflow/transformer/transformer_layers.py). Bucket edges are compared as fractions, without rounding."""
    return [_t5_bucket(r, bidirectional, num_buckets, max_distance) for r in relative_position]


@cache
def _t5_bucket(relative: int, bidirectional: bool, buckets: int, max_distance: int) -> int:
    first, distance = 0, max(-relative, 0)
    if bidirectional:
        buckets //= 2
        first, distance = (buckets if relative > 0 else 0), abs(relative)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    steps = buckets - exact
    # floor(ln(distance / exact) / ln(max_distance / exact) * steps)
    reached = Fraction(distance, exact) ** steps
    edge = Fraction(max_distance, exact)
    step = next((k for k in range(steps) if edge ** (k + 1) > reached), steps - 1)
    return first + exact + step


def deberta(relative_position: Sequence[int], buckets: int, max_position: int) -> list[int]:
    """DeBERTa-v2's signed log buckets of query position minus key position, for distances below max_position (He et al.
    2021; make_log_bucket_position in microsoft/DeBERTa, deberta/da_utils.py).

    Raises:
        InputError: a distance of max_position or more, where the published codes differ.
    """
    middle = buckets // 2
    found = []
    for relative in relative_position:
        distance = abs(relative)
        if distance >= max_position:
            raise InputError(f"relative_position {relative}: the log buckets end at {max_position - 1}")
        if distance > middle:
            # ceil(ln(distance / middle) / ln((max_position - 1) / middle) * (middle - 1))
            wanted = Fraction(distance, middle) ** (middle - 1)
            edge = Fraction(max_position - 1, middle)
            distance = middle + next(k for k in range(middle) if edge**k >= wanted)
        found.append(distance if relative >= 0 else -distance)
    return found


def xpos(positions: Sequence[float], head_dim: int, scale_base: float) -> Rows:
    """What xPos multiplies a query's rotated pairs by (keys: its inverse), (seq, head_dim/2): zeta_c^(position /
    scale_base), zeta_c = (2c/d + 0.4) / 1.4 (Sun et al. 2022, section 3; torchscale/component/xpos_relative_position.py)."""
    zeta = [(2 * c / head_dim + 0.4) / 1.4 for c in range(head_dim // 2)]
    return [[z ** (position / scale_base) for z in zeta] for position in positions]
