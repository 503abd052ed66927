"""Attention and rotation as plain loops over numbers. Codes, slopes and buckets are in `posenc.testing.oracles`."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    visible: Callable[[int, int, int], bool],
    bias: Callable[[int, int, int, int], float] = lambda b, h, i, j: 0.0,
    added_value: Callable[[int, int, int, int], Tensor] | None = None,
    sink: list[float] | None = None,
) -> Tensor:
    """o_i = sum_j p_ij (v_j + w_ij), p_i = softmax(scale <q_i, k_j> + b_ij), one entry at a time."""
    batch, heads, queries, _ = q.shape
    group = heads // k.shape[1]
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                seen = [j for j in range(k.shape[2]) if visible(b, i, j)]
                scores = [float(q[b, h, i] @ k[b, h // group, j]) * scale + bias(b, h, i, j) for j in seen]
                logits = scores + ([sink[h]] if sink is not None else [])
                if not seen:
                    continue
                peak = max(logits)
                total = sum(math.exp(s - peak) for s in logits)
                for j, s in zip(seen, scores, strict=True):
                    value = v[b, h // group, j]
                    if added_value is not None:
                        value = value + added_value(b, h, i, j)
                    out[b, h, i] += math.exp(s - peak) / total * value
    return out


def rotate(x: Tensor, position: float, base: float, layout: str, rotary_dim: int | None = None) -> Tensor:
    """One vector turned by the block-diagonal rotation matrix of its position."""
    dim = x.shape[-1] if rotary_dim is None else rotary_dim
    matrix = torch.eye(x.shape[-1], dtype=torch.float64)
    for c in range(dim // 2):
        angle = position * base ** (-2 * c / dim)
        a, b = (2 * c, 2 * c + 1) if layout == "interleaved" else (c, c + dim // 2)
        matrix[a, a] = matrix[b, b] = math.cos(angle)
        matrix[a, b], matrix[b, a] = -math.sin(angle), math.sin(angle)
    return matrix @ x


def rotate_all(x: Tensor, positions: Tensor, base: float, layout: str, rotary_dim: int | None = None) -> Tensor:
    """`rotate` for (batch, heads, seq, head_dim) at (batch, seq) positions."""
    out = torch.empty_like(x)
    for b in range(x.shape[0]):
        for n in range(x.shape[2]):
            for h in range(x.shape[1]):
                out[b, h, n] = rotate(x[b, h, n], float(positions[b, n]), base, layout, rotary_dim)
    return out
