# SPDX-License-Identifier: Apache-2.0
"""Attention on all pairs of queries and keys at once."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, visible: Tensor, bias: Tensor | float = 0.0,
    added: Tensor | None = None, sink: Tensor | None = None,
    weigh: Callable[[Tensor], Tensor] = softmax,
) -> Tensor:  # fmt: skip
    """o_i = sum_j p_ij (v_j + w_ij), p_i = softmax(scale <q_i, k_j> + b_ij) over the visible keys (Vaswani et al. 2017, eq. 1;
    Shaw et al. 2018, eq. 3); zeros where there are none.

    q (batch, heads, queries, d), k and v (batch, key heads, keys, ..), each for as many query heads; visible, bias and added (w) (batch,
    heads, queries, keys[, width]) or what broadcasts to it. sink (heads,): a logit of no key, which takes its share (Xiao et al. 2024;
    gpt-oss). weigh: makes weights of scores, hidden ones -inf.
    """
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return mix(q @ k.mT * scale + bias, v, visible=visible, added=added, sink=sink, weigh=weigh)


def mix(
    scores: Tensor, v: Tensor, *, visible: Tensor, added: Tensor | None = None, sink: Tensor | None = None,
    weigh: Callable[[Tensor], Tensor] = softmax,
) -> Tensor:  # fmt: skip
    """`attend` with these scores, (batch, heads, queries, keys)."""
    v, scores = v.repeat_interleave(scores.shape[1] // v.shape[1], 1), scores.masked_fill(~visible, -math.inf)
    scores = scores.masked_fill(~visible.any(-1, keepdim=True), 0.0)  # a softmax of these has a gradient
    if sink is not None:
        scores = torch.cat((scores, sink.to(scores)[:, None, None].expand(*scores.shape[:3], 1)), -1)
    weights = weigh(scores)[..., : v.shape[2]].masked_fill(~visible, 0.0)
    return weights @ v if added is None else torch.einsum("bhij,bhijw->bhiw", weights, v[:, :, None] + added)


def linear_attention(fq: Tensor, fk: Tensor, rq: Tensor, rk: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """o_i = sum_j <rq_i, rk_j> v_j / sum_j <fq_i, fk_j> over the visible keys, of features f and rotated features r (Su et al.
    2021, RoFormer, eq. 19); zeros where there are none. Shapes as in `attend`."""
    fk, rk, v = (x.repeat_interleave(fq.shape[1] // fk.shape[1], 1) for x in (fk, rk, v))
    weights, features = ((a @ b.mT).masked_fill(~visible, 0.0) for a, b in ((rq, rk), (fq, fk)))
    out = weights @ v / features.sum(-1, keepdim=True)
    return out.masked_fill(~visible.any(-1, keepdim=True), 0.0)
