# SPDX-License-Identifier: Apache-2.0
"""Terms of the scores on one tile of queries and keys: what they add, and the gradient that comes back.

A tile is rows x columns of the score matrix of some heads. What depends on the distance lives in a buffer one column
per distance, (heads, rows, columns + rows - 1), whose skew view puts distance (i - j) under query i and key j: no
gather, no copy, and gradients written through the view are aligned by distance again.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

Slice = tuple[int, int]


@dataclass(frozen=True)
class Tile:
    """Queries and keys of a tile of some heads in a row of the batch.

    first: where its distances begin in a vector of them. diagonal: if causal, query i sees keys up to i + diagonal.
    """

    row: int
    heads: Slice
    queries: Slice
    keys: Slice
    first: int
    diagonal: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return tuple(end - start for start, end in (self.heads, self.queries, self.keys))  # type: ignore[return-value]

    @property
    def distances(self) -> slice:
        _, rows, columns = self.shape
        return slice(self.first, self.first + rows + columns - 1)


def cut(x: Tensor, row: int, heads: Slice) -> Tensor:
    """Some heads (or the 1 there is) of a row of the batch (or the 1) of a (batch or 1, heads or 1, ...) tensor."""
    part = x[row if x.shape[0] > 1 else 0]
    return part[slice(*heads)] if part.shape[0] > 1 else part


def skew(buffer: Tensor, columns: int) -> Tensor:
    """(heads, rows, columns + rows - 1) by distance -> the view (heads, rows, columns) by key."""
    heads, rows, width = buffer.shape
    strides = (buffer.stride(0), width - 1, 1)
    return buffer.as_strided((heads, rows, columns), strides, buffer.storage_offset() + rows - 1)


class Scratch:
    """Buffers of a loop over tiles, reused while they fit."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.pools: dict[str, Tensor] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A contiguous buffer that holds anything."""
        size = 1
        for n in shape:
            size *= n
        pool = self.pools.get(name)
        if pool is None or pool.numel() < size:
            self.pools[name] = pool = self.like.new_empty(size)
        return pool[:size].view(shape)

    def by_distance(self, name: str, tile: Tile) -> Tensor:
        """A buffer by distance whose corners, outside the skew view, are zero."""
        heads, rows, columns = shape = tile.shape
        buffer = self.take(name, heads, rows, columns + rows - 1)
        if self.shapes.get(name) == shape:
            return buffer
        self.shapes[name] = shape
        return buffer.zero_()


def _add(total: Tensor, part: Tensor) -> None:
    """Add the gradient of some heads to that of as many, or of the one that they share."""
    total += part if total.shape[0] == part.shape[0] else part.sum(0, keepdim=True)


class Term:
    """A term of the scores, made of tensors whose gradients it collects.

    `enter` some heads of a row of the batch, `add` or `collect` on tiles of them, then `leave` them.
    """

    by_distance = True
    """Whether it is added by distance rather than by key."""
    has_distances = True
    """Whether it reads where a tile's distances begin."""
    size = 1
    """How many tensors it is made of."""
    kept = 0
    """Numbers that it keeps of a head from `enter` to `leave`."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors
        self.grads: list[Tensor | None] = [None] * len(tensors)

    def wants(self, needs: list[bool]) -> None:
        """Prepare to collect the gradients of those tensors that need one."""
        self.grads = [x.new_zeros(x.shape) if need else None for x, need in zip(self.tensors, needs, strict=True)]

    def enter(self, row: int, heads: Slice) -> None:
        """Prepare for tiles of these heads."""

    def leave(self) -> None:
        """Bring in what was collected since `enter`."""

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        """Add the term to a buffer by distance, or by key if not by_distance; set it if the buffer is fresh."""
        raise NotImplementedError  # abstract: every term defines it

    def collect(self, grad: Tensor, tile: Tile) -> None:
        """Take the gradient of what `add` added, in the same form."""
        raise NotImplementedError  # abstract: every term defines it


class DistanceTerm(Term):
    """b[head, distance] from its vector, (heads, distances)."""

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        part = self.tensors[0][slice(*tile.heads), None, tile.distances]
        out.copy_(part.expand_as(out)) if fresh else out.add_(part)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        if self.grads[0] is not None:
            self.grads[0][slice(*tile.heads), tile.distances] += grad.sum(1)


class _ContentTerm(Term):
    """x . table[row of the distance]: content (batch, heads, n, d), table (heads or 1, rows, d), rows (distances,)."""

    size = 3

    def __init__(self, content: Tensor, table: Tensor, rows: Tensor) -> None:
        super().__init__(content, table, rows)
        self.rows = rows
        self.kept: int = content.shape[2] * table.shape[1]

    def wants(self, needs: list[bool]) -> None:
        super().wants([*needs[:2], False])

    @property
    def learns(self) -> bool:
        return self.grads[0] is not None or self.grads[1] is not None

    def enter(self, row: int, heads: Slice) -> None:
        self.content: Tensor = cut(self.tensors[0], row, heads)
        self.table: Tensor = cut(self.tensors[1][None], row, heads)
        of_content, of_table = self.grads[:2]
        self.of_content: Tensor | None = None if of_content is None else cut(of_content, row, heads)
        self.of_table: Tensor | None = None if of_table is None else cut(of_table[None], row, heads)


class QueryTerm(_ContentTerm):
    """q_i . r[distance]."""

    def __init__(self, content: Tensor, table: Tensor, rows: Tensor) -> None:
        super().__init__(content, table, rows)
        # a row per distance, in order: no lookup is needed
        self.direct: bool = _in_order(rows, table)
        if self.direct:
            self.kept = 0

    def enter(self, row: int, heads: Slice) -> None:
        super().enter(row, heads)
        if not self.direct:
            self.product: Tensor = self.content @ self.table.mT
            if self.learns:
                self.of_product: Tensor = torch.zeros_like(self.product.mT, memory_format=torch.contiguous_format)

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        queries = slice(*tile.queries)
        target = out if fresh else None
        if self.direct:
            found = torch.matmul(self.content[:, queries], self.table[:, tile.distances].mT, out=target)
        else:
            product = self.product[:, queries]
            found = torch.gather(product, -1, self.rows[tile.distances].expand(*product.shape[:2], -1), out=target)
        if not fresh:
            out.add_(found)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        if not self.learns:
            return
        queries = slice(*tile.queries)
        if not self.direct:
            bin_columns(grad, self.rows[tile.distances], self.of_product[..., queries])
            return
        if self.of_content is not None:
            self.of_content[:, queries] += grad @ self.table[:, tile.distances]
        if self.of_table is not None:
            _add(self.of_table[:, tile.distances], grad.mT @ self.content[:, queries])

    def leave(self) -> None:
        if self.direct or not self.learns:
            return
        if self.of_content is not None:
            _add(self.of_content, self.of_product.mT @ self.table)
        if self.of_table is not None:
            _add(self.of_table, self.of_product @ self.content)


class KeyTerm(_ContentTerm):
    """k_j . r[distance]."""

    by_distance = False

    def enter(self, row: int, heads: Slice) -> None:
        super().enter(row, heads)
        self.product: Tensor = self.content @ self.table.mT
        if self.learns:
            self.of_product: Tensor = torch.zeros_like(self.product)

    def _rows(self, tile: Tile) -> Tensor:
        """The row of each key and query, queries from the last to the first: a view (columns, rows)."""
        _, rows, columns = tile.shape
        return self.rows.as_strided((columns, rows), (1, 1), self.rows.storage_offset() + tile.first)

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        rows = self._rows(tile)
        for head, of_head in enumerate(self.product[:, slice(*tile.keys)]):
            found = torch.gather(of_head, 1, rows).T.contiguous().flip(0)
            out[head].copy_(found) if fresh else out[head].add_(found)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        if not self.learns:
            return
        rows = self._rows(tile)
        for head, of_head in enumerate(grad):
            self.of_product[head, slice(*tile.keys)].scatter_add_(1, rows, of_head.flip(0).T.contiguous())

    def leave(self) -> None:
        if self.of_content is not None:
            _add(self.of_content, self.of_product @ self.table)
        if self.of_table is not None:
            _add(self.of_table, self.of_product.mT @ self.content)


class ProductTerm(Term):
    """a_i . b_j: left (batch or 1, heads or 1, queries, m), right (batch or 1, heads or 1, keys, m)."""

    by_distance = has_distances = False
    size = 2

    def enter(self, row: int, heads: Slice) -> None:
        left, right = self.tensors
        of_left, of_right = self.grads
        self.left: Tensor = cut(left, row, heads)
        self.right: Tensor = cut(right, row, heads)
        self.of_left: Tensor | None = None if of_left is None else cut(of_left, row, heads)
        self.of_right: Tensor | None = None if of_right is None else cut(of_right, row, heads)

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        left, right = self.left[:, slice(*tile.queries)], self.right[:, slice(*tile.keys)]
        heads = out.shape[0]
        out.baddbmm_(left.expand(heads, -1, -1), right.expand(heads, -1, -1).mT, beta=0 if fresh else 1)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        queries, keys = slice(*tile.queries), slice(*tile.keys)
        if self.of_left is not None:
            _add(self.of_left[:, queries], grad @ self.right[:, keys])
        if self.of_right is not None:
            _add(self.of_right[:, keys], grad.mT @ self.left[:, queries])


class FullTerm(Term):
    """A (batch or 1, heads or 1, queries, keys) tensor."""

    by_distance = has_distances = False

    def enter(self, row: int, heads: Slice) -> None:
        self.part: Tensor = cut(self.tensors[0], row, heads)
        self.of_part: Tensor | None = None if self.grads[0] is None else cut(self.grads[0], row, heads)

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        part = self.part[:, slice(*tile.queries), slice(*tile.keys)]
        out.copy_(part.expand_as(out)) if fresh else out.add_(part)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        if self.of_part is not None:
            _add(self.of_part[:, slice(*tile.queries), slice(*tile.keys)], grad)


class ValuesTerm(Term):
    """w[distance], added to the values: table (heads or 1, rows, value width), rows (distances,). Not on the scores."""

    size = 2

    def __init__(self, table: Tensor, rows: Tensor) -> None:
        super().__init__(table, rows)
        self.rows = rows
        self.direct: bool = _in_order(rows, table)

    def wants(self, needs: list[bool]) -> None:
        super().wants([needs[0], False])

    def enter(self, row: int, heads: Slice) -> None:
        self.table: Tensor = cut(self.tensors[0][None], row, heads)
        self.of_table: Tensor | None = None if self.grads[0] is None else cut(self.grads[0][None], row, heads)

    def output(self, weights: Tensor, tile: Tile) -> Tensor:
        """What weights by distance bring to the output, (heads, rows, value width)."""
        if self.direct:
            return weights @ self.table[:, tile.distances]
        return self.binned(weights, tile).mT @ self.table

    def of_weights(self, grad: Tensor, tile: Tile) -> Tensor:
        """The gradient of weights by distance from that of the output."""
        if self.direct:
            return grad @ self.table[:, tile.distances].mT
        product = grad @ self.table.mT
        return torch.gather(product, -1, self.rows[tile.distances].expand(*product.shape[:2], -1))

    def collect_output(self, grad: Tensor, weights: Tensor, tile: Tile) -> None:
        """Take the gradient (heads, rows, value width) of `output`."""
        if self.of_table is None:
            return
        if self.direct:
            _add(self.of_table[:, tile.distances], weights.mT @ grad)
        else:
            _add(self.of_table, self.binned(weights, tile) @ grad)

    def binned(self, weights: Tensor, tile: Tile) -> Tensor:
        """Weights by row of the table, (heads, table's rows, rows)."""
        found = weights.new_zeros(weights.shape[0], self.table.shape[1], weights.shape[1])
        bin_columns(weights, self.rows[tile.distances], found)
        return found


def _in_order(rows: Tensor, table: Tensor) -> bool:
    return rows.numel() == table.shape[1] and bool((rows == torch.arange(len(rows))).all())


def bin_columns(x: Tensor, rows: Tensor, out: Tensor) -> None:
    """Add column c of x (heads, n, distances) to row rows[c] of out (heads, count, n)."""
    for of_head, total in zip(x, out, strict=True):
        # whole rows are added, which a scatter along the last dimension is far from
        total.index_add_(0, rows, of_head.T.contiguous())


TERMS: dict[str, type[Term]] = {
    "distance": DistanceTerm, "query": QueryTerm, "key": KeyTerm, "product": ProductTerm, "full": FullTerm,
    "values": ValuesTerm,
}  # fmt: skip
