# SPDX-License-Identifier: Apache-2.0
"""What encodings of images ask of positions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
