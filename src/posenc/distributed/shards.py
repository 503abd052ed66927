# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a sequence one of several processes has."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.checks import LARGEST_SIZE, check_word, is_whole, shown
from posenc.errors import InputError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from posenc.positions import Positions

LAYOUTS = ("contiguous", "zigzag")
Run = tuple[int, int]
"""First token and end of consecutive ones."""


@dataclass(frozen=True, eq=False)
class Shard:
    """The part of a sequence that is at one process, made by `Positions.shard`.

    Attributes:
        whole: the positions of the whole sequence.
        rank, world_size: the process, of so many.
        layout: "contiguous" or "zigzag", see `Positions.shard`.
        runs: the tokens, as first and end of consecutive ones.
        group: the processes that hold the other parts; None: all there are.
    """

    whole: "Positions" = field(repr=False)
    rank: int
    world_size: int
    layout: str
    runs: tuple[Run, ...]
    group: Any = None

    @classmethod
    def of(
        cls, whole: "Positions", rank: int, world_size: int, layout: str, group: "ProcessGroup | None" = None
    ) -> "Shard":
        """A process's part.

        Raises:
            InputError: what `Positions.shard` says.
        """
        check_word("layout", layout, LAYOUTS)
        if not is_whole(world_size) or not 1 <= world_size <= LARGEST_SIZE:
            raise InputError(f"world_size={shown(world_size)}: the number of processes, at least 1")
        if not is_whole(rank) or not 0 <= rank < world_size:
            raise InputError(f"rank={shown(rank)}: must lie between 0 and world_size - 1 = {world_size - 1}")
        length = whole.num_queries
        parts = len(chunks_of(0, world_size, layout)) * world_size
        if length % parts:
            raise InputError(
                f"a sequence of {length} tokens cannot be cut into {parts} equal parts ({layout}, "
                f"world_size={world_size}): pad it to {-(-length // parts) * parts}, with Positions.from_mask or with "
                "document id -1 in Positions.packed"
            )
        size = length // parts
        runs: list[Run] = []
        for chunk in chunks_of(rank, world_size, layout):
            before = runs.pop() if runs and runs[-1][1] == chunk * size else (chunk * size, 0)
            runs.append((before[0], (chunk + 1) * size))
        return cls(whole, rank, world_size, layout, tuple(runs), group)

    @property
    def length(self) -> int:
        """Tokens of this part."""
        return sum(end - first for first, end in self.runs)

    def indices(self) -> Tensor:
        """Which tokens of the whole sequence are here, (length,)."""
        device = self.whole.q.device
        return torch.cat([torch.arange(first, end, device=device) for first, end in self.runs])

    def take(self, x: Tensor, dim: int = 1) -> Tensor:
        """This part of a tensor over the whole sequence; one that is the same for every token stays."""
        if x.shape[dim] == 1 < self.whole.num_queries:
            return x
        parts = [x.narrow(dim, first, end - first) for first, end in self.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def positions(self, keys: int | None = None) -> "Positions":
        """Where these tokens are among the first `keys` keys of the whole sequence; None: among all."""
        p, count = self.whole, self.whole.num_keys if keys is None else keys

        def own(x: Tensor | None) -> Tensor | None:
            return None if x is None else self.take(x)

        def cut(x: Tensor | None) -> Tensor | None:
            return x if x is None or keys is None else x[:, :keys]

        start, diagonal, span = None, None, p.span
        if len(self.runs) == 1:
            first, end = self.runs[0]
            diagonal = None if p.diagonal is None else p.diagonal + first
            if p.start is not None:
                start = p.start[0] + first, p.start[1]
                span = start[0] - start[1] - count + 1, start[0] - start[1] + end - first - 1
        return replace(
            p, q=self.take(p.q), k=p.k[:, :count], q_order=self.take(p.q_order), k_order=p.k_order[:, :count],
            valid=cut(p.valid), q_valid=own(p.q_valid), q_document=own(p.q_document), k_document=cut(p.k_document),
            part=self, every_key=None if keys is None else self.positions(),
        ).knowing(start=start, diagonal=diagonal, span=span)  # fmt: skip

    def calls(self, causal: bool) -> list["Positions"]:
        """Positions of the calls of attention that this part takes: one for each run of tokens, among all keys or, if
        causal, those up to its own end. That keeps each one contiguous where the whole is, and leaves out what no
        query of it sees."""
        runs = [replace(self, whole=self.whole.with_causal(causal), runs=(run,)) for run in self.runs]
        return [run.positions(run.runs[0][1] if causal else None) for run in runs]


def chunks_of(rank: int, world_size: int, layout: str) -> tuple[int, ...]:
    """The equal chunks of a sequence that a process has, by number: of world_size, or of twice as many."""
    return (rank,) if layout == "contiguous" else (rank, 2 * world_size - 1 - rank)
