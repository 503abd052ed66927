# SPDX-License-Identifier: Apache-2.0
"""Sums and convolutions over tokens in their order, document by document, without padding: what encodings make of gates."""

from typing import NamedTuple

import torch
from torch import Tensor

from posenc.errors import refuse_in_onnx
from posenc.positions.ids import numbered
from posenc.positions.positions import Positions


class Order(NamedTuple):
    """keys: (rows, num_keys), the keys by document and in a document in their order, padding last. rank: (rows, num_keys),
    the place of each key among them. at: (rows, num_queries), that of the last key not after each query in its document.
    first: (rows, num_keys), at each place that of the document's first key."""

    keys: Tensor
    rank: Tensor
    at: Tensor
    first: Tensor


def order_of(positions: Positions) -> Order:
    """The keys of a call in order, made once for it."""
    bare = positions.with_gates(())
    return bare.shared("order", lambda: _in_order(bare))


def _in_order(p: Positions) -> Order:
    refuse_in_onnx("tokens padded, packed or in another order", "a stable sort", "pass Positions.arange")
    q, k = p.q_order, p.k_order
    rows = max(x.shape[0] for x in (q, k, p.valid, p.k_document, p.q_document) if x is not None)
    q, k = q.expand(rows, -1), k.expand(rows, -1)
    low = torch.minimum(k.min(), q.min())
    span = torch.maximum(k.max(), q.max()) - low + 1
    document = torch.zeros_like(k)
    q_key, k_key = q - low, k - low
    if p.k_document is not None and p.q_document is not None:
        documents = torch.cat((p.k_document.expand(rows, -1), p.q_document.expand(rows, -1)), 1)
        document, of_q = numbered(documents).split([k.shape[1], q.shape[1]], 1)
        q_key, k_key = q_key + of_q * span, k_key + document * span
    if p.valid is not None:
        last = k.shape[1] + q.shape[1]  # more than there are documents
        document = document.masked_fill(~p.valid, last)
        k_key = torch.where(p.valid, k_key, (last + 1) * span)
    ordered, index = k_key.sort(dim=1, stable=True)
    at = torch.searchsorted(ordered, q_key.contiguous(), right=True) - 1
    document = document.gather(1, index)
    return Order(index, index.argsort(1), at.clamp(min=0), torch.searchsorted(document, document))


def running_sums(x: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
    """The sum over a token and those before it in its document, of queries and of keys, (batch, heads, num_queries or num_keys,
    width), in float64; sums of different documents have no common start. x: (batch or 1, heads, num_keys, width), of the keys.
    """
    positions.require_among_keys()
    x = x.double()
    if positions.valid is not None:
        x = x.masked_fill(~positions.valid[:, None, :, None], 0.0)
    if positions.diagonal is not None and positions.k_document is None:
        sums = x.cumsum(2)
        return positions.of_queries(sums), sums
    order = order_of(positions)
    sums = at(x, order.keys).cumsum(2)
    return at(sums, order.at), at(sums, order.rank)


def convolved(x: Tensor, weight: Tensor, positions: Positions) -> Tensor:
    """sum_s weight[.., s] x[t - s] over the tokens before t in its document, s = 0 .. steps - 1, for each channel. x: (batch or 1,
    heads, num_keys, width), of the keys; weight: (heads, width, steps)."""
    positions.require_counted()
    stored = positions.diagonal is not None and not positions.hides_tokens  # in their order
    order = None if stored else order_of(positions)
    x = x if order is None else at(x, order.keys)
    n, steps = x.shape[2], weight.shape[2]
    padded, place = torch.nn.functional.pad(x, (0, 0, steps - 1, 0)), torch.arange(n, device=x.device)
    total = x * weight[:, None, :, 0]
    for step in range(1, steps):
        before = padded[:, :, steps - 1 - step : steps - 1 - step + n]
        if order is not None:
            before = before.masked_fill((place - step < order.first)[:, None, :, None], 0.0)
        total = total + before * weight[:, None, :, step]
    return total if order is None else at(total, order.rank)


def at(x: Tensor, index: Tensor) -> Tensor:
    """The tokens of x (batch or 1, heads, n, width) with these indices, (rows, m)."""
    rows = max(x.shape[0], index.shape[0])
    return x.expand(rows, -1, -1, -1).gather(2, index[:, None, :, None].expand(rows, x.shape[1], -1, x.shape[3]))
