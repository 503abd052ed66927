# SPDX-License-Identifier: Apache-2.0
"""The authors' formulas in float64: the source of the golden vectors.

Nothing here is shared with the rest of posenc, so an error there cannot hide here. Positional arguments are those of the
calling conventions (`posenc conform --help`). Keyword-only arguments describe variants of a formula: another published form, or a
common fault (`posenc.conformance.faults`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

Vector = list[float]
OfTensor = Callable[[Tensor], Tensor]


def unchanged(x: Tensor) -> Tensor:
    return x


def rotary(
    x: Any, positions: Any, base: float, rotary_dim: int | None = None, *, layout: str = "half", trailing: bool = False,
    tables: str | None = None, at: OfTensor = unchanged, frequency: OfTensor = unchanged, angle: OfTensor = unchanged,
) -> Tensor:  # fmt: skip
    """x (batch, heads, seq, head_dim), each row turned by its position: pair c by the angle position * base^(-2c/d).

    The pairs are channels (2c, 2c+1) in the interleaved layout (Su et al. 2021, RoFormer, eq. 34) and (c, c + d/2) in
    the half layout (GPT-NeoX; Llama in transformers). Only the first d = rotary_dim channels turn (GPT-J, GPT-NeoX), or
    with trailing the last ones (DeepSeek-V4).

    positions: one of each row, or any shape that broadcasts to (batch, heads, seq, d/2).

    Faults: tables is the layout of cos and sin; at, frequency and angle change the positions (batch or 1, 1, seq, 1), the
    frequencies and the angles.
    """
    x, positions = torch.as_tensor(x, dtype=torch.float64), at(_in_four_axes(positions))
    d = rotary_dim or x.shape[-1]
    frequencies = frequency(torch.tensor(default(d, base), dtype=torch.float64))
    angles = angle(positions * frequencies)
    angles = _by_layout(tables or layout, angles, angles)
    return _turned(x, angles.cos(), angles.sin(), layout, x.shape[-1] - d if trailing else 0)


def _in_four_axes(positions: Any) -> Tensor:
    """Positions that broadcast to (batch, heads, seq, d/2); given one of each row, (1, 1, seq, 1)."""
    positions = torch.as_tensor(positions, dtype=torch.float64)
    return positions[None, None, :, None] if positions.ndim == 1 else positions


def _turned(x: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int = 0) -> Tensor:
    """x with the channels from start on turned, by cos and sin of each of them."""
    d = cos.shape[-1]
    first, second = (slice(0, d // 2), slice(d // 2, d)) if layout == "half" else (slice(0, d, 2), slice(1, d, 2))
    turned = x.clone()
    part, result = x[..., start : start + d], turned[..., start : start + d]
    result[..., first] = part[..., first] * cos[..., first] - part[..., second] * sin[..., first]
    result[..., second] = part[..., second] * cos[..., second] + part[..., first] * sin[..., second]
    return turned


def rotary_proportional(
    x: Any, positions: Any, base: float, fraction: float, *, frequency: OfTensor = unchanged, **options: Any
) -> Tensor:
    """RoPE with the frequencies of `proportional`: pairs (c, c + head_dim/2) of the complete head, of which the first
    share turns (transformers' rope_type "proportional", Gemma 4)."""
    width = torch.as_tensor(x).shape[-1]
    turning = torch.arange(width // 2) < int(fraction * width // 2)
    return rotary(x, positions, base, frequency=lambda f: frequency(f) * turning, **options)


def rotary_ragged(x: Any, offsets: Sequence[int], base: float, **options: Any) -> Tensor:
    """RoPE of a batch whose rows begin at different positions, in generation or after padding on the left, whose
    tokens are at negative positions (seqlen_offsets in Dao-AILab/flash-attention, flash_attn/layers/rotary.py)."""
    return rotary(x, positions_of({"x": x, "offsets": offsets}), base, **options)


def rotary_packed(
    x: Any, cu_seqlens: Sequence[int], base: float, starts: Sequence[int] = (), ranks: int = 1, rank: int = 0, **options: Any
) -> Tensor:  # fmt: skip
    """RoPE of documents in one row; document n has the tokens cu_seqlens[n] .. cu_seqlens[n + 1] - 1 (cu_seqlens in
    Dao-AILab/flash-attention, flash_attn/layers/rotary.py), at the positions from starts[n] (0) on.

    Of several ranks, each has chunks rank and 2 ranks - 1 - rank of the 2 ranks chunks of every document
    (_apply_rotary_pos_emb_thd in NVIDIA/Megatron-LM).
    """
    given = {"cu_seqlens": cu_seqlens, "starts": starts, "ranks": ranks, "rank": rank}
    return rotary(x, positions_of(given), base, **options)


def positions_of(arguments: Mapping[str, Any]) -> Tensor:
    """Where the tokens of a case are, (batch or 1, 1, seq, 1); of several axes, the farthest."""
    if "offsets" in arguments:
        rows = torch.arange(torch.as_tensor(arguments["x"]).shape[-2])
        positions = torch.as_tensor(arguments["offsets"], dtype=torch.float64)[:, None] + rows
    elif "cu_seqlens" in arguments:
        lengths = torch.as_tensor(arguments["cu_seqlens"]).diff().tolist()
        ranks, rank = arguments.get("ranks", 1), arguments.get("rank", 0)
        documents: list[Tensor] = []
        for length, start in zip(lengths, arguments.get("starts") or [0] * len(lengths), strict=True):
            chunks = (start + torch.arange(length, dtype=torch.float64)).chunk(2 * ranks)
            documents += [chunks[rank], chunks[-1 - rank]] if ranks > 1 else chunks
        positions = torch.cat(documents)[None]
    else:
        positions = torch.as_tensor(arguments["positions"], dtype=torch.float64)
        positions = positions.abs().amax(0, keepdim=True) if positions.ndim == 2 else positions[None]
    return positions[:, None, :, None]


def m_rope(
    x: Any,
    positions: Any,
    base: float,
    sections: Sequence[int],
    *,
    interleaved: bool = False,
    begin: int = 1,
    **options: Any,
) -> Tensor:
    """M-RoPE, half layout: the pairs are dealt to time, height and width, positions (3, seq), as sections counts them.

    In blocks, one after the other (Qwen2-VL, Wang et al. 2024, section 2.1); interleaved: t h w t h w .. with the last
    ones to time (Qwen3-VL).

    Faults: begin is the first pair of height in turn, expected 1.
    """
    if interleaved:
        axes = [0] * sum(sections)
        for axis in (1, 2):
            pairs = range(begin + axis - 1, 3 * sections[axis], 3)
            axes[pairs.start : pairs.stop : 3] = [axis] * len(axes[pairs.start : pairs.stop : 3])
    else:
        axes = [axis for axis, count in enumerate(sections) for _ in range(count)]
    return rotary(x, torch.as_tensor(positions, dtype=torch.float64)[axes].T[None, None], base, **options)


def cell(n: int, t: int, h: int, w: int) -> tuple[int, int, int]:
    """Frame, row and column of token n of a grid: along the rows, frame by frame."""
    return n // (h * w), n // w % h, n % w


def frame_time(frame: int, begin: int, interval: float) -> int:
    return begin + int(frame * interval)


def m_rope_ids(
    token_types: Sequence[Sequence[int]], image_grids: Sequence[Sequence[int]], video_grids: Sequence[Sequence[int]],
    attention_mask: Sequence[Sequence[int]], merge: int, seconds_per_grid: Sequence[float] = (),
    tokens_per_second: float = 1.0, *, frames: bool = False, cell: Callable[..., tuple[int, int, int]] = cell,
    time: Callable[[int, int, float], int] = frame_time, last: Callable[..., int] = max, spaced: Sequence[int] = (2,),
) -> list[list[list[int]]]:  # fmt: skip
    """Positions of text (0), image (1) and video tokens (2): (3, batch, seq) for time, height and width.

    A text token is at the same number on all axes. An image or video begins there on each axis and has a grid of
    frames, rows and columns, of merge x merge patches; what follows goes on after the largest number on any axis (Wang
    et al. 2024, section 2.1; get_rope_index in transformers). The frames of video n are seconds_per_grid[n] *
    tokens_per_second apart, rounded down (Qwen2.5-VL). frames: text separates the frames of a video, each of which is a
    grid of one frame (Qwen3-VL).

    Faults: cell and time change where a token and a frame are; last is the number after which text goes on; spaced are
    the types of which seconds_per_grid counts the grids.
    """
    videos = [grid for t, h, w in video_grids for grid in ([(1, h, w)] * t if frames else [(t, h, w)])]
    grids, seconds = {1: iter(image_grids), 2: iter(videos)}, iter(seconds_per_grid)
    ids = [[[0] * len(row) for row in token_types] for _ in range(3)]
    for row, (types, mask) in enumerate(zip(token_types, attention_mask, strict=True)):
        begin = 0
        for kind, run in groupby((n for n, seen in enumerate(mask) if seen), key=types.__getitem__):
            tokens, places = list(run), []
            if kind:
                t, h, w = next(grids[kind])
                grid = t, h // merge, w // merge
                interval = next(seconds, 1.0) * tokens_per_second if kind in spaced else 1.0
                cells = [cell(n, *grid) for n in range(math.prod(grid))]
                places = [(time(frame, begin, interval), begin + y, begin + x) for frame, y, x in cells]
                begin = 1 + last(*map(max, zip(*places, strict=True)))
            rest = len(tokens) - len(places)  # tokens without a grid count as text
            places += [(begin + n, begin + n, begin + n) for n in range(rest)]
            begin += rest
            for n, place in zip(tokens, places, strict=True):
                for axis in range(3):
                    ids[axis][row][n] = place[axis]
    return ids


def rotary_axial(
    x: Any, positions: Any, base: float, widths: Sequence[int], *, layout: str = "interleaved",
    frequency: OfTensor = unchanged, **options: Any,
) -> Tensor:  # fmt: skip
    """RoPE of several axes, positions (axes, seq): the pairs are dealt to the axes in blocks, in their order, widths[a] / 2 of
    them to axis a, each turned by base^(-2c/widths[a]), c from 0 on for each axis (EmbedND in black-forest-labs/flux,
    src/flux/modules/layers.py; Wan, HunyuanVideo, Qwen-Image, Lumina in diffusers). In the half layout these are pairs
    (c, c + head_dim/2) (DINOv3, facebookresearch/dinov3, dinov3/layers/rope_position_encoding.py)."""
    ladders = torch.tensor([f for width in widths for f in default(width, base)], dtype=torch.float64)
    axes = [axis for axis, width in enumerate(widths) for _ in range(width // 2)]
    positions = torch.as_tensor(positions, dtype=torch.float64)[axes].T[None, None]
    return rotary(x, positions, base, layout=layout, frequency=lambda f: frequency(ladders), **options)


def fope(
    x: Any, positions: Any, base: float, cosines: Any, sines: Any, *, layout: str = "half", padding: float = 0.0,
    at: OfTensor = unchanged, frequency: OfTensor = unchanged, angle: OfTensor = unchanged,
) -> Tensor:  # fmt: skip
    """FoPE: cos and sin of pair c are sums over the first frequencies base^(-2m/head_dim), weighted by column c of cosines
    and sines, (heads, frequencies, pairs); further pairs pass through, with cos 1 and sin 0 (Hua et al. 2024, section 3).

    Faults: padding is the sine of pairs that pass through; at, frequency and angle as in `rotary`.
    """
    x = torch.as_tensor(x, dtype=torch.float64)
    weights = [torch.as_tensor(w, dtype=torch.float64) for w in (cosines, sines)]
    frequencies = frequency(torch.tensor(default(x.shape[-1], base), dtype=torch.float64))[: weights[0].shape[1]]
    angles = angle(at(_in_four_axes(positions)) * frequencies)
    cos, sin = angles.cos() @ weights[0], angles.sin() @ weights[1]
    ends = (0, x.shape[-1] // 2 - cos.shape[-1])
    cos, sin = torch.nn.functional.pad(cos, ends, value=1.0), torch.nn.functional.pad(sin, ends, value=padding)
    return _turned(x, _by_layout(layout, cos, cos), _by_layout(layout, sin, sin), layout)


def softmax_scale(head_dim: int, factor: float, mscale: float, mscale_all_dim: float) -> list[float]:
    """What multiplies the scores of latent attention under YaRN: m^2 / sqrt(head_dim), m = 0.1 mscale_all_dim ln(factor) + 1
    for factors above 1; mscale is for cos and sin (deepseek-ai/DeepSeek-V2, modeling_deepseek.py; DeepSeek-V3)."""
    return [head_dim**-0.5 * (0.1 * mscale_all_dim * math.log(max(factor, 1)) + 1) ** 2]


def sinusoidal(
    positions: Sequence[float], dim: int, base: float, *, layout: str = "interleaved", endpoint: bool = False,
    frequency: OfTensor = unchanged, angle: OfTensor = unchanged,
) -> Tensor:  # fmt: skip
    """sin and cos of position * frequency_c, (seq, dim) (Vaswani et al. 2017, section 3.5).

    layout "interleaved" alternates them (the paper), "concat" has all sines first (Transformer-XL, Marian). With
    endpoint the frequencies are base^(-c/(dim/2 - 1)), so the last one is 1/base (tensor2tensor's get_timing_signal_1d,
    fairseq, Whisper).

    Faults: frequency and angle change the frequencies and the angles.
    """
    pairs = dim // 2
    exponents = [c / (pairs - 1) if endpoint else 2 * c / dim for c in range(pairs)]
    frequencies = frequency(torch.tensor([base**-exponent for exponent in exponents], dtype=torch.float64))
    angles = angle(torch.as_tensor(positions, dtype=torch.float64)[:, None] * frequencies)
    return _by_layout(layout, angles.sin(), angles.cos())


def sinusoidal_2d(
    height: int, width: int, dim: int, base: float, *, order: str = "sin x cos x sin y cos y", down: bool = False,
    endpoint: bool = False, interleaved: bool = False, scale: Callable[[int, int], float] = lambda n, size: n,
) -> Tensor:  # fmt: skip
    """Codes of a grid, (height * width, dim), row by row: sin and cos of column * frequency_c, then of row * frequency_c, with
    frequency_c = base^(-c / (dim/4)), a quarter of the channels each (get_2d_sincos_pos_embed in
    facebookresearch/mae, util/pos_embed.py).

    Faults: order is that of the quarters; down numbers the tokens down the columns; endpoint: exponents c / (dim/4 - 1);
    interleaved alternates sines and cosines within an axis's half; scale changes the n-th place of an axis of that size.
    """
    pairs = dim // 4
    frequencies = [base ** (-c / (pairs - 1 if endpoint else pairs)) for c in range(pairs)]
    cells = (
        [(y, x) for x in range(width) for y in range(height)]
        if down
        else [divmod(n, width) for n in range(height * width)]
    )
    rows = []
    for y, x in cells:
        at = {"x": scale(x, width), "y": scale(y, height)}
        words = order.split()
        parts = [
            [getattr(math, f)(at[axis] * w) for w in frequencies]
            for f, axis in zip(words[::2], words[1::2], strict=True)
        ]
        if interleaved:
            parts = [[v for pair in zip(*parts[n : n + 2], strict=True) for v in pair] for n in (0, 2)]
        rows.append([value for part in parts for value in part])
    return torch.tensor(rows, dtype=torch.float64)


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


# -------------------------------------------------------------------- biases


def alibi(num_heads: int, *, first: int = 1) -> Vector:
    """ALiBi's slopes (Press et al. 2022, section 3; get_slopes in ofirpress/attention_with_linear_biases).

    Faults: first is the number of the first head, expected 1.
    """
    lower = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (h + first) / lower) for h in range(lower)]
    return slopes if lower == num_heads else slopes + alibi(2 * lower, first=first)[0::2][: num_heads - lower]


def t5(
    relative_position: Sequence[int], bidirectional: bool, num_buckets: int, max_distance: int, *,
    cut: Callable[[float], int] = math.floor,
) -> list[int]:  # fmt: skip
    """T5's buckets of key position minus query position (Raffel et al. 2020, section 2.1; _relative_position_bucket in
    mesh_tensorflow/transformer/transformer_layers.py).

    Faults: cut makes a step of the logarithm an integer.
    """
    side = num_buckets // 2 if bidirectional else num_buckets
    exact = side // 2

    def bucket(relative: int) -> int:
        distance = abs(relative) if bidirectional else max(-relative, 0)
        if distance >= exact:
            steps = math.log(distance / exact) / math.log(max_distance / exact) * (side - exact)
            distance = min(exact + cut(round(steps, 9)), side - 1)
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


# -------------------------------------------------------------------- relative scores, index tables

Distance = Callable[[int, int, int, int], int]


def key_minus_query(i: int, j: int, queries: int, keys: int) -> int:
    """The distance of key j and query i, of which the last one is at the last key."""
    return j - (i + keys - queries)


def relative(
    q: Any, table: Any, num_keys: int, *, distance: Distance = key_minus_query, row: Callable[[int, int], int] = lambda r, last: min(max(r, 0), last),
) -> Tensor:  # fmt: skip
    """Scores of queries and positions, (batch, heads, num_queries, num_keys): q_i . table[clip(j - i, -m, m) + m], table (2m + 1,
    head_dim) from the farthest key before the query to the farthest after it (Shaw et al. 2018, eq. 4 and 5; with m =
    num_keys - 1, the second term of Transformer-XL, Dai et al. 2019, section 3.3, and of a Conformer). The queries are the last
    num_queries of num_keys tokens.

    Faults: distance is that of key j and query i; row is the table's for a distance, counted from its first row, and the last one.
    """
    q, table = (torch.as_tensor(x, dtype=torch.float64) for x in (q, table))
    queries, last = q.shape[-2], len(table) - 1
    index = [
        [row(distance(i, j, queries, num_keys) + last // 2, last) for j in range(num_keys)] for i in range(queries)
    ]
    return torch.einsum("bhid,ijd->bhij", q, table[torch.tensor(index)])


def relative_shift(
    scores: Any, *, column: Distance = lambda i, j, queries, columns: queries - 1 - i + j, keys: Callable[[int, int], int] | None = None,
) -> Tensor:  # fmt: skip
    """(batch, heads, queries, keys) of scores (batch, heads, queries, queries + keys - 1), whose columns run from the farthest
    key before a query to the farthest after it: row i, key j from column queries - 1 - i + j (rel_shift in ESPnet,
    espnet/nets/pytorch_backend/transformer/embedding.py and attention.py, RelPositionMultiHeadedAttention; speechbrain).

    Faults: column is where key j of query i comes from, 0 where there is none; keys is their number, from queries and columns.
    """
    scores = torch.as_tensor(scores, dtype=torch.float64)
    queries, columns = scores.shape[-2:]
    count = columns - queries + 1 if keys is None else keys(queries, columns)
    shifted = scores.new_zeros(*scores.shape[:-1], count)
    for i in range(queries):
        for j in range(count):
            if 0 <= (c := column(i, j, queries, columns)) < columns:
                shifted[..., i, j] = scores[..., i, c]
    return shifted


def relative_shift_causal(scores: Any, **options: Any) -> Tensor:
    """The same for keys up to the query: scores (batch, heads, queries, keys), whose columns run from the farthest key to the
    query itself; any above the diagonal (Dai et al. 2019, appendix B; _rel_shift in kimiyoung/transformer-xl, pytorch/mem_transformer.py;
    the skew of Music Transformer, Huang et al. 2018, section 3.4)."""
    return relative_shift(scores, **{"keys": lambda queries, columns: columns, **options})


def relative_index(
    height: int, width: int, *, stride: Callable[[int, int], int] = lambda h, w: 2 * w - 1, sign: int = 1,
    down: bool = False, first: tuple[int, int] | None = None,
) -> list[list[int]]:  # fmt: skip
    """Rows of a table for the patches of a window, (height * width, height * width): (y_i - y_j + height - 1) * (2 width - 1) + x_i
    - x_j + width - 1 (relative_position_index in microsoft/Swin-Transformer, models/swin_transformer.py).

    Faults: stride is how far apart rows are; sign -1 takes key minus query; down numbers the patches down the columns; first is
    (height - 1, width - 1), what makes distances positive.
    """
    cells = [(n % height, n // height) if down else divmod(n, width) for n in range(height * width)]
    up, left = first or (height - 1, width - 1)
    return [
        [(sign * (yi - yj) + up) * stride(height, width) + sign * (xi - xj) + left for yj, xj in cells]
        for yi, xi in cells
    ]


def relative_index_class(
    height: int, width: int, *, rows: tuple[int, int, int] = (0, 1, 2), **options: Any
) -> list[list[int]]:
    """The same with a class token before the patches, after n = (2 height - 1)(2 width - 1) rows of patches: row n of its
    query to patches, n + 1 of patches to its key, n + 2 of itself (BEiT, microsoft/unilm, beit/modeling_finetune.py).

    Faults: rows are the three's order.
    """
    n, patches = (2 * height - 1) * (2 * width - 1), relative_index(height, width, **options)
    query, key, itself = (n + row for row in rows)
    return [[itself] + [query] * len(patches), *([key, *row] for row in patches)]


# -------------------------------------------------------------------- biases of all pairs


def alibi_bias(
    num_heads: int, num_queries: int, num_keys: int, *, distance: Distance = key_minus_query, first: int = 1
) -> Tensor:
    """ALiBi's bias, (num_heads, num_queries, num_keys): slope times key minus query, the queries being the last of the keys; any
    after the query, and anything added to all keys of one, which the softmax does not see (Press et al. 2022, section 3).

    Faults: distance is that of key j and query i; first as in `alibi`.
    """
    of_pairs = _distances(distance, num_queries, num_keys)
    return torch.tensor(alibi(num_heads, first=first), dtype=torch.float64)[:, None, None] * of_pairs


def t5_bias(
    table: Any, num_queries: int, num_keys: int, bidirectional: bool, max_distance: int, *,
    distance: Distance = key_minus_query, cut: Callable[[float], int] = math.floor,
) -> Tensor:  # fmt: skip
    """T5's bias, (heads, num_queries, num_keys), of a table (num_buckets, heads); the queries are the last of the keys (Raffel et
    al. 2020, section 2.1; compute_bias in transformers' T5Attention).

    Faults: distance is that of key j and query i; cut as in `t5`.
    """
    table = torch.as_tensor(table, dtype=torch.float64)
    of_pairs = _distances(distance, num_queries, num_keys)
    buckets = t5(of_pairs.flatten().tolist(), bidirectional, len(table), max_distance, cut=cut)
    return table[torch.tensor(buckets)].unflatten(0, of_pairs.shape).movedim(-1, 0)


def swin_bias(table: Any, height: int, width: int, **options: Any) -> Tensor:
    """Swin's bias, (heads, height * width, height * width), of a table ((2 height - 1)(2 width - 1), heads) at the rows of
    `relative_index` (Liu et al. 2021, section 3.2)."""
    rows = torch.tensor(relative_index(height, width, **options))
    return torch.as_tensor(table, dtype=torch.float64)[rows.clamp(max=len(table) - 1)].movedim(-1, 0)


def _distances(distance: Distance, queries: int, keys: int) -> Tensor:
    return torch.tensor([[distance(i, j, queries, keys) for j in range(keys)] for i in range(queries)])


# -------------------------------------------------------------------- gates and masks


def forget_gates(log_gates: Any, *, begin: int = 1, end: int = 0, gates: OfTensor = unchanged) -> Tensor:
    """FoX's bias of log forget gates (batch, heads, seq), (batch, heads, seq, seq): of query i and key j <= i, the sum of those
    of tokens j + 1 .. i; any above the diagonal (Lin et al. 2025, Forgetting Transformer, eq. 5 and 6).

    Faults: the sum is over j + begin .. i + end; gates are changed before they are summed.
    """
    gates_ = gates(torch.as_tensor(log_gates, dtype=torch.float64))
    total = torch.cat((torch.zeros_like(gates_[..., :1]), gates_.cumsum(-1)), -1)  # of tokens before each
    seq = gates_.shape[-1]
    i, j = torch.arange(seq)[:, None], torch.arange(seq)[None]
    return total[..., (i + 1 + end).clamp(0, seq)] - total[..., (j + begin).clamp(0, seq)]


def _mask(queries: int, keys: int, sees: Callable[[int, int], bool]) -> list[list[int]]:
    return [[int(sees(i + keys - queries, j)) for j in range(keys)] for i in range(queries)]


def mask_document(document_ids: Sequence[int], *, causal: bool = True) -> list[list[int]]:
    """1 where query i sees key j of documents in a row, (seq, seq): of the same document, up to itself."""
    ids = torch.as_tensor(document_ids).tolist()
    return _mask(len(ids), len(ids), lambda i, j: ids[i] == ids[j] and (j <= i or not causal))


def mask_window(
    num_queries: int,
    num_keys: int,
    window: int,
    *,
    sees: Callable[[int, int, int], bool] = lambda i, j, w: 0 <= i - j < w,
) -> list[list[int]]:
    """1 where a query sees a key, (num_queries, num_keys): the last `window` tokens, itself among them (Mistral 7B, Jiang et al.
    2023, section 2; sliding_window in transformers). The queries are the last num_queries of num_keys tokens.

    Faults: sees says so of a query's and a key's position.
    """
    return _mask(num_queries, num_keys, lambda i, j: sees(i, j, window))


def mask_chunk(
    num_queries: int,
    num_keys: int,
    chunk: int,
    *,
    sees: Callable[[int, int, int], bool] = lambda i, j, c: i // c == j // c and j <= i,
) -> list[list[int]]:
    """1 where a query sees a key, (num_queries, num_keys): the tokens of its chunk up to itself; chunks begin at multiples of
    chunk (Llama 4's chunked attention in transformers).

    Faults: sees says so of a query's and a key's position.
    """
    return _mask(num_queries, num_keys, lambda i, j: sees(i, j, chunk))


def mask_streaming(
    size: int, chunk: int, left_chunks: int, *, sees: Callable[[int, int, int, int], bool] = lambda i, j, c, left: i // c - left <= j // c <= i // c,
) -> list[list[int]]:  # fmt: skip
    """1 where frame i sees frame j, (size, size): all of its chunk and of left_chunks before it (subsequent_chunk_mask in
    wenet-e2e/wenet, wenet/utils/mask.py).

    Faults: sees says so of two frames.
    """
    return _mask(size, size, lambda i, j: sees(i, j, chunk, left_chunks))
