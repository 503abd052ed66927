"""Position maps and the attention under them as their papers' formulas, one query and one key at a time."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Rho = Callable[[float, float], float | None]
"""Positions of a query and a key -> the relative position they are scored at; None: hidden."""


def rerope(window: int) -> Rho:
    return lambda i, j: min(i - j, window)


def leaky_rerope(window: int, factor: float) -> Rho:
    return lambda i, j: i - j if i - j < window else window + (i - j - window) / factor


def inverse_leaky(window: int, factor: float) -> Rho:
    return lambda i, j: i - j if i - j < window else window + (i - j - window) * factor


def self_extend(window: int, group: int) -> Rho:
    return lambda i, j: i - j if i - j < window else i // group + window - window / group - j // group


def jet_long(window: int, trained: int, groups: int, least: int = 1) -> Rho:
    """The authors' positions of one decoding step, whose text is L = i + 1 tokens long: G = ceil(L / w), at most groups."""

    def rho(i: float, j: float) -> float:
        group = min(max(math.ceil((i + 1) / trained), least), groups)
        return i - j if i - j < window else math.floor(i / group) - math.floor(j / group)

    return rho


def dual_chunk(chunk: int, local: int) -> Rho:
    size = chunk - local

    def rho(i: float, j: float) -> float:
        apart = i // size - j // size
        if apart == 0:
            return i % size - j % size
        return (min(i % size + size, chunk) if apart == 1 else min(2 * size - 1, chunk)) - j % size

    return rho


def string(shift: int, window: int) -> Rho:
    return lambda i, j: i - j if i - j < shift else i - j - shift + window


def lampe(window: int, used: int, length: int) -> Rho:
    def m(p: float) -> float:
        return math.floor(p * used / (length - 1))

    return lambda i, j: i - j if i - j < window else m(i) + window - (m(window) + 1) - m(j)


def streaming(sinks: int, recent: int) -> Rho:
    """The distance between the two places in the cache that holds what the query sees."""

    def rho(i: float, j: float) -> float | None:
        cache = [t for t in range(int(i) + 1) if t < sinks or i - t < recent]
        return len(cache) - 1 - cache.index(int(j)) if j in cache else None

    return rho


def lm_infinite(sinks: int, window: int) -> Rho:
    return lambda i, j: i - j if i - j < window else window if j < sinks else None


def relative(rho: Rho, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    """(rows, queries) and (rows, keys) positions -> (rows, queries, keys), NaN where hidden."""
    found = torch.full(visible.shape, torch.nan, dtype=torch.float64)
    for b, i, j in visible.nonzero().tolist():
        value = rho(q[b % len(q), i].item(), k[b % len(k), j].item())
        found[b, i, j] = math.nan if value is None else value
    return found


def attend(
    q: Tensor, k: Tensor, v: Tensor, relative: Tensor, frequencies: Tensor, layout: str, *,
    factors: Tensor | None = None, bias: Any = 0.0, sink: float | None = None,
) -> Tensor:  # fmt: skip
    """Attention whose score of query i and key j is Re sum_c q_c conj(k_c) e^(i relative theta_c) / sqrt(d), times the
    query's factor. relative: (rows, queries, keys), NaN: hidden."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))

    def pairs(x: Tensor) -> Tensor:
        a, b = (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else x.chunk(2, -1)
        return torch.complex(a, b)

    turns = torch.polar(torch.tensor(1.0, dtype=q.dtype), relative.nan_to_num()[..., None] * frequencies)
    scores = torch.einsum("bhic,bhjc,bijc->bhij", pairs(q), pairs(k).conj(), turns.expand(len(q), -1, -1, -1)).real
    scores = scores * q.shape[-1] ** -0.5 * (1.0 if factors is None else factors[..., None]) + bias
    scores = scores.masked_fill(relative.isnan()[:, None], -torch.inf)
    weights = scores.exp()
    total = weights.sum(-1, keepdim=True) + (0.0 if sink is None else math.exp(sink))
    return torch.where(total > 0, weights / total, 0.0) @ v
