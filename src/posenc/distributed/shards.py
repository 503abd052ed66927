# SPDX-License-Identifier: Apache-2.0
"""One sequence over several processes: which tokens each has, and their positions."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from posenc.errors import InputError, check_integers, check_word
from posenc.positions.positions import Positions
from posenc.positions.visibility import Cut

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

LAYOUTS = ("contiguous", "zigzag")


class Shard(NamedTuple):
    """The part of a sequence that one process has, made by `Positions.shard`.

    full: the positions of the full sequence. rank, world_size: the process, of so many. layout: "contiguous" or "zigzag".
    runs: the tokens, as first and end of consecutive ones. keys: the first so many keys alone are among the positions; None:
    all. group: the processes that have the other parts; None: all there are.
    """

    full: Positions
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

    def of(self, full: Positions) -> Positions:
        """The positions of this part, of those of the full sequence."""
        queries: Cut = slice(*self.runs[0]) if len(self.runs) == 1 else self.take
        keys = None if self.keys is None else slice(0, self.keys)
        return full.select(queries, keys, sharding=self._replace(full=full), gates=())


def shard_positions(
    positions: Positions, rank: int, world_size: int, layout: str = "contiguous", group: "ProcessGroup | None" = None
) -> Positions:
    """The positions of the tokens that one process has of a sequence, among all keys.

    rank, world_size: the process, of so many. layout: "contiguous" cuts the sequence into world_size parts;
    "zigzag" into twice as many, of which a process has the rank-th from the front and from the back: causal
    attention is then the same work for all. group: the processes that have the sequence; None: all there are.
    `posenc.attention` and the models gather keys and values from them; without several processes nothing is sent.
    What restricts the positions of a shard afterwards, as `with_window`, restricts the full sequence.

    Raises:
        InputError: a rank out of range, an unknown layout, a length that cannot be cut into so many equal parts,
            positions whose keys are not the queries, as with a cache, or that are a shard already.
    """
    positions.require_complete("be sharded")
    runs = runs_of(positions.num_queries, rank, world_size, layout)
    return Shard(positions, rank, world_size, layout, runs, group=group).of(positions)


def calls_of(positions: Positions, causal: bool) -> list[Positions]:
    """Positions of the calls of attention that a shard takes: one for each run of tokens, among all keys or, if causal,
    those up to its own end. That keeps each one contiguous where the sequence is, and leaves out what no query of it
    sees."""
    shard = positions.sharding
    assert shard is not None
    full = shard.full.with_causal(causal)
    return [shard._replace(runs=(run,), keys=None if full.sees_future else run[1]).of(full) for run in shard.runs]


def chunks_of(rank: int, world_size: int, layout: str) -> tuple[int, ...]:
    """The equal chunks of a sequence that a process has, by number: of world_size, or of twice as many."""
    return (rank,) if layout == "contiguous" else (rank, 2 * world_size - 1 - rank)


def runs_of(length: int, rank: int, world_size: int, layout: str) -> tuple[tuple[int, int], ...]:
    """First token and end of each run of consecutive tokens that a process has, of a sequence of that length.

    Raises:
        InputError: a rank out of range, an unknown layout, or a length that cannot be cut into so many equal parts.
    """
    check_word("layout", layout, LAYOUTS)
    check_integers(1, world_size=world_size)
    check_integers(0, world_size - 1, rank=rank)
    parts = len(chunks_of(0, world_size, layout)) * world_size
    if length % parts:
        raise InputError(
            f"a sequence of {length} tokens cannot be cut into {parts} equal parts ({layout}, world_size={world_size}): "
            f"pad it to {-(-length // parts) * parts}, with Positions.from_mask or with document id -1 in Positions.packed"
        )
    size = length // parts
    runs: list[tuple[int, int]] = []
    for chunk in chunks_of(rank, world_size, layout):
        adjacent = bool(runs) and runs[-1][1] == chunk * size
        first = runs.pop()[0] if adjacent else chunk * size
        runs.append((first, (chunk + 1) * size))
    return tuple(runs)
