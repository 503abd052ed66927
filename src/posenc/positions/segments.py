# SPDX-License-Identifier: Apache-2.0
"""Visibility as rectangles of queries and keys, so that attention can skip everything else."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from posenc.positions.positions import Positions
from posenc.positions.visibility import EVERYTHING, Region, VisibleBlocks

WIDTH = 7
Rectangle = tuple[int, int, int, int, int, int]
"""Row of the batch, first query, end, first key, end, diagonal."""


@dataclass(frozen=True)
class Segments:
    """The visible part of an attention call, as rectangles of consecutive queries and keys.

    Attributes:
        table: per rectangle (row of the batch, or -1 for all rows; first query, end; first key, end; diagonal; origin).
            Inside, every query sees every key or, if causal, query i the keys up to i + diagonal; under a window
            (`Positions.region`), those of them whose distance i - j + diagonal it has. Outside nothing is seen.
        overlapping: a query may be in several rectangles, with other keys in each.
        regular: key j is at position j + origin and query i at distance i - j + diagonal from it in every rectangle.
    """

    table: list[int]
    regular: bool
    overlapping: bool = False

    def __len__(self) -> int:
        return len(self.table) // WIDTH

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter([tuple(self.table[at : at + WIDTH]) for at in range(0, len(self.table), WIDTH)])

    def keys(self, first: int, count: int) -> "Segments":
        """The part of the rectangles that lies among so many keys from the first on, which count from 0 there."""
        table: list[int] = []
        for row, q0, q1, k0, k1, diagonal, origin in self:
            k0, k1 = max(k0 - first, 0), min(k1 - first, count)
            table += [row, q0, q1, k0, max(k0, k1), diagonal - first, origin + first]
        return replace(self, table=table)

    def keys_within(self, region: Region) -> list[tuple[int, int, int]]:
        """Of each rectangle of regular segments, its row, the first key and the end of those that causal queries see within a
        region."""
        runs = []
        for row, q0, q1, k0, k1, diagonal in self.within(region):
            nearest, farthest = (region.nearest, region.farthest) if region.chunk == 1 else (None, None)
            first = k0 if farthest is None else max(k0, q0 + diagonal - farthest + 1)
            runs.append((row, first, min(k1, q1 + diagonal - max(nearest or 0, 0))))
        return runs

    def within(self, region: Region) -> list[Rectangle]:
        """The rectangles of what a region leaves of these, regular ones, but for its limits in single positions."""
        rectangles: list[Rectangle] = []
        for row, q0, q1, k0, k1, diagonal, origin in self:
            end = k1 if region.below is None else min(k1, region.below - origin)
            away, size = diagonal + origin, region.chunk
            q0 = q0 if region.since is None else max(q0, region.since - away)
            q1 = q1 if region.until is None else min(q1, region.until - away)
            if size == 1:
                rectangles.append((row, q0, q1, k0, end, diagonal))
                continue
            for chunk in range((q0 + away) // size, (q1 - 1 + away) // size + 1):
                # the first key of the farthest chunk, and the end of the nearest
                first = k0 if region.farthest is None else max(k0, (chunk - region.farthest + 1) * size - origin)
                last = end if region.nearest is None else min(end, (chunk - region.nearest + 1) * size - origin)
                queries = max(q0, chunk * size - away), min(q1, (chunk + 1) * size - away)
                rectangles.append((row, *queries, first, last, diagonal))
        return [(row, q0, q1, k0, k1, d) for row, q0, q1, k0, k1, d in rectangles if q0 < q1 and k0 < k1]


def segments(positions: Positions) -> Segments | None:
    """The rectangles of a call: all of it, a row's text without its padding, each packed document; a prefix and what follows
    it; of these, runs of visible blocks. None where what is visible is not made of rectangles, as with holes in a mask, or a window on a prefix; or where a
    graph is traced that may not read tensors."""
    p = positions
    queries, keys = p.num_queries, p.num_keys
    ordered = p.causal or p.window is not None
    if p.prefix is None and not p.hides_tokens and len(p.blocks) == 0:
        if p.start is not None and (not ordered or p.diagonal == p.start[0] - p.start[1]):
            return Segments([-1, 0, queries, 0, keys, p.start[0] - p.start[1], p.start[1]], True)
        if p.diagonal is not None or not ordered:
            return Segments([-1, 0, queries, 0, keys, p.diagonal or 0, 0], False)
    if torch.compiler.is_compiling() or (p.prefix is not None and p.window is not None):
        return None
    return positions.shared("segments", lambda: _read(positions))


def distances_of(positions: Positions) -> Tensor | None:
    """Every distance that a query may have from a key, (span's length,) from the longest to the shortest; None where it is not
    known without reading a tensor."""
    if positions.span is None:
        return None
    shortest, longest = positions.span
    return torch.arange(longest, shortest - 1, -1, device=positions.q.device)


def visible_keys(positions: Positions, region: Region) -> tuple[int, int, bool]:
    """The first key and the end of those that causal queries see in a region, and whether every query is known to see each;
    all of the keys where that is not known without effort, or where several queries see most."""
    everything, queries = (0, positions.num_keys, False), positions.num_queries
    if torch.compiler.is_compiling() or not (positions.unmasked or positions.q.device.type == "cpu"):
        return everything

    def known() -> tuple[int, int, bool]:
        visible = segments(positions)
        if visible is None or not visible.regular:
            return everything
        runs = visible.keys_within(region)
        first, end = min([run[1] for run in runs], default=0), max([run[2] for run in runs], default=0)
        if queries == 1:
            rows = [row for row, *run in runs if run == [first, end]]
            every = positions.window is None and (rows == [-1] or rows == list(range(positions.batch)))
            return first, end, every
        return (first, end, False) if 2 * (end - first) < positions.num_keys else everything

    return positions.shared(("visible keys", region), known)


def contains_all_visible(positions: Positions, region: Region) -> bool:
    """Whether every key that causal queries see is known to lie in a region."""
    if region == EVERYTHING:
        return True
    if positions.sees_future:
        return False

    def known() -> bool:
        by_position = region.since is not None or region.until is not None
        longest = None if positions.span is None else positions.span[1]
        if longest is None or by_position:
            visible = None if positions.q.device.type != "cpu" else segments(positions)
            if visible is None or not visible.regular:
                return False
            longest = max((q1 - 1 + d - k0 for _, q0, q1, k0, k1, d, _ in visible if q0 < q1 and k0 < k1), default=0)
            of_all = region._replace(since=None, until=None)
            if by_position and visible.within(region) != visible.within(of_all):
                return False
        nearest = region.nearest is None or region.nearest <= 0
        reaches = region.farthest is None or region.farthest * region.chunk > longest + region.chunk - 1
        return nearest and reaches and region.below is None

    return known() if torch.compiler.is_compiling() else positions.shared(("contains all visible", region), known)


def _read(p: Positions) -> Segments | None:
    ordered = p.causal or p.window is not None or len(p.blocks) > 0  # what is seen depends on the order of the tokens
    if ordered and not (_steps(p.q_order).all() and _steps(p.k_order).all()):
        return None
    documents = [d for d in (p.q_document, p.k_document) if d is not None]
    lowest = min((int(d.min()) for d in documents), default=0)
    sides = (p.q_order, p.q_document, p.q_valid), (p.k_order, p.k_document, p.valid)
    q_group, k_group = (_groups(*side, lowest) for side in sides)
    steady = p.axes == 1 and bool((_steps(p.q) | _edges(q_group)).all() and (_steps(p.k) | _edges(k_group)).all())
    regular = steady and not p.fractional and p.prefix is None
    table: list[int] = []
    for row in range(p.batch):
        queries, keys = _runs(_row(q_group, row)), _runs(_row(k_group, row))
        if queries is None or keys is None:
            return None
        for group in queries.keys() & keys.keys():
            (first_q, end_q), (first_k, end_k) = queries[group], keys[group]
            diagonal = int(_row(p.q_order, row)[0] - _row(p.k_order, row)[0]) if ordered else 0
            origin = int(_row(p.k, row)[first_k]) - first_k if regular else 0
            if regular:
                away = int(_row(p.q, row)[first_q] - _row(p.k, row)[first_k]) - first_q + first_k
                regular = not ordered or away == diagonal
                diagonal = diagonal if ordered else away
            at = row if p.batch > 1 else -1
            if p.prefix is not None and p.causal:
                prefix = _row(p.prefix, row)[first_k:end_k]
                end_prefix = first_k + int(prefix.sum())
                if not prefix[: end_prefix - first_k].all():
                    return None
                # queries of the prefix see all of it
                split = min(max(end_prefix - diagonal, first_q), end_q)
                if first_q < split:
                    table += [at, first_q, split, first_k, end_prefix, end_prefix - 1 - first_q, origin]
                first_q = split
            if first_q < end_q:
                table += [at, first_q, end_q, first_k, end_k, diagonal, origin]
    for blocks in p.blocks:
        table = _in_blocks(table, blocks, p.batch)
    return Segments(table or [-1, *[0] * (WIDTH - 1)], regular, bool(p.blocks))  # an operator's list may not be empty


def _in_blocks(table: list[int], blocks: VisibleBlocks, batch: int) -> list[int]:
    """The part of rectangles that lies in visible blocks, as rectangles: of each run of visible blocks of keys, for as many
    blocks of queries as have it."""
    found: list[int] = []
    by_row = batch > 1 and max(x.shape[0] for x in blocks if x is not None) > 1
    for row, q0, q1, k0, k1, *rest in Segments(table, True):
        for at in range(batch) if row < 0 and by_row else [row]:
            of_q, q_edges = _edges_of(_row(blocks.q, at)[q0:q1], q0)
            of_k, k_edges = _edges_of(_row(blocks.k, at)[k0:k1], k0)
            seen = of_q[:, None] == of_k if blocks.table is None else _row(blocks.table, at)[of_q][:, of_k]
            steps = pad(seen.int(), (1, 1)).diff(dim=1)
            runs: list[list[tuple[int, int]]] = [[] for _ in q_edges]
            for (number, first), (_, end) in zip(
                (steps == 1).nonzero().tolist(), (steps == -1).nonzero().tolist(), strict=True
            ):
                runs[number].append((k_edges[first], k_edges[end]))
            since: dict[tuple[int, int], int] = {}
            for edge, now in zip(q_edges, runs, strict=True):
                for run in since.keys() - set(now):
                    found += [at, since.pop(run), edge, *run, *rest]
                for run in now:
                    since.setdefault(run, edge)
    return found


def _edges_of(blocks: Tensor, first: int) -> tuple[Tensor, list[int]]:
    """The numbers of consecutive blocks of tokens, and the first token of each, counted from `first`, with the end."""
    numbers, counts = torch.unique_consecutive(blocks, return_counts=True)
    return numbers, [first, *(first + counts.cumsum(0)).tolist()]


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
    runs: dict[int, tuple[int, int]] = {}
    end = 0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        first, end = end, end + count
        if value and value in runs:
            return None
        if value:
            runs[value] = first, end
    return runs
