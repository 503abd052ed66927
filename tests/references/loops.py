"""Attention and position formulas as plain loops over numbers."""

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


def alibi_slopes(heads: int) -> list[float]:
    """The recursion of the authors' description: a geometric sequence, interleaved for other than powers of two."""
    if heads & (heads - 1) == 0:
        return [2 ** (-8 * (h + 1) / heads) for h in range(heads)]
    lower = 2 ** math.floor(math.log2(heads))
    return alibi_slopes(lower) + alibi_slopes(2 * lower)[0::2][: heads - lower]


def t5_bucket(relative: int, bidirectional: bool, buckets: int, max_distance: int) -> int:
    """The bucket of key position minus query position."""
    result = 0
    if bidirectional:
        buckets //= 2
        result = buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = buckets // 2
    if distance < exact:
        return result + distance
    # an edge that is mathematically an integer must not fall below it by rounding
    grown = math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact)
    return result + min(exact + math.floor(grown + 1e-9), buckets - 1)


def sinusoidal(position: float, dim: int, base: float, layout: str) -> list[float]:
    """Vaswani et al. 2017, section 3.5."""
    pairs = [
        (math.sin(position / base ** (2 * c / dim)), math.cos(position / base ** (2 * c / dim)))
        for c in range(dim // 2)
    ]
    if layout == "interleaved":
        return [value for pair in pairs for value in pair]
    return [s for s, _ in pairs] + [c for _, c in pairs]
