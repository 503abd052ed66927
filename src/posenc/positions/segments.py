# SPDX-License-Identifier: Apache-2.0
"""Who sees whom, as rectangles: what lets attention skip everything else."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posenc.positions import Positions
from posenc.positions.regions import EVERYTHING, Region

WIDTH = 7
Rectangle = tuple[int, int, int, int, int, int]
"""Row of the batch, first query, end, first key, end, diagonal."""


@dataclass(frozen=True)
class Segments:
    """The visible part of an attention call, as rectangles of consecutive queries and keys.

    Attributes:
        table: per rectangle (row of the batch, or -1 for all rows; first query, end; first key, end; diagonal; origin).
            Inside, every query sees every key or, if causal, query i the keys up to i + diagonal. Outside nothing is seen.
        regular: key j is at position j + origin and query i at distance i - j + diagonal from it in every rectangle.
    """

    table: list[int]
    regular: bool

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return (tuple(self.table[at : at + WIDTH]) for at in range(0, len(self.table), WIDTH))

    def keys(self, first: int, count: int) -> "Segments":
        """The part of the rectangles that lies among so many keys from the first on, which count from 0 there."""
        table: list[int] = []
        for row, q0, q1, k0, k1, diagonal, origin in self:
            k0, k1 = max(k0 - first, 0), min(k1 - first, count)
            table += [row, q0, q1, k0, max(k0, k1), diagonal - first, origin + first]
        return replace(self, table=table)

    def seen(self, region: Region) -> tuple[int, int]:
        """The first key and the end of those that causal queries see within a region, of regular segments."""
        first, end = [], []
        for _, q0, q1, k0, k1, diagonal in self.within(region):
            nearest, farthest = (region.nearest, region.farthest) if region.chunk == 1 else (None, None)
            first.append(k0 if farthest is None else max(k0, q0 + diagonal - farthest + 1))
            end.append(min(k1, q1 + diagonal - max(nearest or 0, 0)))
        return min(first, default=0), max(end, default=0)

    def within(self, region: Region) -> list[Rectangle]:
        """The rectangles of what a region leaves of these, regular ones, but for its limits in single positions."""
        found: list[Rectangle] = []
        for row, q0, q1, k0, k1, diagonal, origin in self:
            end = k1 if region.below is None else min(k1, region.below - origin)
            if region.chunk == 1:
                found.append((row, q0, q1, k0, end, diagonal))
                continue
            away, size = diagonal + origin, region.chunk
            for chunk in range((q0 + away) // size, (q1 - 1 + away) // size + 1):
                # the first key of the farthest chunk, and the end of the nearest
                first = k0 if region.farthest is None else max(k0, (chunk - region.farthest + 1) * size - origin)
                last = end if region.nearest is None else min(end, (chunk - region.nearest + 1) * size - origin)
                queries = max(q0, chunk * size - away), min(q1, (chunk + 1) * size - away)
                found.append((row, *queries, first, last, diagonal))
        return [(row, q0, q1, k0, k1, d) for row, q0, q1, k0, k1, d in found if q0 < q1 and k0 < k1]


def segments(positions: Positions) -> Segments | None:
    """The rectangles of a call: all of it, a row's text without its padding, each packed document. None where what is
    visible is not made of rectangles, as with holes in a mask, or where a graph is traced that may not read tensors."""
    size = [positions.num_queries, positions.num_keys]
    if positions.unmasked and (not positions.causal or positions.diagonal is not None):
        origin = 0
        if positions.start is not None:
            diagonal, origin = positions.start[0] - positions.start[1], positions.start[1]
        else:
            diagonal = 0 if positions.diagonal is None else positions.diagonal
        return Segments([-1, 0, size[0], 0, size[1], diagonal, origin], positions.start is not None)
    if torch.compiler.is_compiling():
        return None
    return positions.shared(("segments", positions.causal), lambda: _read(positions))


def seen_keys(positions: Positions, region: Region) -> tuple[int, int]:
    """The first key and the end of those that causal queries see in a region; all of them where that is not known
    without effort, or where most are."""
    everything = 0, positions.num_keys
    if torch.compiler.is_compiling() or not (positions.unmasked or positions.q.device.type == "cpu"):
        return everything

    def found() -> tuple[int, int]:
        visible = segments(positions)
        if visible is None or not visible.regular:
            return everything
        first, end = visible.seen(region)
        return (first, end) if 2 * (end - first) < positions.num_keys else everything

    return positions.shared(("seen", region), found)


def holds_all(positions: Positions, region: Region) -> bool:
    """Whether every key that causal queries see is known to lie in a region."""
    if region == EVERYTHING:
        return True

    def known() -> bool:
        longest = None if positions.span is None else positions.span[1]
        if longest is None:
            visible = None if positions.q.device.type != "cpu" else segments(positions)
            if visible is None or not visible.regular:
                return False
            longest = max((q1 - 1 + d - k0 for _, q0, q1, k0, k1, d, _ in visible if q0 < q1 and k0 < k1), default=0)
        nearest = region.nearest is None or region.nearest <= 0
        reaches = region.farthest is None or region.farthest * region.chunk > longest + region.chunk - 1
        return nearest and reaches and region.below is None

    return known() if torch.compiler.is_compiling() else positions.shared(("holds all", region), known)


def _read(positions: Positions) -> Segments | None:
    p = positions
    if p.causal and not (_steps(p.q_order).all() and _steps(p.k_order).all()):
        return None
    documents = [d for d in (p.q_document, p.k_document) if d is not None]
    lowest = min((int(d.min()) for d in documents), default=0)
    sides = (p.q_order, p.q_document, p.q_valid), (p.k_order, p.k_document, p.valid)
    q_group, k_group = (_groups(*side, lowest) for side in sides)
    regular = p.axes == 1 and bool((_steps(p.q) | _edges(q_group)).all() and (_steps(p.k) | _edges(k_group)).all())
    table: list[int] = []
    for row in range(p.batch):
        queries, keys = _runs(_row(q_group, row)), _runs(_row(k_group, row))
        if queries is None or keys is None:
            return None
        for group in queries.keys() & keys.keys():
            (first_q, end_q), (first_k, end_k) = queries[group], keys[group]
            ordered = int(_row(p.q_order, row)[0] - _row(p.k_order, row)[0]) if p.causal else 0
            origin = int(_row(p.k, row)[first_k]) - first_k if regular else 0
            if regular:
                away = int(_row(p.q, row)[first_q] - _row(p.k, row)[first_k]) - first_q + first_k
                regular = not p.causal or away == ordered
                ordered = ordered if p.causal else away
            table += [row if p.batch > 1 else -1, first_q, end_q, first_k, end_k, ordered, origin]
    table = table or [-1, *[0] * (WIDTH - 1)]  # nothing is visible; an operator's list may not be empty
    return Segments(table, regular and not p.fractional)


def _row(table: Tensor, row: int) -> Tensor:
    return table[row if table.shape[0] > 1 else 0]


def _steps(table: Tensor) -> Tensor:
    """Where a number is followed by the next one."""
    return table.diff(dim=1) == 1


def _edges(group: Tensor) -> Tensor:
    """Where a token is not followed by another one of its document."""
    return (group.diff(dim=1) != 0) | (group[:, 1:] == 0)


def _groups(order: Tensor, document: Tensor | None, valid: Tensor | None, lowest: int) -> Tensor:
    """The document of each token counted from 1, and 0 for padding: (batch or 1, n)."""
    group = torch.ones_like(order) if document is None else document.long() - lowest + 1
    return group if valid is None else group * valid


def _runs(group: Tensor) -> dict[int, tuple[int, int]] | None:
    """First token and end of each group but 0; None if one comes in several pieces."""
    values, counts = torch.unique_consecutive(group, return_counts=True)
    found: dict[int, tuple[int, int]] = {}
    end = 0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        first, end = end, end + count
        if value and value in found:
            return None
        if value:
            found[value] = first, end
    return found
