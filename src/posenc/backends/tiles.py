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
    """Queries and keys of a tile: a row of the batch, heads, and where its distances begin in a vector of them."""

    row: int
    heads: Slice
    queries: Slice
    keys: Slice
    first: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return tuple(end - start for start, end in (self.heads, self.queries, self.keys))  # type: ignore[return-value]

    @property
    def distances(self) -> slice:
        _, rows, columns = self.shape
        return slice(self.first, self.first + rows + columns - 1)


def cut(x: Tensor, tile: Tile, tokens: Slice | None = None) -> Tensor:
    """A tile's part of a (batch or 1, heads or 1, n, ...) tensor, or all n."""
    part = x[tile.row if x.shape[0] > 1 else 0]
    part = part[slice(*tile.heads)] if part.shape[0] > 1 else part
    return part if tokens is None else part[:, slice(*tokens)]


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

    def take(self, name: str, *shape: int) -> tuple[Tensor, bool]:
        """A contiguous buffer, and whether the last one of this name had another shape: then it holds anything."""
        size = 1
        for n in shape:
            size *= n
        pool = self.pools.get(name)
        if pool is None or pool.numel() < size:
            self.pools[name] = pool = self.like.new_empty(size)
        changed = self.shapes.get(name) != shape
        self.shapes[name] = shape
        return pool[:size].view(shape), changed

    def by_distance(self, name: str, tile: Tile) -> Tensor:
        """A buffer by distance whose corners, outside the skew view, are zero."""
        heads, rows, columns = tile.shape
        buffer, changed = self.take(name, heads, rows, columns + rows - 1)
        return buffer.zero_() if changed else buffer


def _accumulate(total: Tensor, tile: Tile, tokens: Slice | None, part: Tensor) -> None:
    """Add a tile's (heads, n, ...) gradient to that of a (batch or 1, heads or 1, n, ...) tensor."""
    target = cut(total, tile, tokens)
    target += part if target.shape[0] == part.shape[0] else part.sum(0, keepdim=True)


class Term:
    """A term of the scores, made of tensors whose gradients it collects."""

    by_distance = True
    size = 1
    """How many tensors it is made of."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors
        self.grads: list[Tensor | None] = [None] * len(tensors)

    def wants(self, needs: list[bool]) -> None:
        """Prepare to collect the gradients of those tensors that need one."""
        self.grads = [torch.zeros_like(x) if need else None for x, need in zip(self.tensors, needs, strict=True)]

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        """Add the term to a buffer by distance, or by key if not by_distance; set it if the buffer is fresh."""
        raise NotImplementedError  # abstract: every term defines it

    def collect(self, grad: Tensor, tile: Tile) -> None:
        """Take the gradient of what `add` added, in the same form."""
        raise NotImplementedError  # abstract: every term defines it


class OfDistance(Term):
    """b[head, distance] from its vector, (heads, distances)."""

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        part = self.tensors[0][slice(*tile.heads), None, tile.distances]
        out.copy_(part.expand_as(out)) if fresh else out.add_(part)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        if self.grads[0] is not None:
            self.grads[0][slice(*tile.heads), tile.distances] += grad.sum(1)


class Lookup:
    """x . table[row of the distance]: table (heads or 1, rows, d), rows (distances,)."""

    def __init__(self, table: Tensor, rows: Tensor) -> None:
        self.table, self.rows = table, rows
        # a row per distance, in order: no lookup is needed
        self.direct = rows.numel() == table.shape[1] and bool((rows == torch.arange(len(rows))).all())

    def product(self, x: Tensor, tile: Tile, out: Tensor | None = None) -> Tensor:
        """x (heads, n, d) against the table: (heads, n, distances of the tile)."""
        table = cut(self.table[None], tile)
        if self.direct:
            return torch.matmul(x, table[:, tile.distances].mT, out=out)
        columns = self.rows[tile.distances].expand(*x.shape[:2], -1)
        return torch.gather(x @ table.mT, -1, columns, out=out)

    def collect(self, grad: Tensor, x: Tensor, tile: Tile, of_table: Tensor | None) -> Tensor:
        """The gradient of x from that of `product`; that of the table is added to of_table."""
        table, part = cut(self.table[None], tile), slice(None)
        if self.direct:
            table, part = table[:, tile.distances], tile.distances
        else:
            grad = binned(grad, self.rows[tile.distances], table.shape[1])
        if of_table is not None:
            _accumulate(of_table[None, :, part], tile, None, grad.mT @ x)
        return grad @ table


class OfQuery(Term):
    """q_i . r[distance]: content (batch, heads, queries, d), table (heads or 1, rows, d), rows (distances,)."""

    size = 3

    def __init__(self, content: Tensor, table: Tensor, rows: Tensor) -> None:
        super().__init__(content, table, rows)
        self.lookup = Lookup(table, rows)

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        product = self.lookup.product(cut(self.tensors[0], tile, tile.queries), tile, out if fresh else None)
        if not fresh:
            out.add_(product)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        content = cut(self.tensors[0], tile, tile.queries)
        of_content = self.lookup.collect(grad, content, tile, self.grads[1])
        if self.grads[0] is not None:
            _accumulate(self.grads[0], tile, tile.queries, of_content)


class OfKey(Term):
    """k_j . r[distance]: content (batch, heads, keys, d), table (heads or 1, rows, d), rows (distances,)."""

    size = 3
    by_distance = False

    def _rows(self, tile: Tile) -> Tensor:
        """The row of each key and query, queries from the last to the first: a view (columns, rows)."""
        _, rows, columns = tile.shape
        index = self.tensors[2]
        return index.as_strided((columns, rows), (1, 1), index.storage_offset() + tile.first)

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        product = cut(self.tensors[0], tile, tile.keys) @ cut(self.tensors[1][None], tile).mT
        for head, of_head in enumerate(product):
            found = torch.gather(of_head, 1, self._rows(tile)).T.contiguous().flip(0)
            out[head].copy_(found) if fresh else out[head].add_(found)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        content, table = cut(self.tensors[0], tile, tile.keys), cut(self.tensors[1][None], tile)
        found = grad.new_zeros(*content.shape[:2], table.shape[1])
        for head, of_head in enumerate(grad):
            found[head].scatter_add_(1, self._rows(tile), of_head.flip(0).T.contiguous())
        if self.grads[0] is not None:
            _accumulate(self.grads[0], tile, tile.keys, found @ table)
        if self.grads[1] is not None:
            _accumulate(self.grads[1][None], tile, None, found.mT @ content)


class Product(Term):
    """a_i . b_j: left (batch or 1, heads or 1, queries, m), right (batch or 1, heads or 1, keys, m)."""

    by_distance = False
    size = 2

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        left, right = cut(self.tensors[0], tile, tile.queries), cut(self.tensors[1], tile, tile.keys)
        heads = out.shape[0]
        out.baddbmm_(left.expand(heads, -1, -1), right.expand(heads, -1, -1).mT, beta=0 if fresh else 1)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        left, right = cut(self.tensors[0], tile, tile.queries), cut(self.tensors[1], tile, tile.keys)
        if self.grads[0] is not None:
            _accumulate(self.grads[0], tile, tile.queries, grad @ right)
        if self.grads[1] is not None:
            _accumulate(self.grads[1], tile, tile.keys, grad.mT @ left)


class Any(Term):
    """A (batch or 1, heads or 1, queries, keys) tensor."""

    by_distance = False

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        part = cut(self.tensors[0], tile, tile.queries)[..., slice(*tile.keys)]
        out.copy_(part.expand_as(out)) if fresh else out.add_(part)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        if self.grads[0] is not None:
            _accumulate(self.grads[0][..., slice(*tile.keys)], tile, tile.queries, grad)


class OnValues(Term):
    """w[distance], added to the values: table (heads or 1, rows, value width), rows (distances,). Not on the scores."""

    size = 2

    def __init__(self, table: Tensor, rows: Tensor) -> None:
        super().__init__(table, rows)
        self.lookup = Lookup(table, rows)

    def output(self, weights: Tensor, tile: Tile) -> Tensor:
        """What weights by distance bring to the output, (heads, rows, value width)."""
        table = cut(self.tensors[0][None], tile)
        if self.lookup.direct:
            return weights @ table[:, tile.distances]
        return binned(weights, self.tensors[1][tile.distances], table.shape[1]) @ table

    def collect_output(self, grad: Tensor, weights: Tensor, tile: Tile) -> None:
        """Take the gradient (heads, rows, value width) of `output`."""
        if self.grads[0] is not None:
            self.lookup.collect(weights, grad, tile, self.grads[0])


def binned(x: Tensor, rows: Tensor, count: int) -> Tensor:
    """Sums of the columns that read the same row: (heads, n, distances) -> (heads, n, count)."""
    found = x.new_zeros(x.shape[0], count, x.shape[1])
    for head, of_head in enumerate(x):
        # whole rows are added, which a scatter along the last dimension is far from
        found[head].index_add_(0, rows, of_head.T.contiguous())
    return found.mT
