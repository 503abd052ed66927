# SPDX-License-Identifier: Apache-2.0
"""The kinds of terms that every score structure reduces to, and how each backend computes them.

A `Term` is made of plain tensors. It knows what FlexAttention looks up (`lookup`), what our Triton kernel takes
(`for_kernel`), and what it adds to a tile of scores on the CPU, with the gradient that comes back (`add`, `collect`).

Terms of the distance have one entry per distance, from the longest to the shortest. On the CPU they act on a buffer one
column per distance, (heads, rows, columns + rows - 1), whose `skew` view puts distance i - j under query i and key j: no
copy, and gradients written through the view are aligned by distance again. Where neighbouring entries are one row of a
table (beyond a clip, in far buckets) or consecutive rows, nothing is gathered: see `ColumnRun`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from posenc.positions.visibility import rowwise

Slice = tuple[int, int]
SHORTEST_RUN = 32
"""Entries; shorter runs are gathered together with what is next to them."""

HIDDEN = torch.finfo(torch.float32).min / 2
"""A score below it hides its key, as minus infinity does: masks are often made of a dtype's lowest number."""


# -------------------------------------------------------------------- tiles of scores on the CPU


@dataclass(frozen=True)
class Tile:
    """Queries and keys of a tile of some heads in a row of the batch.

    first: the entry of its longest distance. diagonal: if causal, query i sees keys up to i + diagonal.
    """

    row: int
    heads: Slice
    queries: Slice
    keys: Slice
    first: int
    diagonal: int

    @property
    def shape(self) -> tuple[int, int, int]:
        (h0, h1), (q0, q1), (k0, k1) = self.heads, self.queries, self.keys
        return h1 - h0, q1 - q0, k1 - k0

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


def _put(out: Tensor, part: Tensor, fresh: bool) -> None:
    out.copy_(part.expand_as(out)) if fresh else out.add_(part)


def _accumulate(total: Tensor, part: Tensor) -> None:
    """Add the gradient of some heads to that of as many, or of the one that they share."""
    total += part if total.shape[0] == part.shape[0] else part.sum(0, keepdim=True)


# -------------------------------------------------------------------- where a term is constant


class ColumnRun(NamedTuple):
    """Entries start .. end - 1 of an index of rows. step 0: all are one row (the term is constant); 1: consecutive rows;
    None: neither, and they have to be gathered. row: that of the first entry."""

    start: int
    end: int
    step: int | None
    row: int


def runs(index: Tensor) -> list[ColumnRun]:
    """An index of rows, ascending but for exceptions, in pieces."""
    steps, counts = index.diff().unique_consecutive(return_counts=True)
    ends = counts.cumsum(0)
    regular = (counts >= SHORTEST_RUN) & ((steps == 0) | (steps == 1))
    if not bool(regular.any()):
        return [ColumnRun(0, index.shape[0], None, 0)]
    pieces, at = [], 0
    for step, start, end in torch.stack((steps, ends - counts, ends))[:, regular].T.tolist():
        start = max(start, at)  # neighbouring runs share an entry
        if start > at:
            pieces.append((at, start, None))
        pieces.append((start, end + 1, step))
        at = end + 1
    if at < index.shape[0]:
        pieces.append((at, index.shape[0], None))
    rows = index[torch.tensor([start for start, *_ in pieces])].tolist()
    return [ColumnRun(*piece, row) for piece, row in zip(pieces, rows, strict=True)]


class _Index:
    """The row of a table that each distance has, on the CPU: ascending, so that runs of consecutive rows are slices. A
    table whose rows descend is read `flipped`."""

    def __init__(self, rows: Tensor, count: int) -> None:
        self.flipped: bool = bool(rows[-1] < rows[0])
        self.rows: Tensor = count - 1 - rows if self.flipped else rows
        self.runs: list[ColumnRun] = runs(self.rows)
        # a row per distance, in order: the table is sliced by distance
        self.direct: bool = rows.shape[0] == count and self.runs == [ColumnRun(0, count, 1, 0)]

    def oriented(self, table: Tensor) -> Tensor:
        return table.flip(-2) if self.flipped else table

    def pieces(self, window: slice) -> Iterator[tuple[slice, int | None, int]]:
        """(entries relative to the window, step, first row) of every run in it."""
        for start, end, step, row in self.runs:
            first, last = max(start, window.start), min(end, window.stop)
            if first < last:
                yield slice(first - window.start, last - window.start), step, row + (first - start) * (step or 0)

    def spread(self, products: Tensor, window: slice, out: Tensor, fresh: bool) -> None:
        """Add products by row, (heads, n, rows), to a buffer by distance, (heads, n, distances)."""
        for entries, step, row in self.pieces(window):
            here, count = out[..., entries], entries.stop - entries.start
            if step is None:
                index = self.rows[window][entries].expand(*products.shape[:2], -1)
                part = torch.gather(products, -1, index)
            else:
                part = products[..., row : row + (count if step else 1)]
            _put(here, part, fresh)

    def bring_back(self, grad: Tensor, window: slice, total: Tensor) -> None:
        """Add the gradient of `spread`'s buffer to that of its products."""
        for entries, step, row in self.pieces(window):
            part = grad[..., entries]
            if step is None:
                total.scatter_add_(-1, self.rows[window][entries].expand_as(part), part)
            elif step:
                total[..., row : row + part.shape[-1]] += part
            else:
                total[..., row] += part.sum(-1)

    def collect_sliced(self, part: Tensor, window: slice, total: Tensor) -> None:
        """Add the gradient of the rows of a window, which a direct index has in order, to that of the table."""
        count = total.shape[1]
        if self.flipped:
            window, part = slice(count - window.stop, count - window.start), part.flip(1)
        _accumulate(total[:, window], part)


# -------------------------------------------------------------------- what FlexAttention reads inside its kernel


class Lookup(Protocol):
    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The term at (batch, head, query index, key index), read from captured tensors."""
        ...


class Cells(NamedTuple):
    """Pairs of tokens numbered by their distance, from the longest one at 0: cell of_query[b, i] + of_key[b, j]."""

    of_query: Tensor
    """(batch or 1, num_queries) int32"""
    of_key: Tensor | None
    """(batch or 1, num_keys) int32; None: the key's index"""

    def at(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return rowwise(self.of_query)(b, i) + (j if self.of_key is None else rowwise(self.of_key)(b, j))


class _VectorLookup(NamedTuple):
    vector: Tensor
    cells: Cells

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.vector[h, self.cells.at(b, i, j)]


class _ProductsLookup(NamedTuple):
    products: Tensor
    rows: Tensor
    cells: Cells
    of_query: bool

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.products[b, h, i if self.of_query else j, self.rows[self.cells.at(b, i, j)]]


class _EntriesLookup(NamedTuple):
    tensor: Tensor

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return cell(self.tensor, b, h, i, j)


def cell(x: Tensor, b: Tensor, h: Tensor, *rest: Tensor) -> Tensor:
    """Read a (batch or 1, num_heads or 1, ...) tensor at (row, head, ...)."""
    return x[(b if x.shape[0] != 1 else 0, h if x.shape[1] != 1 else 0, *rest)]


class _DifferenceLookup(NamedTuple):
    """A float64 number as the sum of two of float32: the difference of the higher parts of near numbers is exact."""

    of_query: Tensor
    of_key: Tensor
    rest_of_query: Tensor
    rest_of_key: Tensor

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        high = cell(self.of_query, b, h, i) - cell(self.of_key, b, h, j)
        return high + (cell(self.rest_of_query, b, h, i) - cell(self.rest_of_key, b, h, j))


class _SlopeLookup(NamedTuple):
    slopes: Tensor
    of_query: Tensor
    of_key: Tensor

    def at(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        distance = (cell(self.of_query, b, h, i) - cell(self.of_key, b, h, j)).abs()
        return -distance.to(self.slopes.dtype) * cell(self.slopes, b, h, j)


class _CapLookup(NamedTuple):
    cap: Tensor

    def __call__(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        capped = self.cap * torch.tanh(score / self.cap)
        return torch.where(score < HIDDEN, -torch.inf, capped).to(score.dtype)


class KernelInputs(NamedTuple):
    """What our Triton kernel takes besides queries, keys and values, see `triton_kernels.relative_attention`."""

    vector: Tensor | None = None
    products: Tensor | None = None
    rows: Tensor | None = None


# -------------------------------------------------------------------- the kinds


class Term:
    """A term of the scores, made of `size` tensors whose gradients it collects.

    On the CPU: `enter` some heads of a row of the batch, `add` or `collect` on tiles of them, then `leave` them.
    """

    kind: ClassVar[str]
    size: ClassVar[int] = 1
    by_distance: ClassVar[bool] = False
    """Whether `add` takes a buffer by distance rather than by key."""
    has_distances: ClassVar[bool] = False
    """Whether it has an entry per distance."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors
        self.grads: list[Tensor | None] = [None] * len(tensors)

    def prepared(self, dtype: torch.dtype, batch: int, heads: int) -> list[Tensor]:
        """The tensors as the CPU operator takes them."""
        return [x.to(dtype) for x in self.tensors]

    def lookup(self, cells: Cells | None) -> Lookup:
        """For FlexAttention; cells: how the distances of a term that has_distances are numbered."""
        raise NotImplementedError(f"{type(self).__name__} widens queries and keys instead")

    def for_kernel(self, inputs: KernelInputs) -> KernelInputs:
        """The inputs of our Triton kernel with this term among them."""
        raise NotImplementedError(f"the Triton kernel has no form for {type(self).__name__}")

    def collects(self, needs: list[bool]) -> None:
        """Prepare to collect the gradients of those tensors that need one."""
        self.grads = [x.new_zeros(x.shape) if need else None for x, need in zip(self.tensors, needs, strict=True)]

    def part(self, number: int, row: int, heads: Slice) -> tuple[Tensor, Tensor | None]:
        """Some heads of a tensor (batch or 1, heads or 1, ...) and of its gradient."""
        grad = self.grads[number]
        return cut(self.tensors[number], row, heads), None if grad is None else cut(grad, row, heads)

    def enter(self, row: int, heads: Slice) -> None:
        """Prepare for tiles of these heads."""

    def leave(self) -> None:
        """Bring in what was collected since `enter`."""

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        """Add the term to a buffer by distance, or by key if not by_distance; set it if the buffer is fresh."""
        raise NotImplementedError  # abstract

    def collect(self, grad: Tensor, tile: Tile) -> None:
        """Take the gradient of what `add` added, in the same form."""
        raise NotImplementedError  # abstract


class VectorTerm(Term):
    """b[head, distance]: a vector (heads, distances)."""

    kind = "vector"
    by_distance = has_distances = True

    def prepared(self, dtype: torch.dtype, batch: int, heads: int) -> list[Tensor]:
        return [self.tensors[0].to(dtype).expand(heads, -1)]

    def lookup(self, cells: Cells | None) -> Lookup:
        assert cells is not None
        return _VectorLookup(self.tensors[0].contiguous(), cells)

    def for_kernel(self, inputs: KernelInputs) -> KernelInputs:
        vector = self.tensors[0].float()
        return inputs._replace(vector=vector if inputs.vector is None else inputs.vector + vector)

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        _put(out, self.tensors[0][slice(*tile.heads), None, tile.distances], fresh)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        if self.grads[0] is not None:
            self.grads[0][slice(*tile.heads), tile.distances] += grad.sum(1)


class _ProjectedTerm(Term):
    """x . table[row of the distance]: content (batch, heads, n, d), table (heads or 1, rows, d), rows (distances,)."""

    size = 3
    has_distances = True
    of_query: ClassVar[bool]

    def prepared(self, dtype: torch.dtype, batch: int, heads: int) -> list[Tensor]:
        content, table, rows = self.tensors
        return [content.to(dtype).expand(batch, heads, -1, -1), table.to(dtype), rows]

    def products(self) -> Tensor:
        content, table, _ = self.tensors
        return content @ table.mT

    def lookup(self, cells: Cells | None) -> Lookup:
        assert cells is not None
        return _ProductsLookup(self.products(), self.tensors[2].to(torch.int32), cells, self.of_query)

    def collects(self, needs: list[bool]) -> None:
        super().collects([*needs[:2], False])

    def enter(self, row: int, heads: Slice) -> None:
        if not hasattr(self, "index"):
            self.index: _Index = _Index(self.tensors[2], self.tensors[1].shape[1])
        self.content, self.of_content = self.part(0, row, heads)
        table, of_table = self.tensors[1][None], self.grads[1]
        self.table: Tensor = self.index.oriented(cut(table, row, heads))
        self.of_table: Tensor | None = None if of_table is None else cut(of_table[None], row, heads)
        if not self.by_slices:
            self.product: Tensor = self.content @ self.table.mT
            learns = self.grads[0] is not None or self.grads[1] is not None
            self.of_product: Tensor | None = torch.zeros_like(self.product) if learns else None

    @property
    def by_slices(self) -> bool:
        """Whether the table is multiplied tile by tile, as there are as many rows as distances."""
        return False

    def leave(self) -> None:
        if self.by_slices or self.of_product is None:
            return
        if self.of_content is not None:
            _accumulate(self.of_content, self.of_product @ self.table)
        if self.of_table is not None:
            _accumulate(self.of_table, self.index.oriented(self.of_product.mT @ self.content))


class QueryTerm(_ProjectedTerm):
    """q_i . r[distance]."""

    kind = "query"
    by_distance = of_query = True

    def for_kernel(self, inputs: KernelInputs) -> KernelInputs:
        return inputs._replace(products=self.products(), rows=self.tensors[2])

    @property
    def by_slices(self) -> bool:
        return self.index.direct

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        queries = slice(*tile.queries)
        if not self.index.direct:
            self.index.spread(self.product[:, queries], tile.distances, out, fresh)
            return
        content, table = self.content[:, queries], self.table[:, tile.distances].expand(out.shape[0], -1, -1)
        out.baddbmm_(content.expand(out.shape[0], -1, -1), table.mT, beta=0 if fresh else 1)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        queries = slice(*tile.queries)
        if not self.index.direct:
            if self.of_product is not None:
                self.index.bring_back(grad, tile.distances, self.of_product[:, queries])
            return
        if self.of_content is not None:
            _accumulate(self.of_content[:, queries], grad @ self.table[:, tile.distances])
        if self.of_table is not None:
            self.index.collect_sliced(grad.mT @ self.content[:, queries], tile.distances, self.of_table)


class KeyTerm(_ProjectedTerm):
    """k_j . r[distance]."""

    kind = "key"
    of_query = False

    def columns(self, tile: Tile) -> Iterator[tuple[int, int, int | None]]:
        """(first column, end, row) of the keys whose term is one number for all of the tile's queries, and of those
        between them, with None for a row."""
        _, rows, columns = tile.shape
        at = 0
        for start, end, step, row in self.index.runs:
            # key c of the tile is at distances first + c .. first + c + rows - 1
            first, last = max(start - tile.first, at), min(end - tile.first - rows + 1, columns)
            if step == 0 and first < last:
                if at < first:
                    yield at, first, None
                yield first, last, row
                at = last
        if at < columns:
            yield at, columns, None

    def rows_of(self, first: int, count: int, queries: int) -> Tensor:
        """The table's row of so many keys, the first one at the distances from an entry on, and of as many queries, from the
        last to the first: a view (keys, queries)."""
        return self.index.rows[first : first + count + queries - 1].unfold(0, queries, 1)

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        k0 = tile.keys[0]
        for first, end, row in self.columns(tile):
            product, here = self.product[:, k0 + first : k0 + end], out[..., first:end]
            if row is not None:
                _put(here, product[..., row].contiguous()[:, None], fresh)
                continue
            rows = self.rows_of(tile.first + first, end - first, out.shape[1])
            for of_head, target in zip(product, here, strict=True):
                # transposed as a separate copy, which PyTorch does in blocks
                _put(target, torch.gather(of_head, 1, rows).T.contiguous().flip(0), fresh)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        if self.of_product is None:
            return
        k0 = tile.keys[0]
        for first, end, row in self.columns(tile):
            total, here = self.of_product[:, k0 + first : k0 + end], grad[..., first:end]
            if row is not None:
                total[..., row] += here.sum(1)
                continue
            rows = self.rows_of(tile.first + first, end - first, grad.shape[1])
            for of_head, part in zip(total, here, strict=True):
                of_head.scatter_add_(1, rows, part.flip(0).T.contiguous())


class _OfSides(Term):
    """Of a tensor of the queries and one of the keys."""

    size = 2

    def enter(self, row: int, heads: Slice) -> None:
        (self.left, self.of_left), (self.right, self.of_right) = (self.part(number, row, heads) for number in (0, 1))


class ProductTerm(_OfSides):
    """a_i . b_j: left (batch or 1, heads or 1, queries, m), right (batch or 1, heads or 1, keys, m)."""

    kind = "product"

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        left, right = self.left[:, slice(*tile.queries)], self.right[:, slice(*tile.keys)]
        heads = out.shape[0]
        out.baddbmm_(left.expand(heads, -1, -1), right.expand(heads, -1, -1).mT, beta=0 if fresh else 1)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        queries, keys = slice(*tile.queries), slice(*tile.keys)
        if self.of_left is not None:
            _accumulate(self.of_left[:, queries], grad @ self.right[:, keys])
        if self.of_right is not None:
            _accumulate(self.of_right[:, keys], grad.mT @ self.left[:, queries])


class DifferenceTerm(_OfSides):
    """f_i - g_j, taken in float64: f (batch or 1, heads or 1, queries), g (batch or 1, heads or 1, keys)."""

    kind = "difference"
    in_double = False
    """Whether FlexAttention is to look up float64 numbers, which GPUs are slow with, rather than pairs of float32."""

    def prepared(self, dtype: torch.dtype, batch: int, heads: int) -> list[Tensor]:
        return [x.double() for x in self.tensors]

    def lookup(self, cells: Cells | None) -> Lookup:
        of_query, of_key = (x.double() for x in self.tensors)
        high = (of_query, of_key) if self.in_double else (of_query.float(), of_key.float())
        return _DifferenceLookup(*high, (of_query - high[0]).float(), (of_key - high[1]).float())

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        left, right = self.left[:, slice(*tile.queries), None], self.right[:, None, slice(*tile.keys)]
        if not fresh or out.dtype == torch.float64:
            _put(out, left - right, fresh)
            return
        # float32 numbers and what they lack: the difference of near ones is as exact as in float64, without its tile
        high = left.float(), right.float()
        torch.sub(*high, out=out)
        out.add_((left - high[0]).float()).sub_((right - high[1]).float())

    def collect(self, grad: Tensor, tile: Tile) -> None:
        if self.of_left is not None:
            _accumulate(self.of_left[:, slice(*tile.queries)], grad.sum(2))
        if self.of_right is not None:
            _accumulate(self.of_right[:, slice(*tile.keys)], -grad.sum(1))


class SlopeTerm(Term):
    """-|distance| s_j: slopes s (batch or 1, heads or 1, keys), positions of queries and keys (batch or 1, 1, n)."""

    kind = "slope"
    size = 3

    def prepared(self, dtype: torch.dtype, batch: int, heads: int) -> list[Tensor]:
        slopes, of_query, of_key = self.tensors
        return [slopes.to(dtype), of_query.double(), of_key.double()]

    def lookup(self, cells: Cells | None) -> Lookup:
        return _SlopeLookup(*self.tensors)

    def enter(self, row: int, heads: Slice) -> None:
        self.slopes, self.of_slopes = self.part(0, row, heads)
        (of_query, self.moves_query), (of_key, self.moves_key) = (self.part(number, row, (0, 1)) for number in (1, 2))
        self.of_query, self.of_key = of_query[0], of_key[0]

    def distances(self, tile: Tile) -> Tensor:
        """Those of a tile, (rows, columns): of positions counted from its first key, which float32 has exactly where the
        positions themselves may be too large for it."""
        keys = self.of_key[slice(*tile.keys)]
        rows, columns = ((x - keys[0]).to(self.slopes) for x in (self.of_query[slice(*tile.queries)], keys))
        distance = rows[:, None] - columns
        return distance.abs_() if bool(rows.min() < columns.max()) else distance

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        slopes, distance = self.slopes[:, None, slice(*tile.keys)], self.distances(tile)
        slopes = slopes.expand(out.shape[0], -1, -1)
        torch.mul(distance, -slopes, out=out) if fresh else out.addcmul_(distance, slopes, value=-1)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        if self.of_slopes is not None:
            _accumulate(self.of_slopes[:, slice(*tile.keys)], -(grad * self.distances(tile)).sum(1))
        if self.moves_query is None and self.moves_key is None:
            return
        queries, keys = slice(*tile.queries), slice(*tile.keys)
        behind = (self.of_query[queries, None] - self.of_key[keys]).sign()
        moved = -(grad * self.slopes[:, None, keys]).sum(0, keepdim=True) * behind
        if self.moves_query is not None:
            _accumulate(self.moves_query[:, queries], moved.sum(2))
        if self.moves_key is not None:
            _accumulate(self.moves_key[:, keys], -moved.sum(1))


class EntriesTerm(Term):
    """A (batch or 1, heads or 1, queries, keys) tensor."""

    kind = "entries"

    def lookup(self, cells: Cells | None) -> Lookup:
        return _EntriesLookup(self.tensors[0])

    def enter(self, row: int, heads: Slice) -> None:
        self.here, self.of_here = self.part(0, row, heads)

    def add(self, out: Tensor, tile: Tile, fresh: bool) -> None:
        _put(out, self.here[:, slice(*tile.queries), slice(*tile.keys)], fresh)

    def collect(self, grad: Tensor, tile: Tile) -> None:
        if self.of_here is not None:
            _accumulate(self.of_here[:, slice(*tile.queries), slice(*tile.keys)], grad)


class ValuesTerm(Term):
    """w[distance], added to the values, not to the scores: table (heads or 1, rows, value width), rows (distances,)."""

    kind = "values"
    size = 2
    has_distances = True

    def prepared(self, dtype: torch.dtype, batch: int, heads: int) -> list[Tensor]:
        return [self.tensors[0].to(dtype), self.tensors[1]]

    def collects(self, needs: list[bool]) -> None:
        super().collects([needs[0], False])

    def enter(self, row: int, heads: Slice) -> None:
        if not hasattr(self, "index"):
            self.index: _Index = _Index(self.tensors[1], self.tensors[0].shape[1])
        of_table = self.grads[0]
        self.table: Tensor = self.index.oriented(cut(self.tensors[0][None], row, heads))
        self.of_table: Tensor | None = None if of_table is None else cut(of_table[None], row, heads)

    def output(self, weights: Tensor, tile: Tile) -> Tensor:
        """What weights by distance bring to the output, (heads, rows, value width)."""
        return self.binned(weights, tile) @ self.sliced(tile)

    def of_weights(self, grad: Tensor, tile: Tile) -> Tensor:
        """The gradient of weights by distance from that of the output."""
        product = grad @ self.sliced(tile).mT
        if self.index.direct:
            return product
        window = tile.distances
        out = product.new_empty(*product.shape[:2], window.stop - window.start)
        self.index.spread(product, window, out, fresh=True)
        return out

    def collect_output(self, grad: Tensor, weights: Tensor, tile: Tile) -> None:
        """Take the gradient (heads, rows, value width) of `output`."""
        if self.of_table is None:
            return
        part = self.binned(weights, tile).mT @ grad
        if self.index.direct:
            self.index.collect_sliced(part, tile.distances, self.of_table)
        else:
            _accumulate(self.of_table, self.index.oriented(part))

    def sliced(self, tile: Tile) -> Tensor:
        return self.table[:, tile.distances] if self.index.direct else self.table

    def binned(self, weights: Tensor, tile: Tile) -> Tensor:
        """Weights by row of the table, (heads, rows, table's rows)."""
        if self.index.direct:
            return weights
        by_row = weights.new_zeros(*weights.shape[:2], self.table.shape[1])
        self.index.bring_back(weights, tile.distances, by_row)
        return by_row


class CapTerm(Term):
    """cap * tanh(score / cap) of the sum of all terms that are added: cap (). A score below HIDDEN becomes minus infinity."""

    kind = "softcap"

    def prepared(self, dtype: torch.dtype, batch: int, heads: int) -> list[Tensor]:
        return list(self.tensors)

    def lookup_of(self, q: Tensor) -> _CapLookup:
        """For FlexAttention: (score, batch, head, query index, key index) -> score."""
        return _CapLookup(self.tensors[0].to(q.device, torch.promote_types(q.dtype, torch.float32)))

    def apply(self, scores: Tensor, slope: Tensor | None) -> None:
        """Cap scores in place; slope, if given, is multiplied by the derivative."""
        cap = float(self.tensors[0])
        hidden = scores < HIDDEN
        scores.div_(cap).tanh_()
        if slope is not None:
            slope.mul_(1 - scores.square())
        scores.mul_(cap).masked_fill_(hidden, -torch.inf)


TERMS: dict[str, type[Term]] = {
    cls.kind: cls
    for cls in (
        VectorTerm, QueryTerm, KeyTerm, ProductTerm, DifferenceTerm, SlopeTerm, EntriesTerm, CapTerm, ValuesTerm,
    )
}  # fmt: skip
