# SPDX-License-Identifier: Apache-2.0
"""Documents in one sequence: from what callers know of them to each token's document and its place there."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.checks import as_numbers, holds_integers, shown
from posenc.errors import InputError

MOST_TOKENS = 2**30
"""Of a sequence: more than any machine holds."""


def documents_of(
    lengths: Sequence[int] | Tensor | None,
    cu_seqlens: Sequence[int] | Tensor | None,
    document_ids: Tensor | None,
    device: torch.device | str | None,
) -> Tensor:
    """The document of each token, (batch or 1, n), from one of the three, see `Positions.packed`.

    Raises:
        InputError: none or several of them, or lengths that are not positive.
    """
    given = [x for x in (lengths, cu_seqlens, document_ids) if x is not None]
    if len(given) != 1:
        raise InputError("packed() takes exactly one of lengths, cu_seqlens and document_ids")
    if document_ids is None:
        if cu_seqlens is not None:
            edges = _counts("cu_seqlens", cu_seqlens, device)
            if len(edges) < 2 or int(edges[0]) != 0 or int(edges.diff().min()) < 1:
                raise InputError(
                    f"cu_seqlens={edges.tolist()}: must start at 0 and rise, one more entry than documents"
                )
            sizes = edges.diff()
        else:
            sizes = _counts("lengths", lengths, device)
        if int(sizes.min()) < 1:
            raise InputError(f"lengths={sizes.tolist()}: each document needs at least one token")
        document_ids = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
    document_ids = as_numbers("document_ids", document_ids)
    documents = document_ids[None] if document_ids.dim() == 1 else document_ids
    if documents.dim() != 2 or not holds_integers(documents) or 0 in documents.shape:
        raise InputError(f"document_ids of shape {tuple(document_ids.shape)}: pass integers (n,) or (batch, n)")
    return documents.clone()  # the caller may change theirs later


def counted(documents: Tensor) -> Tensor:
    """Each token's place in its own document, which may come in pieces; (batch or 1, n), like documents."""
    order = torch.arange(documents.shape[1], device=documents.device)[None]
    # brought together, each counts on from its first token
    together, source = documents.sort(dim=1, stable=True)
    first = torch.ones_like(documents, dtype=torch.bool)
    first[:, 1:] = together[:, 1:] != together[:, :-1]
    places = order - torch.where(first, order, 0).cummax(1).values
    return torch.empty_like(documents, dtype=torch.long).scatter_(1, source, places)


def _counts(name: str, counts: Any, device: torch.device | str | None) -> Tensor:
    """Whole numbers of tokens, (n,) int64."""
    found = as_numbers(name, counts, device)
    if not holds_integers(found) or found.dim() != 1 or len(found) == 0:
        raise InputError(f"{name}={shown(counts)}: pass a list of whole numbers of tokens")
    if int(found.max()) > MOST_TOKENS or int(found.long().abs().sum()) > MOST_TOKENS:
        raise InputError(f"{name}={shown(counts)}: at most {MOST_TOKENS} tokens in all")
    return found.long()
