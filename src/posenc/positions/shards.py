# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a sequence one of several processes has."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.errors import InputError, check_integers, check_word
from posenc.positions.visibility import Cut

LAYOUTS = ("contiguous", "zigzag")


class Shard(NamedTuple):
    """The part of a sequence that one process has, made by `Positions.shard`.

    full: the positions of the full sequence. rank, world_size: the process, of so many. layout: "contiguous" or "zigzag".
    runs: the tokens, as first and end of consecutive ones. keys: the first so many keys alone are among the positions; None:
    all. group: the processes that have the other parts; None: all there are.
    """

    full: Any
    rank: int
    world_size: int
    layout: str
    runs: tuple[tuple[int, int], ...]
    keys: int | None = None
    group: Any = None

    @property
    def length(self) -> int:
        """Tokens of this part."""
        return sum(end - first for first, end in self.runs)

    def indices(self) -> Tensor:
        """Which tokens of the full sequence are here, (length,)."""
        return torch.cat([torch.arange(first, end, device=self.full.q.device) for first, end in self.runs])

    def take(self, x: Tensor, dim: int = 1) -> Tensor:
        """This part of a tensor over the full sequence; one that is the same for every token stays."""
        if x.shape[dim] == 1 < self.full.num_queries:
            return x
        parts = [x.narrow(dim, first, end - first) for first, end in self.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def of(self, full: Any) -> Any:
        """The positions of this part, of those of the full sequence."""
        queries: Cut = slice(*self.runs[0]) if len(self.runs) == 1 else self.take
        keys = None if self.keys is None else slice(0, self.keys)
        return full.select(queries, keys, sharding=self._replace(full=full))


def chunks_of(rank: int, world_size: int, layout: str) -> tuple[int, ...]:
    """The equal chunks of a sequence that a process has, by number: of world_size, or of twice as many."""
    return (rank,) if layout == "contiguous" else (rank, 2 * world_size - 1 - rank)


def runs_of(length: int, rank: int, world_size: int, layout: str) -> tuple[tuple[int, int], ...]:
    """First token and end of each run of consecutive tokens that a process has, of a sequence of that length."""
    check_word("layout", layout, LAYOUTS)
    check_integers(1, world_size=world_size)
    check_integers(0, world_size - 1, rank=rank)
    parts = len(chunks_of(0, world_size, layout)) * world_size
    if length % parts:
        remedy = f"pad it to {-(-length // parts) * parts}, as by Positions.from_mask"
        raise InputError(f"{length} tokens cannot be cut into {parts} equal parts ({layout}): {remedy}")
    size = length // parts
    runs: list[tuple[int, int]] = []
    for chunk in chunks_of(rank, world_size, layout):
        adjacent = bool(runs) and runs[-1][1] == chunk * size
        first = runs.pop()[0] if adjacent else chunk * size
        runs.append((first, (chunk + 1) * size))
    return tuple(runs)
