# SPDX-License-Identifier: Apache-2.0
"""Arguments of the constructors, checked and as tensors: position ids, masks, indices, documents, and grids of patches."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from posenc.errors import (
    InputError,
    as_numbers,
    check_integers,
    check_sizes,
    check_tokens,
    holds_integers,
    not_none,
    refuse_in_program,
    shown,
)
from posenc.functional import interpreted

Ids = Tensor | Sequence[Any]
Device = torch.device | str | None

ROUNDED_ABOVE = {torch.bfloat16: 256, torch.float16: 2048, torch.float32: 2**24, torch.float64: 2**53}
"""The integers up to which a dtype has every one."""


# ---------------------------------------------------------------- ids, masks and indices


def as_positions(name: str, ids: Ids) -> Tensor:
    """Positions (batch or 1, n) or (batch or 1, n, axes), integers as int64, others as `exact`."""
    ids = as_numbers(name, ids)
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() not in (2, 3) or 0 in ids.shape:
        raise InputError(f"{name} of shape {tuple(ids.shape)}: pass (n,), (batch, n) or (batch, n, axes), not empty")
    if ids.dtype == torch.bool or (ids.is_floating_point() and ids.dtype not in ROUNDED_ABOVE):
        raise InputError(f"{name} of {ids.dtype}: positions are integers or real numbers; a mask goes to from_mask")
    if ids.is_floating_point() and ids.is_meta:
        raise InputError(f"{name} is on meta, where tensors have no values: pass one on a device")
    if ids.is_floating_point() and not torch.compiler.is_compiling():
        if not bool(ids.isfinite().all()):
            raise InputError(f"{name} has values that are not finite: positions must be numbers")
        most, same = ROUNDED_ABOVE[ids.dtype], (ids.reshape(*ids.shape[:2], -1).diff(dim=1) == 0).all(-1)
        beyond, shared = bool((ids.abs() > most).any()), bool(same.any())
        if (beyond and shared) or ((beyond or shared) and ids.element_size() < 4):
            rounded = f"neighbours share a number, or integers above {most}, which it rounds"
            raise InputError(f"{name} of {ids.dtype}: {rounded}", "make them int64, or a wider dtype")
    ids = ids[..., 0] if ids.dim() == 3 and ids.shape[2] == 1 else ids
    # distances must be exact: narrow integers would wrap; and a copy, since the caller may change their tensor later
    return (exact(ids) if ids.is_floating_point() else ids.long()).clone()


def as_mask(name: str, mask: Ids) -> Tensor:
    """A (batch, n) mask of ones and zeros, as bool."""
    mask = as_numbers(name, mask)
    binary = mask.dtype == torch.bool or torch.compiler.is_compiling()
    if mask.dim() != 2 or mask.is_meta or 0 in mask.shape or not (binary or bool(((mask == 0) | (mask == 1)).all())):
        raise InputError(f"{name} of shape {tuple(mask.shape)}: pass (batch, num_keys) of ones and zeros")
    return mask.to(torch.bool, copy=True)  # the caller may change theirs later


def moved_to(at: object, before: Tensor) -> Tensor:
    """Where `Positions.moved` puts tokens at (batch or 1, n[, axes]), in a dtype that is exact."""
    if isinstance(at, Tensor) and at.dim() in (2, 3) and at.shape[1] == before.shape[1] and not at.is_complex():
        looks = at.device.type == "cpu" and not (torch.compiler.is_compiling() or interpreted())
        if not looks or bool(at.isfinite().all()):
            return exact(at) if at.is_floating_point() else at.long()
    raise InputError(f"move returned {shown(at)}: return finite numbers (batch or 1, {before.shape[1]}[, axes])")


def settled(at: Tensor, placed: Tensor | None) -> Tensor:
    """A copy of positions, (batch or 1, n) or (batch or 1, n, axes), with tokens without a place at 0 on every axis."""
    if placed is None or at.dim() == 2:
        return at.clone()  # the caller may change theirs later
    return torch.where(placed[..., None], at, torch.zeros_like(at))


def as_placed(placed: Ids, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Positions of queries and keys on several axes, where some tokens have no place, and which have one, see
    `Positions.from_ids`."""
    mask = as_numbers("placed", placed, k.device)
    mask = as_mask("placed", mask[None] if mask.dim() == 1 else mask)
    rows = k.shape[0] if k.shape[0] == q.shape[0] else 1
    if k.dim() != 3 or mask.shape[1] != k.shape[1] or mask.shape[0] not in (1, rows):
        raise InputError(f"placed of shape {tuple(mask.shape)}: pass ([batch,] {k.shape[1]}), for keys on several axes")
    if not torch.compiler.is_compiling() and bool(mask.all()):
        return q, k, None, None
    of_q = mask[:, max(k.shape[1] - q.shape[1], 0) :]
    at = settled(q, of_q)
    return (at, at, of_q, of_q) if k is q else (at, settled(k, mask), of_q, mask)


def as_padding(name: str, mask: Ids) -> Tensor:
    """A (batch, n) mask in which True, or minus infinity beside zeros, is padding, as bool."""
    mask = as_numbers(name, mask)
    if mask.is_floating_point() and not torch.compiler.is_compiling() and bool(mask.isinf().any()):
        mask = torch.where(mask == -torch.inf, 1.0, mask)
    return as_mask(name, mask)


def check_order(q: Tensor, k: Tensor, *checks: str) -> None:
    """Raises:
    InputError: "cross": always, of causal queries; "last": those whose positions are not those of the last keys; "falls":
        positions that fall."""
    if "cross" in checks:
        remedy = "pass Positions.arange(n, offset=cached, causal=True) for one"
        raise InputError("queries and keys of Positions.cross are two sequences", remedy, causal=True)
    if q.is_meta or k.is_meta or torch.compiler.is_compiling():
        return
    if "last" in checks and not torch.equal(*torch.broadcast_tensors(q, k[:, k.shape[1] - q.shape[1] :])):
        raise InputError(
            f"position_ids are not the last {q.shape[1]} of key_ids, as those of causal queries are",
            "pass key_ids up to the queries; of a static cache take Positions.in_slots(position_ids, slots)",
        )
    for row, at in (k.diff(dim=1) < 0).nonzero()[:1].tolist() if "falls" in checks else []:
        before, after = k[row, at : at + 2].tolist()
        raise InputError(
            f"position_ids fall from {before} to {after} in row {row}: a causal token sees every earlier one, of any document",
            "for documents pass packed=True or Positions.packed, for padding from_mask, for one text in another order packed=False",
        )


def as_indices(name: str, index: Ids, count: int, rows: int) -> Tensor:
    """Which of `count` tokens, (rows or 1, m) int64: given as (m,) for all rows, or (batch, m), one row each."""
    given = as_numbers(name, index)
    index = given[None] if given.dim() == 1 else given
    fits = index.dim() == 2 and 0 not in index.shape and (rows == 1 or index.shape[0] in (1, rows))
    if not fits or not holds_integers(index):
        raise InputError(f"pass integers (m,), or (batch, m) for the {rows} rows", argument=name, value=given)
    if not torch.compiler.is_compiling():
        low, high = (int(limit) for limit in index.aminmax())
        if not 0 <= low <= high < count:
            raise InputError(f"{name} from {low} to {high}: must lie between 0 and {count - 1}")
        if not bool((index.sort(1).values.diff(dim=1) > 0).all()):
            raise InputError("names a token twice", argument=name, value=given)
    return index.long()


def select(x: Tensor, index: Tensor) -> Tensor:
    """The tokens of (rows or 1, n, ...) at (rows or 1, m) indices, in their order."""
    if index.shape[0] == 1:
        return x[:, index[0]]
    return x.expand(index.shape[0], *x.shape[1:]).take_along_dim(index.view(*index.shape, *[1] * (x.dim() - 2)), 1)


def check_range(first: int, end: int, count: int) -> None:
    """Refuse what is no range of `count` tokens."""
    if torch.compiler.is_compiling():
        return
    check_integers(first=first, end=end)
    if not 0 <= first < end <= count:
        raise InputError(f"pass a range within 0 .. {count}", first=first, end=end)


def exact(ids: Tensor) -> Tensor:
    """Positions as float64, where the device has it; those made in inference mode may meet training later."""
    precise = ids.float() if ids.device.type == "mps" else ids.double()
    if torch.compiler.is_compiling() or precise is not ids or torch.is_inference_mode_enabled():
        return precise
    return precise.clone() if precise.is_inference() else precise


# ---------------------------------------------------------------- documents in one sequence


def documents_of(lengths: Ids | None, cu_seqlens: Ids | None, document_ids: Tensor | None, device: Device) -> Tensor:
    """The document of each token, (batch or 1, n), from one of the three, see `Positions.packed`."""
    if sum(x is not None for x in (lengths, cu_seqlens, document_ids)) != 1:
        raise InputError("packed() takes exactly one of lengths, cu_seqlens and document_ids")
    if document_ids is None:
        refuse_in_program("packed: lengths of documents say which token is of which", "pass document_ids=")
    if cu_seqlens is not None:
        edges = _token_counts("cu_seqlens", cu_seqlens, device)
        if edges.shape[0] < 2 or int(edges[0]) != 0 or int(edges.diff().min()) < 0 or int(edges[-1]) == 0:
            raise InputError("must start at 0, and rise to the number of tokens", cu_seqlens=edges.tolist())
        sizes = edges.diff()  # zeros for documents of no tokens, as FlashAttention allows
    if lengths is not None:
        sizes = _token_counts("lengths", lengths, device)
        if int(sizes.min()) < 1:
            raise InputError("each document needs at least one token", lengths=sizes.tolist())
    if document_ids is None:
        name, given = ("lengths", lengths) if cu_seqlens is None else ("cu_seqlens", cu_seqlens)
        check_tokens(sum(sizes.tolist()), **{name: given})
        document_ids = torch.repeat_interleave(torch.arange(sizes.shape[0], device=sizes.device), sizes)
    documents = as_numbers("document_ids", document_ids, device)
    documents = documents[None] if documents.dim() == 1 else documents
    if documents.dim() != 2 or not holds_integers(documents) or 0 in documents.shape:
        raise InputError(f"document_ids of shape {tuple(documents.shape)}: pass integers (n,) or (batch, n)")
    return documents.long().clone()  # the caller may change theirs later


def begins(ids: Tensor, compare: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Where tokens after the first are what `compare` says of their ids and of those before them, (batch or 1, n) bool."""
    # without a slice of n - 1 tokens, which would make an exported program for three of them or more
    found = compare(ids, ids.roll(1, dims=1))
    found[:, 0] = False
    return found


def numbered(documents: Tensor) -> Tensor:
    """The documents of each row as numbers from 0 on, below the row's tokens, (batch or 1, n). torch.unique, whose values a
    program does not know the number of, would end it."""
    together, source = documents.sort(dim=1)
    return torch.empty_like(source).scatter_(1, source, begins(together, torch.ne).cumsum(1))


def index_in_document(documents: Tensor) -> Tensor:
    """How many tokens of its document come before each token; documents may come in pieces. Like documents, (batch or 1,
    n)."""
    order = torch.arange(documents.shape[1], device=documents.device)[None]
    # sorted by document, each counts on from its first token
    together, source = documents.sort(dim=1, stable=True)
    index = order - torch.where(begins(together, torch.ne), order, 0).cummax(1).values
    return torch.empty_like(documents, dtype=torch.long).scatter_(1, source, index)


def document_lengths(documents: Tensor | None, valid: Tensor | None, order: Tensor) -> Tensor:
    """Valid tokens in each token's document (or row), (batch or 1, n)."""
    documents = torch.zeros_like(order) if documents is None else documents
    valid = torch.ones_like(documents, dtype=torch.bool) if valid is None else valid
    rows = max(documents.shape[0], valid.shape[0])
    documents, valid = documents.expand(rows, -1), valid.expand(rows, -1)
    index = numbered(documents)
    return torch.zeros_like(index).scatter_add_(1, index, valid.long()).gather(1, index)


def prefix_mask(prefix_lengths: int | Ids, documents: Tensor | None, valid: Tensor, rows: int) -> Tensor:
    """Which tokens are in the prefix of their row or document, see `Positions.with_prefix`: (rows or 1, n) bool.

    documents, valid: of each token, (rows or 1, n)."""
    given = as_numbers("prefix_lengths", prefix_lengths, valid.device)
    by_document = documents is not None and given.dim() > 0
    compiling, fits = torch.compiler.is_compiling(), given.numel() > 0 and holds_integers(given)
    lengths = given.reshape(-1, given.shape[-1] if by_document and fits else 1)
    fits = fits and given.dim() <= 1 + by_document and (rows == 1 or lengths.shape[0] in (1, rows))
    if documents is not None and by_document and fits:
        fits = compiling or int(documents.max()) < lengths.shape[1]
        most = max(lengths.shape[0], documents.shape[0])
        index = documents.clamp(0, lengths.shape[1] - 1).expand(most, -1)
        lengths = lengths.expand(most, -1).gather(1, index)
    if not fits:
        remedy = f"pass an integer, one for each of {rows} rows, or one for each packed document"
        raise InputError(remedy, prefix_lengths=prefix_lengths)
    index = valid.long().cumsum(1) - 1 if documents is None else index_in_document(documents)
    prefix = valid & (index < lengths)
    if not compiling:
        tokens = document_lengths(documents, valid, index)
        low, high = (int(limit) for limit in lengths.aminmax())
        if low < 0 or bool((valid & (lengths > tokens)).any()):
            raise InputError(f"prefix_lengths from {low} to {high}: must lie between 0 and the tokens there are")
    return prefix


def _token_counts(name: str, counts: Any, device: Device) -> Tensor:
    numbers = as_numbers(name, counts, device)
    if not holds_integers(numbers) or numbers.dim() != 1 or numbers.shape[0] == 0:
        raise InputError("pass a list of integers, numbers of tokens", argument=name, value=counts)
    return numbers.long()


# ---------------------------------------------------------------- images and videos


def size_of(height: int, width: int, frames: int | None = None) -> tuple[int, ...]:
    """An image's size in the order of its axes: (height, width) or (frames, height, width)."""
    check_sizes(height=height, width=width, **not_none(frames=frames))
    return (height, width) if frames is None else (frames, height, width)


def sizes_of(sizes: Any) -> list[tuple[int, ...]]:
    """`size_of` of several images, (height, width) or (height, width, frames) each."""
    sizes = sizes.tolist() if isinstance(sizes, Tensor) else sizes
    listed = isinstance(sizes, (tuple, list)) and all(isinstance(size, (tuple, list)) for size in sizes)
    if not listed or not sizes or not all(len(size) in (2, 3) for size in sizes):
        raise InputError("pass (height, width) or (height, width, frames) of each image", sizes=sizes)
    images = [size_of(*size) for size in sizes]
    if len({len(size) for size in images}) > 1:
        raise InputError("pass images or videos, not both", sizes=sizes)
    return images


def tokens_of_images(
    sizes: Any, prefix: int, padded: bool, device: Device
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, tuple[tuple[int, ...], ...]]:
    """The coordinates of the tokens of images, and which tokens are no padding, which image each is of, and which have a place
    (None where all are alike), and the images' sizes. One sequence, or, padded, one row for each image."""
    images = sizes_of(sizes)
    tokens = [prefix + prod(size) for size in images]
    check_tokens(max(tokens) * len(tokens) if padded else sum(tokens), sizes=sizes, prefix=prefix)
    rows = [_coordinates(size, prefix, device) for size in images]
    ids, lengths = torch.cat(rows)[None], torch.tensor([row.shape[0] for row in rows], device=rows[0].device)
    documents = valid = placed = None
    if len(images) > 1 and padded:
        ids = pad_sequence(rows, batch_first=True)
        valid = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    elif len(images) > 1:
        documents = torch.repeat_interleave(torch.arange(len(rows), device=ids.device), lengths)[None]
    if prefix:
        index = torch.arange(ids.shape[1], device=ids.device)[None]
        placed = (index if documents is None else index_in_document(documents)) >= prefix
    return ids, valid, documents, placed, tuple(images)


def _coordinates(size: Sequence[int], prefix: int, device: Device) -> Tensor:
    """Of an image's tokens: (prefix + patches, axes), zeros for those before the patches."""
    axes = torch.meshgrid(*(torch.arange(n, device=device) for n in size), indexing="ij")
    patches = torch.stack(axes, -1).flatten(0, -2)
    return torch.cat((patches.new_zeros(prefix, len(size)), patches))


def unplaced_index(placed: Tensor, documents: Tensor | None) -> Tensor:
    """How many tokens without a place come before each such token in its document; -1 for others. (batch or 1, n)."""
    apart = ~placed
    if documents is None:
        return torch.where(apart, apart.cumsum(1) - 1, -1)
    return torch.where(apart, index_in_document(documents.masked_fill(placed, documents.min() - 1)), -1)


def check_prefix(prefix_lengths: object, prefix: Tensor, slots: Tensor, batch: int) -> None:
    """Raises:
    InputError: queries in these slots of the keys, (batch or 1, n), begin inside a prefix, (batch or 1, num_keys)."""
    rows = max(batch, prefix.shape[0])
    slots = slots.clamp(0, prefix.shape[1] - 1).expand(rows, -1)
    inside = prefix.expand(rows, -1).gather(1, slots).sum(1)
    if bool(((inside > 0) & (inside < prefix.sum(1))).any()):
        what = f"the {slots.shape[1]} queries begin inside the prefix"
        raise InputError(what, "read it in one call", prefix_lengths=prefix_lengths)
