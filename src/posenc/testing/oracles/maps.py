# SPDX-License-Identifier: Apache-2.0
"""Position maps: the relative position at which a query at i and a key at j, tensors that broadcast, are scored; NaN: hidden."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from posenc.testing.oracles.attention import mix
from posenc.testing.oracles.rotations import pairs

Rho = Callable[[Tensor, Tensor], Tensor]


def rerope(window: int) -> Rho:
    """Su 2023, kexue.fm/archives/9708: the distance, at most the window."""
    return lambda i, j: (i - j).clamp(max=window)


def leaky_rerope(window: int, factor: float) -> Rho:
    """Su 2023, kexue.fm/archives/9708: beyond the window, distances grow by 1 / factor."""
    return lambda i, j: torch.where(i - j < window, i - j, window + (i - j - window) / factor)


def inverse_leaky(window: int, factor: float) -> Rho:
    """Su 2023, kexue.fm/archives/9728: beyond the window, distances grow by factor."""
    return leaky_rerope(window, 1 / factor)


def self_extend(window: int, group: int) -> Rho:
    """Jin et al. 2024, eq. 3 and 4: beyond the window, of groups."""
    return lambda i, j: torch.where(i - j < window, i - j, i // group + window - window / group - j // group)


def jet_long(window: int, trained: int, groups: int, least: int = 1) -> Rho:
    """Jet-Long: the authors' positions of one decoding step, whose text is L = i + 1 tokens long: groups of ceil(L / trained), from
    least to groups."""

    def rho(i: Tensor, j: Tensor) -> Tensor:
        group = ((i + 1) / trained).ceil().clamp(least, groups)
        return torch.where(i - j < window, i - j, (i / group).floor() - (j / group).floor())

    return rho


def dual_chunk(chunk: int, local: int) -> Rho:
    """An et al. 2024, DCA, section 3: within a chunk, to the one before it, and to earlier ones."""
    size = chunk - local

    def rho(i: Tensor, j: Tensor) -> Tensor:
        apart = i // size - j // size
        beyond = torch.where(apart == 1, (i % size + size).clamp(max=chunk), min(2 * size - 1, chunk))
        return torch.where(apart == 0, i % size, beyond) - j % size

    return rho


def string(shift: int, window: int) -> Rho:
    """An et al. 2024, STRING, eq. 5: beyond the shift, distances less by it, plus the window."""
    return lambda i, j: torch.where(i - j < shift, i - j, i - j - shift + window)


def lampe(window: int, used: int, length: int) -> Rho:
    """LaMPE: beyond the window, of positions scaled to those used, rounded down."""

    def m(p: Tensor) -> Tensor:
        return (p * used / (length - 1)).floor()

    gap = window - (math.floor(window * used / (length - 1)) + 1)
    return lambda i, j: torch.where(i - j < window, i - j, m(i) + gap - m(j))


def streaming(sinks: int, recent: int) -> Rho:
    """Xiao et al. 2024, StreamingLLM, section 3.2: the distance between two places in a cache that holds the first tokens and the last."""

    def rho(i: Tensor, j: Tensor) -> Tensor:
        first = torch.where(j < sinks, sinks - 1 - j + recent, torch.nan)
        return torch.where(i - j < recent, i - j, torch.minimum(first, i - j))

    return rho


def lm_infinite(sinks: int, window: int) -> Rho:
    """Han et al. 2024, LM-Infinite, section 4: the first tokens at the window, the last at their distances, no others."""
    return lambda i, j: torch.where(i - j < window, i - j, torch.where(j < sinks, float(window), torch.nan))


def relative(rho: Rho, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    """(rows, queries) and (rows, keys) positions -> (rows, queries, keys) in float64, NaN where hidden."""
    return rho(q[:, :, None].double(), k[:, None].double()).masked_fill(~visible, torch.nan)


def scores(q: Tensor, k: Tensor, relative: Tensor, frequencies: Tensor, layout: str = "half") -> Tensor:
    """Re sum_c q_c conj(k_c) e^(i relative theta_c), unscaled, each pair of tokens rotated by itself. relative: (rows, queries, keys)."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    turns = torch.polar(torch.ones((), dtype=torch.float64), relative.nan_to_num()[..., None] * frequencies)
    a, b = (torch.complex(*(part.double() for part in pairs(x, layout))) for x in (q, k))
    return torch.einsum("bhic,bhjc,bijc->bhij", a, b.conj(), turns.expand(len(q), -1, -1, -1)).real


def attend(
    q: Tensor, k: Tensor, v: Tensor, relative: Tensor, frequencies: Tensor, layout: str, *, factors: Tensor | None = None,
    bias: Tensor | float = 0.0, sink: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention by `scores` over sqrt(d), times each query's factor."""
    found = scores(q, k, relative, frequencies, layout) * q.shape[-1] ** -0.5
    found = found * (1.0 if factors is None else factors[..., None]) + bias
    return mix(found, v, visible=~relative.isnan()[:, None], sink=sink)
