# SPDX-License-Identifier: Apache-2.0
"""Frequencies of rotary position embedding and their scaling, (head_dim / 2,) each, as lists of numbers."""

import math
from collections.abc import Callable, Sequence

Vector = list[float]


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
    """Dynamic NTK for sequences of that length: NTK-aware by factor * length / original - (factor - 1), from the original
    length on (emozilla, reddit.com/r/LocalLLaMA 14mrgpr, 2023; transformers)."""
    times = max(length, original_max_positions) / original_max_positions
    return ntk(head_dim, base, factor * times - (factor - 1))


def longrope(
    head_dim: int, base: float, short_factor: Sequence[float], long_factor: Sequence[float], original_max_positions: int,
    length: int,
) -> Vector:  # fmt: skip
    """LongRoPE: frequencies over long_factor for inputs longer than the original length, else over short_factor (Ding et
    al. 2024; microsoft/LongRoPE; transformers)."""
    divisors = long_factor if length > original_max_positions else short_factor
    return [f / divisor for f, divisor in zip(default(head_dim, base), divisors, strict=True)]


def yarn(
    head_dim: int, base: float, factor: float, original_max_positions: int, beta_fast: float = 32.0,
    beta_slow: float = 1.0, truncate: bool = True, *, wavelengths: bool = False, last: int | None = None,
    round_numerator: bool = False, inverted: bool = False,
) -> Vector:  # fmt: skip
    """YaRN as its authors' code computes it (jquesnelle/yarn, LlamaYaRNScaledRotaryEmbedding.py; transformers).

    The ramp is linear in the pair's number, between the pairs that make beta_fast and beta_slow turns over the
    original length, rounded outwards (`truncate`; gpt-oss does not round) and clamped to 0 .. head_dim - 1.
    wavelengths: these are blended (jquesnelle/yarn issue 24; dwzhu-pku/PoSE, revised_yarn), not frequencies.

    Faults: last is the highest pair that the ramp can end at; round_numerator rounds only the numerator of a pair's
    number; inverted exchanges what stays and what is divided.
    """
    ends, unit = [], 2 * math.log(base)
    for turns, rounded in ((beta_fast, math.floor), (beta_slow, math.ceil)):
        numerator = head_dim * math.log(original_max_positions / (turns * 2 * math.pi))
        if not truncate:
            ends.append(numerator / unit)
        else:
            ends.append(rounded(numerator) / unit if round_numerator else rounded(numerator / unit))
    low, high = max(ends[0], 0), min(ends[1], head_dim - 1 if last is None else last)
    high += 0.001 if low == high else 0
    ramp = [min(max((c - low) / (high - low), 0.0), 1.0) for c in range(head_dim // 2)]
    ramp = [1 - t for t in ramp] if inverted else ramp
    plain = default(head_dim, base)
    if wavelengths:
        return [f / ((1 - t) + t * factor) for f, t in zip(plain, ramp, strict=True)]
    return _blend(plain, factor, ramp)


Ramp = Callable[[float, float, float], float]
"""The turns over the original length, the slow and the fast limit -> 0 where a frequency stays, 1 where it is divided; the
result is clamped to this range."""


def linear_in_turns(turns: float, slow: float, fast: float) -> float:
    return 1 - (turns - slow) / (fast - slow)


def yarn_paper(
    head_dim: int, base: float, factor: float, original_max_positions: int, beta_fast: float = 32.0,
    beta_slow: float = 1.0, *, ramp: Ramp = linear_in_turns,
) -> Vector:  # fmt: skip
    """YaRN as its paper states it: the ramp is linear in the number of turns (Peng et al. 2023, eq. 18 to 20)."""
    plain = default(head_dim, base)
    turns = [original_max_positions * f / (2 * math.pi) for f in plain]
    return _blend(plain, factor, [min(max(ramp(r, beta_slow, beta_fast), 0), 1) for r in turns])


def llama3(
    head_dim: int, base: float, factor: float, original_max_positions: int, low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0, *, ramp: Ramp = linear_in_turns,
) -> Vector:  # fmt: skip
    """Llama 3.1 (meta-llama/llama-models, models/llama3/model.py, apply_scaling): the blend of `yarn_paper` by other limits."""
    return yarn_paper(head_dim, base, factor, original_max_positions, high_freq_factor, low_freq_factor, ramp=ramp)


def _blend(frequencies: Sequence[float], factor: float, ramp: Sequence[float]) -> Vector:
    """Each frequency unchanged where ramp is 0, over factor where it is 1."""
    return [(1 - t) * f + t * f / factor for f, t in zip(frequencies, ramp, strict=True)]


def proportional(head_dim: int, base: float, fraction: float) -> Vector:
    """p-RoPE: the first share of the frequencies of the complete head, the rest zero (Barbero et al. 2024, section 6;
    transformers' rope_type "proportional", Gemma 4)."""
    nonzero = int(fraction * head_dim // 2)
    return [f if c < nonzero else 0.0 for c, f in enumerate(default(head_dim, base))]


def softmax_scale(head_dim: int, factor: float, mscale: float, mscale_all_dim: float) -> list[float]:
    """What multiplies the scores of latent attention under YaRN: m^2 / sqrt(head_dim), m = 0.1 mscale_all_dim ln(factor) + 1
    for factors above 1; mscale is for cos and sin (deepseek-ai/DeepSeek-V2, modeling_deepseek.py; DeepSeek-V3)."""
    return [head_dim**-0.5 * (0.1 * mscale_all_dim * math.log(max(factor, 1)) + 1) ** 2]


def xpos(positions: Sequence[float], head_dim: int, scale_base: float, *, gamma: float = 0.4) -> list[Vector]:
    """What xPos multiplies a query's rotated pairs by (keys: its inverse), (seq, head_dim/2): zeta_c^(position /
    scale_base), zeta_c = (2c/d + 0.4) / 1.4 (Sun et al. 2022, section 3; torchscale/component/xpos_relative_position.py).

    Faults: gamma, expected 0.4.
    """
    zeta = [(2 * c / head_dim + gamma) / (1 + gamma) for c in range(head_dim // 2)]
    return [[z ** (position / scale_base) for z in zeta] for position in positions]
