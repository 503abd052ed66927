# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding: pairs of channels turned by angles of positions of one or several axes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.testing.oracles import schedules

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
    angles = angle(positions * frequency(frequencies(d, base)))
    return turned(x, angles, layout, x.shape[-1] - d if trailing else 0, tables=tables)


def frequencies(head_dim: int, base: float = 10000.0) -> Tensor:
    """`schedules.default` as float64, (head_dim/2,)."""
    return torch.tensor(schedules.default(head_dim, base), dtype=torch.float64)


def angles(positions: Tensor, head_dim: int, base: float = 10000.0) -> Tensor:
    """RoPE's, float64 (.., head_dim/2) of positions (..): position * base^(-2c/head_dim)."""
    return positions[..., None] * frequencies(head_dim, base).to(positions.device)


def _in_four_axes(positions: Any) -> Tensor:
    """Positions that broadcast to (batch, heads, seq, d/2); given one of each row, (1, 1, seq, 1)."""
    positions = torch.as_tensor(positions, dtype=torch.float64)
    return positions[None, None, :, None] if positions.ndim == 1 else positions


def turned(x: Tensor, angles: Tensor, layout: str = "half", start: int = 0, *, tables: str | None = None) -> Tensor:
    """x (.., head_dim) with pairs of channels turned by angles (.., pairs), from channel start on; the others pass.

    Faults: tables is the layout of cos and sin.
    """
    return combined(x, angles.cos().to(x), angles.sin().to(x), layout, start, tables=tables)


def combined(
    x: Tensor, cos: Tensor, sin: Tensor, layout: str = "half", start: int = 0, *, tables: str | None = None
) -> Tensor:
    """x (.., head_dim) with (a, b) -> (a cos - b sin, a sin + b cos) for its pairs from channel start on, cos and sin (.., pairs)."""
    end = start + 2 * cos.shape[-1]
    a, b = pairs(x[..., start:end], layout)
    (cos_a, cos_b), (sin_a, sin_b) = (
        (m, m) if tables is None else pairs(by_layout(tables, m, m), layout) for m in (cos, sin)
    )
    part = by_layout(layout, a * cos_a - b * sin_a, b * cos_b + a * sin_b)
    if part.shape[-1] == x.shape[-1]:
        return part
    others = (x[..., :start], x[..., end:])
    return torch.cat([each.expand(*part.shape[:-1], -1) for each in (others[0], part, others[1])], -1)


def pairs(x: Tensor, layout: str) -> tuple[Tensor, ...]:
    """The first and the second members of the pairs of channels, (.., d/2) each."""
    return (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else x.chunk(2, -1)


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
    x: Any, positions: Any, base: float, sections: Sequence[int], *, interleaved: bool = False, **options: Any
) -> Tensor:
    """M-RoPE, half layout: the pairs are dealt to time, height and width, positions (3, seq), as sections counts them.

    In blocks, one after the other (Qwen2-VL, Wang et al. 2024, section 2.1); interleaved: t h w t h w .. with the last
    ones to time (Qwen3-VL)."""
    if interleaved:
        axes = [0] * sum(sections)
        for axis in (1, 2):
            pairs = range(axis, 3 * sections[axis], 3)
            axes[pairs.start : pairs.stop : 3] = [axis] * len(axes[pairs.start : pairs.stop : 3])
    else:
        axes = [axis for axis, count in enumerate(sections) for _ in range(count)]
    return rotary(x, torch.as_tensor(positions, dtype=torch.float64)[axes].T[None, None], base, **options)


def rotary_axial(
    x: Any, positions: Any, base: float, widths: Sequence[int], *, layout: str = "interleaved",
    frequency: OfTensor = unchanged, **options: Any,
) -> Tensor:  # fmt: skip
    """RoPE of several axes, positions (axes, seq): the pairs are dealt to the axes in blocks, in their order, widths[a] / 2 of
    them to axis a, each turned by base^(-2c/widths[a]), c from 0 on for each axis (EmbedND in black-forest-labs/flux,
    src/flux/modules/layers.py; Wan, HunyuanVideo, Qwen-Image, Lumina in diffusers). In the half layout these are pairs
    (c, c + head_dim/2) (DINOv3, facebookresearch/dinov3, dinov3/layers/rope_position_encoding.py)."""
    ladders = torch.tensor([f for width in widths for f in schedules.default(width, base)], dtype=torch.float64)
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
    cosines, sines = (torch.as_tensor(w, dtype=torch.float64) for w in (cosines, sines))
    inputs = frequency(frequencies(x.shape[-1], base))[: cosines.shape[1]]
    tables = fourier(angle(at(_in_four_axes(positions)) * inputs), cosines, sines, x.shape[-1] // 2, padding=padding)
    return combined(x, *tables, layout)


def fourier(
    angles: Tensor, cosines: Tensor, sines: Tensor, pairs: int, *, padding: float = 0.0
) -> tuple[Tensor, Tensor]:
    """FoPE's cos and sin, (.., seq, pairs), of angles (.., seq, frequencies) and weights (heads, frequencies, up to pairs)."""
    cos, sin = angles.cos().to(cosines) @ cosines, angles.sin().to(sines) @ sines
    ends = (0, pairs - cos.shape[-1])
    return torch.nn.functional.pad(cos, ends, value=1.0), torch.nn.functional.pad(sin, ends, value=padding)


def quarter_turn(x: Tensor, layout: str = "half") -> Tensor:
    """x (.., head_dim) with (a, b) -> (b, -a) for its pairs: a query whose products with rotated keys are the imaginary parts,
    which odd heads of RoPE++ score (Liu et al. 2025, section 3)."""
    a, b = pairs(x, layout)
    return by_layout(layout, b, -a)


def polar(x: Tensor, angles: Tensor) -> Tensor:
    """PoPE: (.., 2 d) of x and angles (.., d): a channel is a complex number of magnitude softplus(x) (Gopalakrishnan et al. 2025,
    section 3). The angles of keys are positions times base^(-c/d), those of queries are less by delta, clamped to -2 pi .. 0."""
    size = torch.nn.functional.softplus(x)
    return torch.cat((size * angles.cos().to(x), size * angles.sin().to(x)), -1)


def by_layout(layout: str, first: Tensor, second: Tensor) -> Tensor:
    """Both members of all pairs, (..., d/2) each, in the order of a layout: (..., d)."""
    return torch.stack((first, second), -1).flatten(-2) if layout == "interleaved" else torch.cat((first, second), -1)
