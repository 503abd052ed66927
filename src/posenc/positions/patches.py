# SPDX-License-Identifier: Apache-2.0
"""What encodings of images ask of positions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from posenc.errors import InputError, check_integers
from posenc.positions.positions import Positions


def of_images(positions: Positions, values: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """The number, of (images, ...) one for each of `Positions.images`, that belongs to each query's and each key's image:
    (batch or 1, n or 1, ...) twice."""
    numbers = torch.tensor(values, device=positions.q.device)
    if numbers.shape[0] == 1 or positions.q_document is None or positions.k_document is None:
        return numbers[:, None], numbers[:, None]
    return numbers[positions.q_document], numbers[positions.k_document]


def marked(positions: Positions) -> Positions:
    """The same tokens with one more coordinate, for functions of positions: 1 for those that have a place, else 0."""

    def mark(at: Tensor, placed: Tensor | None) -> Tensor:
        of_all = at.new_ones(()) if placed is None else placed.to(at)
        return torch.cat((at, of_all.expand(at.shape[:2])[..., None]), -1)

    q = mark(positions.q, positions.q_placed)
    same = positions.q is positions.k and positions.q_placed is positions.k_placed
    return positions.derived(q=q, k=q if same else mark(positions.k, positions.k_placed))


def coordinates_of(positions: Positions, axes: int, user: str) -> tuple[Tensor, Tensor]:
    """q and k as (batch or 1, n, axes). A token with one coordinate, as text has, is at that number on every axis;
    an image, where three are asked for, is the first frame of a video."""
    check_integers(1, 16, axes=axes)
    if positions.axes == 1 and positions.q.dim() == 2:
        q = positions.q[..., None].expand(-1, -1, axes)
        return q, q if positions.k is positions.q else positions.k[..., None].expand(-1, -1, axes)
    if (positions.axes, axes) == (2, 3):
        q = pad(positions.q, (1, 0))
        return q, q if positions.k is positions.q else pad(positions.k, (1, 0))
    if axes == 1:
        positions.require_one_axis(user)
    if positions.axes != axes:
        remedy = f"pass positions of {axes}, such as Positions.from_ids of shape (batch, n, {axes})"
        raise InputError(f"{user} takes {axes} coordinates per token, or one, not {positions.axes}: {remedy}")
    return positions.q, positions.k
