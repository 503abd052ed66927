# SPDX-License-Identifier: Apache-2.0
"""What callers say of tokens by number: positions, masks of ones and zeros, indices, ranges."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.checks import as_numbers, check_value, holds_integers, shown
from posenc.errors import InputError
from posenc.positions.packing import counted

Ids = Tensor | Sequence[Any]


def as_positions(name: str, ids: Ids) -> Tensor:
    """Positions (batch or 1, n) or (batch or 1, n, axes), whole ones as int64, others as `exact`.

    Raises:
        InputError: a wrong rank, a mask, or a value that is not finite.
    """
    ids = as_numbers(name, ids)
    if ids.dim() == 1:
        ids = ids[None]
    if ids.dim() not in (2, 3) or 0 in ids.shape:
        raise InputError(f"{name} of shape {tuple(ids.shape)}: pass (n,), (batch, n) or (batch, n, axes), not empty")
    if ids.is_floating_point() and ids.is_meta:
        raise InputError(f"{name} is on meta, where tensors have no values: pass one on a device")
    if ids.is_floating_point() and not torch.compiler.is_compiling() and not bool(ids.isfinite().all()):
        raise InputError(f"{name} holds values that are not finite: positions must be numbers")
    if ids.dtype == torch.bool:
        raise InputError(f"{name} of {ids.dtype}: positions are integers or real numbers; a mask goes to from_mask")
    if ids.dim() == 3 and ids.shape[2] == 1:
        ids = ids[..., 0]
    # distances must be exact: narrow integers would wrap, and half-precision positions collapse; and a copy, since the
    # caller may change their tensor later
    return (exact(ids) if ids.is_floating_point() else ids.long()).clone()


def as_mask(name: str, mask: Ids) -> Tensor:
    """A (batch, n) mask of ones and zeros, as bool.

    Raises:
        InputError: another rank, or other numbers.
    """
    mask = as_numbers(name, mask)
    binary = mask.dtype == torch.bool or torch.compiler.is_compiling()
    if mask.dim() != 2 or mask.is_meta or 0 in mask.shape or not (binary or bool(((mask == 0) | (mask == 1)).all())):
        raise InputError(f"{name} of shape {tuple(mask.shape)}: pass (batch, num_keys) of ones and zeros")
    return mask.to(torch.bool, copy=True)  # the caller may change theirs later


def as_indices(name: str, index: Ids, count: int, rows: int) -> Tensor:
    """Which of `count` tokens, (rows or 1, m) int64: given as (m,) for all rows, or (batch, m) for each its own.

    Raises:
        InputError: another shape, no whole numbers, some out of range, or the same one twice in a row.
    """
    index = as_numbers(name, index)
    given, index = index, index[None] if index.dim() == 1 else index
    whole = holds_integers(index)
    if index.dim() != 2 or 0 in index.shape or not whole or (rows > 1 and len(index) not in (1, rows)):
        raise InputError(f"{name}={shown(given)}: pass whole numbers (m,), or (batch, m) for the {rows} rows")
    if not torch.compiler.is_compiling():
        low, high = (int(found) for found in index.aminmax())
        if not 0 <= low <= high < count:
            raise InputError(f"{name} from {low} to {high}: must lie between 0 and {count - 1}")
        if not bool((index.sort(1).values.diff(dim=1) > 0).all()):
            raise InputError(f"{name}={shown(given)}: names a token twice")
    return index.long()


def taken(x: Tensor, index: Tensor) -> Tensor:
    """The tokens of (rows or 1, n, ...) that (rows or 1, m) indices name, in their order."""
    if len(index) == 1:
        return x[:, index[0]]
    return x.expand(len(index), *x.shape[1:]).take_along_dim(index.view(*index.shape, *[1] * (x.dim() - 2)), 1)


def check_range(first: int, end: int | None, count: int) -> None:
    """Refuse what is no range of `count` tokens.

    Raises:
        InputError: names both ends.
    """
    if torch.compiler.is_compiling():
        return
    check_value("first", first, int)
    check_value("end", end, int | None)
    if not 0 <= first < (count if end is None else end) <= count:
        raise InputError(f"first={first}, end={end}: pass a range within 0 .. {count}")


def prefix_tokens(coordinates: Tensor) -> Tensor:
    """Which tokens have no place on a grid, such as [CLS]: the integer -1 on every axis. (..., axes) -> (...) bool.
    Fractional coordinates may run from -1 to 1, and have none."""
    found = (coordinates == -1).all(-1)
    return found & False if coordinates.is_floating_point() else found


def prefix_places(coordinates: Tensor, documents: Tensor | None) -> Tensor:
    """Of each token without a place on a grid, how many such are before it in its document; of others, -1.
    (batch or 1, n, axes) -> (batch or 1, n)."""
    apart = prefix_tokens(coordinates)
    if documents is None:
        return torch.where(apart, apart.cumsum(1) - 1, -1)
    return torch.where(apart, counted(documents.masked_fill(~apart, documents.min() - 1)), -1)


def first_frame(coordinates: Tensor) -> Tensor:
    """(..., 2) coordinates of an image's tokens as those of a video's first frame, (..., 3)."""
    t = torch.where(prefix_tokens(coordinates), -1, 0).to(coordinates)
    return torch.cat((t[..., None], coordinates), -1)


def exact(ids: Tensor) -> Tensor:
    """Positions as float64, where the device has it; those made in inference mode may meet training later."""
    found = ids.float() if ids.device.type == "mps" else ids.double()
    if torch.compiler.is_compiling() or found is not ids or torch.is_inference_mode_enabled():
        return found
    return found.clone() if found.is_inference() else found
