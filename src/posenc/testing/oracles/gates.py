# SPDX-License-Identifier: Apache-2.0
"""What a layer's input x (batch, n, dim) makes of the tokens of one causal text: what is added to scores, angles, and decays.

Weights are of one layer; rows are the tokens of the queries, keys all n of them. Scores are unscaled unless they say so.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, logsigmoid, pad, silu, softplus
from torch.utils.checkpoint import checkpoint

from posenc.testing.oracles.content import after
from posenc.testing.oracles.rotations import OfTensor, unchanged


def forget_gates(log_gates: Any, *, begin: int = 1, end: int = 0, gates: OfTensor = unchanged) -> Tensor:
    """FoX's bias of log forget gates (batch, heads, seq), (batch, heads, seq, seq): of query i and key j <= i, the sum of those
    of tokens j + 1 .. i; any above the diagonal (Lin et al. 2025, Forgetting Transformer, eq. 5 and 6).

    Faults: the sum is over j + begin .. i + end; gates are changed before they are summed.
    """
    given = gates(torch.as_tensor(log_gates, dtype=torch.float64))
    return fox(given, torch.arange(given.shape[-1]), begin=begin, end=end)


def log_gates(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """log sigmoid(w . x + b), (batch, heads, n) (Lin et al. 2025, Forgetting Transformer, eq. 5)."""
    return logsigmoid(linear(x, weight, bias)).mT


def fox(gates: Tensor, rows: Tensor, *, begin: int = 1, end: int = 0) -> Tensor:
    """`forget_gates` of queries at rows, (batch, heads, rows, n); any after the query."""
    seq, j = gates.shape[-1], torch.arange(gates.shape[-1], device=gates.device)
    before = pad(gates.double().cumsum(-1), (1, 0))  # the sum over the tokens before each
    of_queries, of_keys = (before[..., at.clamp(0, seq)] for at in (rows + 1 + end, j + begin))
    return (of_queries[..., None] - of_keys[..., None, :]).to(gates)


# -------------------------------------------------------------------- accumulated angles, (batch, key heads, n, pairs) in float64


def selective_rope(
    x: Tensor, down: Tensor, up: Tensor, kernel: Tensor, temperature: Tensor, gate: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Unit groups of x for the key heads, two projections, a causal convolution, a gate and a temperature (Movahedi et al. 2026, Selective
    RoPE; modules/rotary.py). down: (rank, dim); up: (heads, pairs, rank); kernel: (heads, pairs, steps), the first of the token itself;
    temperature: (pairs,); gate: weight (heads, dim) and bias (heads,)."""
    x = x.unflatten(-1, (len(up), -1))
    x = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).flatten(-2)
    waves = convolved(torch.einsum("bnr,hpr->bhnp", x @ down.mT, up), kernel)
    if gate is not None:
        waves = waves * linear(x, *gate).sigmoid().mT[..., None]
    return (waves.double() * temperature.to(x.device)).cumsum(2)


def convolved(y: Tensor, kernel: Tensor) -> Tensor:
    """y (batch, heads, n, channels) convolved with the tokens before, kernel (heads, channels, steps), the first of the token itself."""
    n = y.shape[2]
    taps = [pad(y, (0, 0, s, 0))[:, :, :n] * kernel[:, None, :, s] for s in range(kernel.shape[-1])]
    return sum(taps[1:], taps[0])


def mamba3_rope(x: Tensor, angle: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """tanh(projection) dt pi, dt = softplus(w . x + b) (Lahoti et al. 2026, Mamba-3; mamba3_mimo_rotary_step.py). angle: (pairs, dim)."""
    step = softplus(linear(x, weight, bias)).mT[..., None]
    return (step * math.pi * (x @ angle.mT).tanh()[:, None]).double().cumsum(2)


def carope(x: Tensor, weight: Tensor, bias: Tensor, pairs: int) -> Tensor:
    """Powers 1 .. pairs of 1 / (softplus(w . x + b) + 1) (Veisi et al. 2025, section 3)."""
    base = 1 / (1 + softplus(linear(x, weight, bias)).mT[..., None])
    return (base.double() ** torch.arange(1, pairs + 1, device=x.device)).cumsum(2)


def repo(x: Tensor, gate: Tensor, content: Tensor, last: Tensor, frequencies: Tensor) -> Tensor:
    """The angles of RePo, (batch, heads, n, pairs): frequencies times W3 (SiLU(W1 x) * W2 x) (Li et al. 2025, RePo, section 3)."""
    return linear(silu(linear(x, gate)) * linear(x, content), last).mT[..., None].double() * frequencies


def grape_ap(p: Tensor, slopes: Tensor, rows: Tensor, angles: Tensor) -> Tensor:
    """GRAPE-AP's bias, (batch, heads, rows, n), any after the query: slopes times the sum over t = j + 1 .. i of log sigmoid(p_i . R(-t) p_t sqrt(width) / |p_t|
    / width) (llama-mha-grape-a-pi.py). p: (batch, heads, n, width); angles: t of each token, (n,)."""
    first, second = p.chunk(2, -1)
    c, s = angles.cos()[:, None], angles.sin()[:, None]
    turned = torch.cat((first * c + second * s, second * c - first * s), -1)
    unit = turned / turned.square().mean(-1, keepdim=True).sqrt()
    logs = logsigmoid(p[:, :, rows] @ unit.mT / p.shape[-1])
    out = torch.zeros_like(logs)
    for j in range(p.shape[2]):
        between = (torch.arange(p.shape[2]) > j) & (torch.arange(p.shape[2]) <= rows[:, None])
        out[..., j] = (logs * between).sum(-1)
    return out * slopes[:, None, None]


# -------------------------------------------------------------------- decays and reflections


def wall(q: Tensor, k: Tensor, gates: Tensor, rows: Tensor) -> Tensor:
    """sum_c q_c k_c prod_t f_tc over the tokens t after the key up to the query, (batch, heads, rows, n), one channel after the other; any after
    the query (Wall attention, naive.py). gates: log f, (batch, heads, n, d)."""
    later, scores = after(rows, k.shape[2]), q.new_zeros(*q.shape[:3], k.shape[2])

    def channel(q: Tensor, k: Tensor, sums: Tensor) -> Tensor:
        decay = (sums[:, :, rows, None] - sums[:, :, None]).masked_fill(later, 0.0).exp()
        return q[..., None] * k[:, :, None] * decay

    for each in zip(*(x.unbind(-1) for x in (q, k, gates.cumsum(2))), strict=True):
        scores = scores + checkpoint(channel, *each, use_reentrant=False)
    return scores


def directions(y: Tensor, kernel: Tensor | None) -> Tensor:
    """PaTH's w of length 1, (batch, heads, n, d): y convolved, the last step of kernel (heads, steps, d) on the token itself, with SiLU
    (Yang et al. 2025, PaTH, section 3; layers/path_attn.py in fla)."""
    y = y if kernel is None else silu(convolved(y, kernel.flip(-2).mT))
    return y * (y.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def path(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, rows: Tensor) -> Tensor:
    """q^T (product of I - beta_t w_t w_t^T over the tokens t after the key up to the query, the earliest on the right) k, (batch, heads,
    rows, n), token by token from the last key to the first; any after the query (Yang et al. 2025, eq. 4). beta: (batch, heads, n, 1)."""

    def chunk(carried: Tensor, first: int, end: int) -> tuple[Tensor, Tensor]:
        scores = []
        for t in range(end - 1, first - 1, -1):
            scores.append(carried @ k[:, :, t, :, None])
            moved = carried - (carried @ w[:, :, t, :, None]) * (beta[:, :, t] * w[:, :, t])[:, :, None]
            carried = torch.where((rows >= t)[:, None], moved, carried)
        return carried, torch.cat(scores[::-1], -1)

    carried, columns = q, []
    for first in range((k.shape[2] - 1) // 64 * 64, -1, -64):
        carried, scores = checkpoint(chunk, carried, first, min(first + 64, k.shape[2]), use_reentrant=False)
        columns.append(scores)
    return torch.cat(columns[::-1], -1)


def broken_sticks(scores: Tensor) -> Tensor:
    """Weights of scores (.., queries, keys), hidden ones -inf: from the nearest key on, each takes sigmoid(score) of what is left (Tan et al.
    2025, Stick-breaking Attention, eq. 2)."""
    left = logsigmoid(-scores)
    return scores.sigmoid() * (left.flip(-1).cumsum(-1).flip(-1) - left).exp()
