# SPDX-License-Identifier: Apache-2.0
"""The authors' formulas in float64: the source of the golden vectors.

Nothing here is shared with the rest of posenc, so an error there cannot hide here. Positional arguments are those of the
calling conventions (docs/conform.md). Keyword-only arguments describe variants of a formula: another published form, or a
common fault (`posenc.conformance.faults`).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Vector = list[float]
OfTensor = Callable[[Tensor], Tensor]


def unchanged(x: Tensor) -> Tensor:
    return x


def rotary(
    x: Any, positions: Sequence[float], base: float, rotary_dim: int | None = None, *, layout: str = "half",
    tables: str | None = None, frequency: OfTensor = unchanged, angle: OfTensor = unchanged,
) -> Tensor:  # fmt: skip
    """x (batch, heads, seq, head_dim), each row turned by its position: pair c by the angle position * base^(-2c/d).

    The pairs are channels (2c, 2c+1) in the interleaved layout (Su et al. 2021, RoFormer, eq. 34) and (c, c + d/2) in
    the half layout (GPT-NeoX; Llama in transformers). Only the first d = rotary_dim channels turn (GPT-J, GPT-NeoX).

    Faults: tables is the layout of cos and sin; frequency and angle change the frequencies and the angles.
    """
    x = torch.as_tensor(x, dtype=torch.float64)
    d = rotary_dim or x.shape[-1]
    frequencies = frequency(torch.tensor(default(d, base), dtype=torch.float64))
    angles = angle(torch.as_tensor(positions, dtype=torch.float64)[:, None] * frequencies)
    angles = _by_layout(tables or layout, angles, angles)
    first, second = (slice(0, d // 2), slice(d // 2, d)) if layout == "half" else (slice(0, d, 2), slice(1, d, 2))
    cos, sin, turned = angles.cos(), angles.sin(), x.clone()
    turned[..., first] = x[..., first] * cos[:, first] - x[..., second] * sin[:, first]
    turned[..., second] = x[..., second] * cos[:, second] + x[..., first] * sin[:, second]
    return turned


def sinusoidal(
    positions: Sequence[float], dim: int, base: float, *, layout: str = "interleaved", endpoint: bool = False,
    angle: OfTensor = unchanged,
) -> Tensor:  # fmt: skip
    """sin and cos of position * frequency_c, (seq, dim) (Vaswani et al. 2017, section 3.5).

    layout "interleaved" alternates them (the paper), "concat" has all sines first (Transformer-XL, Marian). With
    endpoint the frequencies are base^(-c/(dim/2 - 1)), so the last one is 1/base (tensor2tensor's get_timing_signal_1d,
    fairseq, Whisper).

    Faults: angle changes the angles.
    """
    pairs = dim // 2
    exponents = [c / (pairs - 1) if endpoint else 2 * c / dim for c in range(pairs)]
    frequencies = torch.tensor([base**-exponent for exponent in exponents], dtype=torch.float64)
    angles = angle(torch.as_tensor(positions, dtype=torch.float64)[:, None] * frequencies)
    return _by_layout(layout, angles.sin(), angles.cos())


def _by_layout(layout: str, first: Tensor, second: Tensor) -> Tensor:
    """Both members of all pairs, (..., d/2) each, in the order of a layout: (..., d)."""
    return torch.stack((first, second), -1).flatten(-2) if layout == "interleaved" else torch.cat((first, second), -1)


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
    """Each frequency as it is where ramp is 0, over factor where it is 1."""
    return [(1 - t) * f + t * f / factor for f, t in zip(frequencies, ramp, strict=True)]


def proportional(head_dim: int, base: float, fraction: float) -> Vector:
    """p-RoPE: the first share of the frequencies of the complete head, the rest zero (Barbero et al. 2024, section 6;
    transformers' rope_type "proportional", Gemma 4)."""
    nonzero = int(fraction * head_dim // 2)
    return [f if c < nonzero else 0.0 for c, f in enumerate(default(head_dim, base))]


# -------------------------------------------------------------------- biases


def alibi(num_heads: int) -> Vector:
    """ALiBi's slopes (Press et al. 2022, section 3; get_slopes in ofirpress/attention_with_linear_biases)."""
    lower = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (h + 1) / lower) for h in range(lower)]
    return slopes if lower == num_heads else slopes + alibi(2 * lower)[0::2][: num_heads - lower]


def t5(relative_position: Sequence[int], bidirectional: bool, num_buckets: int, max_distance: int) -> list[int]:
    """T5's buckets of key position minus query position (Raffel et al. 2020, section 2.1; _relative_position_bucket in
    mesh_tensorflow/transformer/transformer_layers.py)."""
    side = num_buckets // 2 if bidirectional else num_buckets
    exact = side // 2

    def bucket(relative: int) -> int:
        distance = abs(relative) if bidirectional else max(-relative, 0)
        if distance >= exact:
            steps = math.log(distance / exact) / math.log(max_distance / exact) * (side - exact)
            distance = min(exact + math.floor(round(steps, 9)), side - 1)
        return distance + (side if bidirectional and relative > 0 else 0)

    return [bucket(relative) for relative in relative_position]


def deberta(relative_position: Sequence[int], buckets: int, max_position: int) -> list[int]:
    """DeBERTa-v2's signed log buckets of query position minus key position, for distances below max_position (He et al.
    2021; make_log_bucket_position in microsoft/DeBERTa, deberta/da_utils.py)."""
    middle = buckets // 2

    def bucket(distance: int) -> int:
        if distance <= middle:
            return distance
        steps = math.log(distance / middle) / math.log((max_position - 1) / middle) * (middle - 1)
        return middle + math.ceil(round(steps, 9))

    return [bucket(r) if r >= 0 else -bucket(-r) for r in relative_position]


def xpos(positions: Sequence[float], head_dim: int, scale_base: float) -> list[Vector]:
    """What xPos multiplies a query's rotated pairs by (keys: its inverse), (seq, head_dim/2): zeta_c^(position /
    scale_base), zeta_c = (2c/d + 0.4) / 1.4 (Sun et al. 2022, section 3; torchscale/component/xpos_relative_position.py)."""
    zeta = [(2 * c / head_dim + 0.4) / 1.4 for c in range(head_dim // 2)]
    return [[z ** (position / scale_base) for z in zeta] for position in positions]
