# SPDX-License-Identifier: Apache-2.0
"""Which keys a query sees: by distance, in closures for masks, and counted. Pure functions of tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from posenc.functional import intercepted, transformed
from posenc.positions.ids import numbered

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query index, key index) -> bool, FlexAttention's signature, broadcastable."""

Window = tuple[int | None, int | None]
"""Tokens before and after a query that it sees besides its own; None: no limit."""

PositionMapping = Callable[[Tensor], Tensor]

NO_LIMIT = -(2**62)
ORDINARY = 1e4
"""Numbers up to this size, times those of other tokens, are finite, and nothing once a weight of zero is put to them."""


@dataclass(frozen=True)
class Region:
    """The keys at a distance of nearest, nearest + 1, .. farthest - 1 behind a query; None: no limit.

    chunk: the distance counts chunks of so many positions, q // chunk - k // chunk.
    below: of these keys, those at positions less than this.
    since, until: only for queries at positions since, since + 1, .. until - 1.
    """

    nearest: int | None = None
    farthest: int | None = None
    chunk: int = 1
    below: int | None = None
    since: int | None = None
    until: int | None = None

    def contains(self, q: Tensor, k: Tensor) -> Tensor:
        """Whether keys at positions k lie in the region of queries at q, as bool; both broadcast."""
        distance = q - k if self.chunk == 1 else q // self.chunk - k // self.chunk
        inside = torch.ones_like(distance, dtype=torch.bool)
        if self.nearest is not None:
            inside = inside & (distance >= self.nearest)
        if self.farthest is not None:
            inside = inside & (distance < self.farthest)
        if self.below is not None:
            inside = inside & (k < self.below)
        if self.since is not None:
            inside = inside & (q >= self.since)
        return inside if self.until is None else inside & (q < self.until)

    def numbers(self) -> list[int]:
        """The region as six integers, as an operator of PyTorch takes it; `Region.of` reads them."""
        fields = (self.nearest, self.farthest, self.chunk, self.below, self.since, self.until)
        return [NO_LIMIT if field is None else field for field in fields]

    @classmethod
    def of(cls, numbers: list[int]) -> "Region":
        nearest, farthest, chunk, *others = (None if number == NO_LIMIT else number for number in numbers)
        return cls(nearest, farthest, chunk or 1, *others)


EVERYTHING = Region()


class Hidden(NamedTuple):
    """Tokens that are not read, whatever they hold.

    mask: (batch or 1, n) bool. runs: (row, or -1 for all rows; first token, end) among which they all are; None: they cannot
    be looked at without waiting for a device, or at all.
    """

    mask: Tensor
    runs: list[tuple[int, int, int]] | None

    @classmethod
    def of(cls, mask: Tensor | None) -> "Hidden | None":
        if mask is None or torch.compiler.is_compiling() or mask.device.type != "cpu" or transformed() or intercepted():
            return None if mask is None else cls(mask, None)
        runs = []
        for row, tokens in enumerate(mask):
            at = tokens.nonzero()
            if at.shape[0] > 0:
                runs.append((row if mask.shape[0] > 1 else -1, int(at[0]), int(at[-1]) + 1))
        return cls(mask, runs) if runs else None

    def left_out(self, x: Tensor) -> Tensor:
        """x (batch, heads, n, width) with nothing at these tokens that weights of zero would not take away; x itself where
        that is known already."""
        looks = self.runs is not None and not torch.compiler.is_compiling() and not transformed() and not intercepted()
        if looks and all(_is_ordinary(x, *run) for run in self.runs or ()):
            return x
        return self.zeroed(x)

    def zeroed(self, x: Tensor) -> Tensor:
        """x (batch, heads, n, width) with zeros at these tokens."""
        return x.masked_fill(self.mask[:, None, :, None], 0.0)


def _is_ordinary(x: Tensor, row: int, first: int, end: int) -> bool:
    part = x.detach()[:, :, first:end] if row < 0 else x.detach()[row, :, first:end]
    if part.numel() == 0:
        return True
    return float(part.amin()) >= -ORDINARY and float(part.amax()) <= ORDINARY  # half the time of aminmax


def left_out(hidden: Hidden | None, x: Tensor) -> Tensor:
    """`Hidden.left_out`, of x itself where nothing is hidden."""
    return x if hidden is None else hidden.left_out(x)


class VisibleBlocks(NamedTuple):
    """Which blocks of keys each block of queries sees, see `Positions.with_blocks`.

    table: (batch or 1, query blocks, key blocks) bool; None: each block sees itself. q, k: the block of each query and of each
    key, (batch or 1, n).
    """

    table: Tensor | None
    q: Tensor
    k: Tensor

    def mask_mod(self) -> MaskMod:
        """Visibility in FlexAttention's signature."""
        q, k, table = rowwise(self.q), rowwise(self.k), self.table
        if table is None:
            return lambda b, h, i, j: q(b, i) == k(b, j)
        if table.shape[0] == 1:
            return lambda b, h, i, j: table[0, q(b, i), k(b, j)]
        return lambda b, h, i, j: table[b, q(b, i), k(b, j)]

    def select(self, of_q: Callable[[Tensor], Tensor], of_k: Callable[[Tensor], Tensor]) -> "VisibleBlocks":
        """The same blocks, for the queries and the keys that two functions of (batch or 1, n) tensors select."""
        return self._replace(q=of_q(self.q), k=of_k(self.k))


class DraftTree(VisibleBlocks):
    """Those of a tree of drafts, see `Positions.with_tree`: tokens do not see all that come before them in their order."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Branch:
    """The positions at which a position map scores the pairs of a region: functions of the tokens' own positions,
    (batch or 1, n) -> (batch or 1, n); None: the identity. most: the keys that a query sees in all branches of the map
    together; None: every key that it may see. turns: the functions give by how much to turn queries and keys that are rotated
    at their own positions already."""

    region: Region
    q: PositionMapping | None = None
    k: PositionMapping | None = None
    most: int | None = None
    turns: bool = False


def rowwise(table: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Read a (batch or 1, n, ...) tensor at (row, index); a single row serves every row of the batch."""
    if table.shape[0] == 1:
        return lambda row, index: table[0, index]
    return lambda row, index: table[row, index]


def grid_indices(
    batch: int, heads: int, queries: int, keys: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Index tensors (batch,1,1,1), (1,heads,1,1), (1,1,queries,1), (1,1,1,keys): a FlexAttention closure
    called with them is evaluated on the complete grid at once."""

    def axis(size: int, dim: int) -> Tensor:
        return torch.arange(size, device=device).view([-1 if d == dim else 1 for d in range(4)])

    return axis(batch, 0), axis(heads, 1), axis(queries, 2), axis(keys, 3)


def count_between(
    q_order: Tensor, k_order: Tensor, q_document: Tensor, k_document: Tensor, valid: Tensor | None, window: Window
) -> Tensor:
    """How many valid keys of its document lie within a window around each query, (rows, num_queries), in whatever order
    they come: keys are sorted by document and order, so that two searches find those of a query. All are (rows, n)."""
    sizes = [q_order.shape[1], k_order.shape[1]]
    documents = numbered(torch.cat((q_document, k_document), 1))
    orders = torch.cat((q_order, k_order), 1)
    orders = orders - orders.amin(1, keepdim=True)
    span = orders.amax(1, keepdim=True) + 1
    (of_q, of_k), (q_order, k_order) = (x.split(sizes, 1) for x in (documents * span, orders))
    of_q = of_q.contiguous()
    line = of_k + k_order
    if valid is not None:
        line = line.masked_fill(~valid, torch.iinfo(torch.long).max)
    line = line.sort(1).values
    before, after = window
    first = of_q if before is None else of_q + (q_order - before).clamp(min=0)
    last = of_q + span - 1 if after is None else of_q + torch.minimum(q_order + after, span - 1).clamp(min=-1)
    counts = torch.searchsorted(line, last, right=True) - torch.searchsorted(line, first)
    return counts.clamp(min=0)
