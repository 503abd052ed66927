"""The rotary family's scores, one pair of channels and one pair of tokens at a time, as the papers write them."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def pairs(dim: int, layout: str, first: int = 0) -> list[tuple[int, int]]:
    """Which channels turn together, in the order of their frequencies; first: the first channel that turns."""
    half = dim // 2
    if layout == "half":
        return [(first + c, first + c + half) for c in range(half)]
    return [(first + 2 * c, first + 2 * c + 1) for c in range(half)]


def score(
    q: Tensor,
    k: Tensor,
    channels: Sequence[tuple[int, int]],
    turn: Callable[[int], float],
    factor: Callable[[int], float] = lambda c: 1.0,
) -> float:
    """q . k where pair c of the key is turned by turn(c) = (its angle) - (the query's), times factor(c); channels in
    no pair are multiplied as they are."""
    turned = {channel for pair in channels for channel in pair}
    total = sum(float(q[i] * k[i]) for i in range(len(q)) if i not in turned)
    for c, (a, b) in enumerate(channels):
        cos, sin = math.cos(turn(c)), math.sin(turn(c))
        total += factor(c) * float(q[a] * (cos * k[a] - sin * k[b]) + q[b] * (sin * k[a] + cos * k[b]))
    return total


def table(q: Tensor, k: Tensor, one: Callable[[int, Tensor, Tensor, int, int], float]) -> Tensor:
    """one(head, q_i, k_j, i, j) for (heads, n, width) queries and (kv_heads, m, width) keys."""
    group = len(q) // len(k)
    rows = [
        [[one(h, q[h, i], k[h // group, j], i, j) for j in range(k.shape[1])] for i in range(q.shape[1])]
        for h in range(len(q))
    ]
    return torch.tensor(rows, dtype=torch.float64)


def theta(c: int, dim: int, base: float) -> float:
    """RoFormer, section 3.2.2."""
    return base ** (-2 * c / dim)


def proportional(c: int, dim: int, base: float, fraction: float) -> float:
    """p-RoPE: the frequencies of all channels, those after the fraction set to zero."""
    return theta(c, dim, base) if c < math.floor(fraction * dim / 2) else 0.0


def zeta(c: int, dim: int, gamma: float) -> float:
    """xPos, Algorithm 1."""
    return (2 * c / dim + gamma) / (1 + gamma)


def axial(c: int, dim: int, base: float, y: float, x: float) -> float:
    """rope-vit: the angle of pair c, the first half of the pairs for x."""
    quarter = dim // 4
    return (x if c < quarter else y) * base ** (-4 * (c % quarter) / dim)


def dealt(c: int, dim: int, base: float, y: float, x: float) -> float:
    """Pixtral: even entries of the table of dim/2 frequencies for the height, odd ones for the width."""
    quarter = dim // 4
    entry = 2 * (c % quarter) + (0 if c < quarter else 1)
    return (y if c < quarter else x) * base ** (-2 * entry / dim)


def centred(c: int, dim: int, base: float, y: float, x: float, height: int, width: int) -> float:
    """DINOv3: centres of patches in an image that spans -1 .. 1, height first."""
    quarter = dim // 4
    place = 2 * (y + 0.5) / height - 1 if c < quarter else 2 * (x + 0.5) / width - 1
    return 2 * math.pi * place * base ** (-4 * (c % quarter) / dim)


def pope(q: Tensor, k: Tensor, distance: float, delta: Tensor, base: float) -> float:
    """PoPE: softplus magnitudes, one frequency per channel; distance is key minus query position."""
    dim = len(q)
    softplus = [(math.log1p(math.exp(float(q[c]))), math.log1p(math.exp(float(k[c])))) for c in range(dim)]
    bounded = [min(max(float(delta[c]), -2 * math.pi), 0.0) for c in range(dim)]
    return sum(a * b * math.cos(distance * base ** (-c / dim) + bounded[c]) for c, (a, b) in enumerate(softplus))


def linear_attention(
    fq: Tensor, fk: Tensor, rq: Tensor, rk: Tensor, v: Tensor, visible: Callable[[int, int, int], bool]
) -> Tensor:
    """RoFormer, eq. 19: features fq, fk; rotated features rq, rk; (batch, heads, n, width)."""
    group = fq.shape[1] // fk.shape[1]
    out = torch.zeros(*fq.shape[:3], v.shape[-1], dtype=torch.float64)
    for b in range(fq.shape[0]):
        for h in range(fq.shape[1]):
            for i in range(fq.shape[2]):
                seen = [j for j in range(fk.shape[2]) if visible(b, i, j)]
                weight = sum(float(fq[b, h, i] @ fk[b, h // group, j]) for j in seen)
                for j in seen:
                    out[b, h, i] += (rq[b, h, i] @ rk[b, h // group, j]) * v[b, h // group, j] / weight
    return out
