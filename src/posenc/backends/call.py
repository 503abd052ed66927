# SPDX-License-Identifier: Apache-2.0
"""One call of the fused operator: its terms, and what of its scores is visible, in blocks and in tiles."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from posenc.backends.tiles import DistanceTerm, Scratch, Slice, Term, Tile, ValuesTerm, skew
from posenc.positions.segments import Rectangle, Segments
from posenc.positions.visibility import EVERYTHING, Region

ROWS = 256
"""Queries of a tile."""
MANY = 4096
"""Queries that the flash kernel is given at a time where it visits every key: it goes through all of them at each call."""
COLUMNS = 1024
"""Keys of a tile, where the softmax is known already: with ROWS, what stays in a core's second-level cache."""
CELLS = 2**19
"""Scores that a block of heads may hold at once, 2 MiB in float32; a tile of one head may be larger."""
NEGLIGIBLE = 40.0
"""A weight below e^-40 of its row's largest is beyond what float32 can see, 2^-24, even 10^10 times."""


class Band(NamedTuple):
    """Heads, and the entries of their vector of distances that matter; None: all."""

    heads: Slice
    entries: Slice | None


@dataclass
class Call:
    """One call: tensors, and what is visible of their products. longest: the distance that vectors begin with.
    region: the part of it that queries and keys were rotated for, in regular segments."""

    q: Tensor
    k: Tensor
    v: Tensor
    terms: list[Term]
    values: ValuesTerm | None
    segments: Segments
    causal: bool
    scale: float
    longest: int
    dropout_p: float
    seed: int
    region: Region = EVERYTHING

    def __post_init__(self) -> None:
        self.rectangles: list[Rectangle] = self.segments.within(self.region)
        # distances that are visible in them; whole chunks of the past need no limits
        chunked = self.region.chunk > 1
        self.farthest: int | None = None if chunked else self.region.farthest
        self.nearest = None if chunked else self.region.nearest
        if self.causal and not (chunked and self.region.nearest):
            self.nearest = max(0, self.nearest or 0)
        self.precise: torch.dtype = torch.promote_types(self.q.dtype, torch.float32)
        self.groups: int = self.q.shape[1] // self.k.shape[1]
        self.scratch: Scratch = Scratch(self.q.new_empty(0, dtype=self.precise))
        if not any(term.has_distances for term in self.every_term):
            self.longest = max((q1 - 1 + diagonal - k0 for _, _, q1, k0, _, diagonal in self.rectangles), default=0)
        # no terms, and in every rectangle the first query that sees a key sees one, the second two and so on, which the
        # kernel knows by itself
        nearest = self.nearest
        self.square: bool = nearest is not None and self.farthest is None and not self.terms
        self.square = self.square and all(q0 + d - (nearest or 0) <= k0 for _, q0, _, k0, _, d in self.rectangles)
        self.vector: Tensor | None = self._vector()
        self.bands: list[Band] = [Band((0, self.q.shape[1]), None)]
        if self.vector is not None and self.terms:
            self.bands = self._bands(self.vector)

    def _vector(self) -> Tensor | None:
        """The terms, if a vector of distances is all there is: minus infinity for the future."""
        if self.values is not None or self.dropout_p or any(not isinstance(t, DistanceTerm) for t in self.terms):
            return None
        if self.terms:
            vector = self.terms[0].tensors[0].contiguous()
        elif self.limited and not self.square:
            shortest = min((q0 + diagonal - (k1 - 1) for _, q0, _, _, k1, diagonal in self.rectangles), default=0)
            width = max(self.longest - shortest + 1, 1)
            vector = self.scratch.like.new_zeros(1, width).expand(self.q.shape[1], -1)
        else:
            return None
        return self._hide(vector.clone(), self.longest) if self.limited else vector

    @property
    def limited(self) -> bool:
        """Whether a distance may be too short or too long to be seen."""
        return self.nearest is not None or self.farthest is not None

    def _hide(self, scores: Tensor, longest: int) -> Tensor:
        """Scores (..., distances from the longest on), minus infinity where the distance hides a key."""
        if self.nearest is not None:
            scores[..., max(longest - self.nearest + 1, 0) :] = -torch.inf
        if self.farthest is not None:
            scores[..., : max(longest - self.farthest + 1, 0)] = -torch.inf
        return scores

    def _bands(self, vector: Tensor) -> list[Band]:
        """Heads and the entries of their vector beyond which weights are negligible.

        |scale q . k| is at most peak, so a key's score is at most its bias + peak, and the query's own is at least its
        bias - peak: a bias lower than that of distance 0 by 2 peak + NEGLIGIBLE cannot matter. NaN matters.
        """
        heads, width = vector.shape
        own = 0 <= self.longest < width and all(
            d + q0 >= k0 and d + q1 <= k1 for _, q0, q1, k0, k1, d in self.rectangles
        )
        own = own and (self.nearest is None or self.nearest <= 0)
        if not own or self.q.dtype == torch.float64 or self.q.numel() == 0:
            return [Band((0, heads), None)]
        norms = [x.float().square().sum(-1).amax((0, 2)).sqrt() for x in (self.q, self.k)]
        peak = abs(self.scale) * norms[0] * norms[1].repeat_interleave(self.groups)
        matters = ~(vector < (vector[:, self.longest] - 2 * peak - NEGLIGIBLE)[:, None])
        matters = matters.unflatten(0, (-1, self.groups)).any(1)  # heads that share keys go together
        first = matters.int().argmax(1).tolist()
        end = (width - matters.flip(1).int().argmax(1)).tolist()
        found: list[Band] = []
        for group, entries in enumerate(zip(first, end, strict=True)):
            before = found.pop() if found and found[-1].entries == entries else None
            start = group * self.groups if before is None else before.heads[0]
            found.append(Band((start, (group + 1) * self.groups), entries))
        return found

    def pack(self, dtype: torch.dtype | None = None) -> None:
        """Queries, keys and values in one piece per head, which blocks of one head read faster than a model's layout."""
        self.q, self.k, self.v = (x.to(dtype or x.dtype).contiguous() for x in (self.q, self.k, self.v))

    @property
    def every_term(self) -> list[Term]:
        return self.terms if self.values is None else [*self.terms, self.values]

    def blocks(self, row: int, band: Band, rows: int | None) -> Iterator[tuple[Slice, Slice, int]]:
        """(queries, keys they see, diagonal) of every block of at most so many queries, or of whole rectangles, in a row
        of the batch, or in what all rows share (-1)."""
        for own, q0, q1, k0, k1, diagonal in self.rectangles:
            if own not in (-1, row):
                continue
            # earlier ones, and later ones, see nothing
            q0 = q0 if self.nearest is None else max(q0, k0 - diagonal + self.nearest)
            q1 = q1 if self.farthest is None else min(q1, k1 - 1 - diagonal + self.farthest)
            for i0 in range(q0, q1, rows or max(q1 - q0, 1)):
                i1 = min(q1, i0 + rows) if rows else q1
                j0 = k0 if self.farthest is None else max(k0, i0 + diagonal - self.farthest + 1)
                j1 = k1 if self.nearest is None else min(k1, i1 + diagonal - self.nearest)
                if band.entries is not None:
                    # entry e is at distance longest - e, and query i at distance i - j + diagonal from key j
                    away = self.longest - diagonal
                    j0, j1 = max(j0, i0 - away + band.entries[0]), min(j1, i1 - 1 - away + band.entries[1])
                if j0 < j1:
                    yield (i0, i1), (j0, j1), diagonal

    def rows(self, band: Band) -> int | None:
        """How many queries the flash kernel is given at a time; None: all of a rectangle."""
        if self.square:
            return None
        return ROWS if self.limited or band.entries is not None else MANY

    def regions(self, whole_rows: bool) -> Iterator[tuple[int, Slice, list[Tile]]]:
        """Row of the batch, a few heads, and the tiles of all that is visible there: of ROWS queries and COLUMNS keys,
        or every key that the queries see."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        step = max(keys if whole_rows else min(keys, COLUMNS), 1)
        cells = max(min(queries, ROWS) * step, *(term.kept for term in self.every_term), 1)
        for row in range(self.q.shape[0]):
            for band in self.bands:
                blocks = list(self.blocks(row, band, ROWS))
                for heads in self.head_blocks(band.heads, cells):
                    tiles = [
                        self.tile(row, heads, rows, (j0, min(j0 + step, seen[1])), diagonal)
                        for rows, seen, diagonal in blocks
                        for j0 in range(*seen, step)
                    ]
                    yield row, heads, tiles

    def tile(self, row: int, heads: Slice, queries: Slice, keys: Slice, diagonal: int) -> Tile:
        return Tile(row, heads, queries, keys, self.longest - diagonal - (queries[1] - 1) + keys[0], diagonal)

    def bias(self, tile: Tile) -> Tensor:
        """The sum of the terms on a tile, (heads, rows, columns), minus infinity where the distance hides a key."""
        view = self._by_distance(tile)
        fresh = view is None
        if view is None:
            view = self.scratch.take("bias", *tile.shape)
        for term in self.terms:
            if not term.by_distance:
                term.add(view, tile, fresh)
                fresh = False
        return view.zero_() if fresh else view

    def _by_distance(self, tile: Tile) -> Tensor | None:
        """What depends on the distance, by key; None if nothing does."""
        heads, rows, columns = tile.shape
        longest = tile.queries[1] - 1 - tile.keys[0] + tile.diagonal
        hides = self.nearest is not None and longest - (rows + columns - 2) < self.nearest
        hides = hides or (self.farthest is not None and longest >= self.farthest)
        terms = [term for term in self.terms if term.by_distance]
        if not hides and not terms:
            return None
        buffer = self.scratch.take("bias", heads, rows, columns + rows - 1)
        for number, term in enumerate(terms):
            term.add(buffer, tile, fresh=number == 0)
        if not terms:
            buffer.zero_()
        self._hide(buffer, longest)
        return skew(buffer, columns)

    def kv_heads(self, heads: Slice) -> Slice:
        return heads[0] // self.groups, (heads[1] - 1) // self.groups + 1

    def head_blocks(self, heads: Slice, cells: int) -> Iterator[Slice]:
        """Heads in blocks of about 2 MiB of scores, none of which has several keys' heads under grouped queries."""
        step, h = max(1, CELLS // cells), heads[0]
        while h < heads[1]:
            most = heads[1] if self.groups == 1 else (h // self.groups + 1) * self.groups
            yield h, min(h + step, most)
            h = min(h + step, most)
