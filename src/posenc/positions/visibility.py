# SPDX-License-Identifier: Apache-2.0
"""Which keys a query sees: as a mask, and counted."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from posenc.positions.placement import Placement

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def rowwise(table: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Read a (batch or 1, n, ...) tensor at (row, index); a single row serves every row of the batch."""
    if table.shape[0] == 1:
        return lambda row, index: table[0, index]
    return lambda row, index: table[row, index]


def grid_indices(
    batch: int, heads: int, queries: int, keys: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Index tensors (batch,1,1,1), (1,heads,1,1), (1,1,queries,1), (1,1,1,keys): a FlexAttention closure
    called with them is evaluated on the whole grid at once."""

    def axis(size: int, dim: int) -> Tensor:
        return torch.arange(size, device=device).view([-1 if d == dim else 1 for d in range(4)])

    return axis(batch, 0), axis(heads, 1), axis(queries, 2), axis(keys, 3)


def mask_mod(p: "Placement") -> MaskMod:
    """See `Placement.mask_mod`."""
    q_order, k_order = rowwise(p.q_order), rowwise(p.k_order)
    valid, q_valid = (None if known is None else rowwise(known) for known in (p.valid, p.q_valid))
    documents = None
    if p.q_document is not None and p.k_document is not None:
        documents = rowwise(p.q_document), rowwise(p.k_document)
    causal = p.causal

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = (b >= 0) & (i >= 0) & (j >= 0)
        if causal:
            seen = seen & (k_order(b, j) <= q_order(b, i))
        if valid is not None:
            seen = seen & valid(b, j)
        if q_valid is not None:
            seen = seen & q_valid(b, i)
        if documents is not None:
            seen = seen & (documents[0](b, i) == documents[1](b, j))
        return seen

    return visible


def lengths(p: "Placement") -> Tensor:
    """Tokens in each query's own document (or row), (batch or 1, num_queries), where the queries are the keys."""
    if p.q_document is None and p.valid is None:
        return torch.full_like(p.q_order, p.num_keys)
    documents = p.q_document if p.q_document is not None else torch.zeros_like(p.q_order)
    valid = torch.ones_like(documents, dtype=torch.bool) if p.valid is None else p.valid
    rows = max(documents.shape[0], valid.shape[0])
    documents, valid = documents.expand(rows, -1), valid.expand(rows, -1)
    _, index = documents.unique(return_inverse=True)
    counts = torch.zeros(rows, int(index.max()) + 1, dtype=torch.long, device=index.device)
    return counts.scatter_add_(1, index, valid.long()).gather(1, index)


def counts(p: "Placement") -> Tensor:
    """How many keys each query sees, (batch or 1, num_queries), whatever is padded, packed or out of order: keys in line
    by document and order, so that two searches find those of a query."""
    rows = p.batch
    sizes = [p.num_queries, p.num_keys]
    if p.q_document is None or p.k_document is None:
        of_q, of_k = (torch.zeros_like(o).expand(rows, -1) for o in (p.q_order, p.k_order))
    else:
        documents = torch.cat([d.expand(rows, -1) for d in (p.q_document, p.k_document)], 1)
        of_q, of_k = documents.unique(return_inverse=True)[1].split(sizes, 1)
    orders = torch.cat([o.expand(rows, -1) for o in (p.q_order, p.k_order)], 1)
    orders = orders - orders.amin(1, keepdim=True)
    span = orders.amax(1, keepdim=True) + 1
    q_order, k_order = orders.split(sizes, 1)
    line = of_k * span + k_order
    if p.valid is not None:
        line = line.masked_fill(~p.valid.expand(rows, -1), torch.iinfo(torch.long).max)
    line = line.sort(1).values
    last = of_q * span + (q_order if p.causal else span - 1)
    seen = torch.searchsorted(line, last, right=True) - torch.searchsorted(line, of_q * span)
    return seen if p.q_valid is None else seen * p.q_valid
