# SPDX-License-Identifier: Apache-2.0
"""Which keys a query sees in a branch of a position map, by their positions."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Place = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Region:
    """The keys at a distance of nearest, nearest + 1, .. farthest - 1 behind a query; None: no limit.

    chunk: the distance counts chunks of so many positions, q // chunk - k // chunk.
    below: of these keys, those at positions less than this.
    """

    nearest: int | None = None
    farthest: int | None = None
    chunk: int = 1
    below: int | None = None

    def holds(self, q: Tensor, k: Tensor) -> Tensor:
        """Whether keys at positions k lie in the region of queries at q, as bool; both broadcast."""
        distance = q - k if self.chunk == 1 else q // self.chunk - k // self.chunk
        held = torch.ones_like(distance, dtype=torch.bool)
        if self.nearest is not None:
            held = held & (distance >= self.nearest)
        if self.farthest is not None:
            held = held & (distance < self.farthest)
        return held if self.below is None else held & (k < self.below)

    def numbers(self) -> list[int]:
        """The region as four integers, -1 for None; `Region.of` reads them."""
        fields = (self.nearest, self.farthest, self.chunk, self.below)
        return [-1 if field is None else field for field in fields]

    @classmethod
    def of(cls, numbers: list[int]) -> "Region":
        nearest, farthest, chunk, below = (None if number == -1 else number for number in numbers)
        return cls(nearest, farthest, chunk or 1, below)


EVERYTHING = Region()


@dataclass(frozen=True, eq=False)
class Branch:
    """Where queries and keys count as being for those pairs that lie in a region: functions of their positions,
    (batch or 1, n) -> (batch or 1, n); None: where they are. most: the keys that a query sees in all branches of the map
    together; None: every key that it may see."""

    region: Region
    q: Place | None = None
    k: Place | None = None
    most: int | None = None
