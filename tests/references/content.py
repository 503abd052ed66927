"""Content-dependent relative encodings as their papers print them: scores entry by entry, q and k of one head."""

import math

import torch
from torch import Tensor

from posenc import Positions
from posenc.testing.oracles.codes import sinusoidal
from references import loops


def qkv(positions: Positions, kv_heads: int = 2) -> list[Tensor]:
    """Four heads of width 6, for a batch of two."""
    shapes = (4, positions.num_queries), (kv_heads, positions.num_keys), (kv_heads, positions.num_keys)
    return [torch.randn(2, *shape, 6, dtype=torch.float64) for shape in shapes]


def clip(x: int, low: int, high: int) -> int:
    return max(low, min(x, high))


def shaw_row(i: int, j: int, left: int, right: int) -> int:
    """Shaw et al. 2018, section 3.2: w_clip(j - i), counted from the leftmost."""
    return clip(j - i, -left, right) + left


def transformer_xl(q: Tensor, k: Tensor, u: Tensor, v: Tensor, w: Tensor, distance: float) -> float:
    """Dai et al. 2019, section 3.3, terms (a) to (d), before the division by sqrt(d); w is (d, dim)."""
    key = w @ sinusoidal([distance], w.shape[1], 1e4, layout="concat")[0]  # R: all sines, then all cosines
    return float(q @ k + q @ key + u @ k + v @ key)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    mean = sum(float(value) for value in x) / len(x)
    variance = sum((float(value) - mean) ** 2 for value in x) / len(x)
    return (x - mean) / math.sqrt(variance + eps) * weight + bias


def delta(i: int, j: int, span: int) -> int:
    """He et al. 2021, equation 3."""
    if i - j <= -span:
        return 0
    if i - j >= span:
        return 2 * span - 1
    return i - j + span


def attend(q, k, v, positions, scale, term, added=None) -> Tensor:
    """`loops.attend` where term(b, h, i, j, m, n), unscaled, and added(h, m, n) also get the positions m and n."""
    rows = len(q)
    mask = positions.mask().expand(rows, 1, -1, -1)
    at = [ids.expand(rows, -1).tolist() for ids in (positions.q, positions.k)]
    return loops.attend(
        q, k, v, scale=scale, visible=lambda b, i, j: bool(mask[b, 0, i, j]),
        bias=lambda b, h, i, j: scale * term(b, h, i, j, at[0][b][i], at[1][b][j]),
        added_value=added and (lambda b, h, i, j: added(h, at[0][b][i], at[1][b][j])),
    )  # fmt: skip
