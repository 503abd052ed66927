# SPDX-License-Identifier: Apache-2.0
"""Scores of queries that every token between them and a key changes: PaTH's reflections, Wall's decays.

s_ij = q_i A_i A_{i-1} .. A_{j+1} k_j, with a linear map A_t for each token t. Keys are taken by chunks, from the last to the first:
a block of queries is multiplied with the keys of a chunk, as they are at its end, then carried to its beginning.
"""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from posenc.bias.structures import Block, Score
from posenc.positions import Positions
from posenc.positions.order import at, order_of

SIZE = 64
"""Tokens of a chunk, a power of 2."""


class Stream(NamedTuple):
    """The tokens of a call one after the other: the documents, each in its order, without gaps; padding somewhere else.

    index: (batch or 1, num_keys), the keys in that order; None: they are in it. rank: (batch or 1, num_queries), where the
    queries are in it; None: side by side from `first` on. valid: in that order, as `Positions.valid`.
    """

    index: Tensor | None  # type: ignore[assignment]
    rank: Tensor | None
    first: int
    valid: Tensor | None

    def of(self, x: Tensor) -> Tensor:
        """A tensor over the keys (batch, heads, num_keys, width) in the stream's order, with zeros for padding."""
        if self.index is not None:
            x = at(x, self.index)
        return x if self.valid is None else x.masked_fill(~self.valid[:, None, :, None], 0.0)


def stream(positions: Positions) -> Stream:
    """The stream of causal positions, made once."""
    positions = positions.ungated or positions
    return positions.shared("stream", partial(_stream, positions))


def _stream(p: Positions) -> Stream:
    p.require_among_keys()
    first = p.diagonal
    if first is not None and (not p.hides_tokens or _in_order(p)):
        return Stream(None, None, first, p.valid)
    keys, ranks = order_of(p)[:2]
    slots = torch.arange(p.num_keys, device=p.k.device)[None, None, :, None].expand(keys.shape[0], -1, -1, -1)
    rank = ranks.gather(1, p.of_queries(slots)[:, 0, :, 0])
    return Stream(keys, rank, 0, None if p.valid is None else p.valid.expand(keys.shape).gather(1, keys))


def _in_order(p: Positions) -> bool:
    """Whether each key is stored just behind the one before it in its document."""
    if torch.compiler.is_compiling():
        return False  # a graph may not read tensors
    keys, _, _, first = order_of(p)
    follows = torch.arange(p.num_keys, device=p.k.device) > first
    if p.valid is not None:
        follows = follows & p.valid.expand(keys.shape).gather(1, keys)
    return bool(((keys.diff(dim=1) == 1) | ~follows[:, 1:]).all())


class Carried(Score):
    """Base of such scores.

    q: (batch, num_heads, num_queries, width), the scale in it. k, tokens: of the keys, (batch, heads that divide num_heads,
    num_keys, any width), in the order of the stream; tokens are what the maps are made of, and 0 makes the identity.
    """

    def __init__(self, q: Tensor, k: Tensor, tokens: Tensor, positions: Positions, stream: Stream) -> None:
        precise = torch.promote_types(q.dtype, torch.float32)
        self.q, self.positions, self.stream = q.to(precise), positions, stream
        self.k, self.tokens = (x.to(precise).repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, tokens))
        self.batch, self.num_heads, self.num_queries, self.num_keys = *q.shape[:3], k.shape[2]

    def tables(self, k: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        """What the other two need of chunks of keys (batch, num_heads, chunks, size, width)."""
        raise NotImplementedError  # abstract

    def inside(self, q: Tensor, k: Tensor, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Of chunks of queries and the keys of the same tokens, the scores (.., size, size), right where the key is not after
        the query; and the queries carried to the beginning of their chunk."""
        raise NotImplementedError  # abstract

    def step(self, q: Tensor, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Of queries (batch, num_heads, rows, width) carried to the end of a chunk, the scores with its keys, and the queries
        carried to its beginning. tables: of that chunk."""
        raise NotImplementedError  # abstract

    def blocks(self, device: torch.device) -> Block:
        index, rank, first = self.stream[:3]
        graph = torch.compiler.is_compiling()  # one for any length has no loop over chunks
        size, count = self.num_keys if graph else SIZE, self.num_queries
        k = _chunks(self.k, size)
        tables = self.tables(k, _chunks(self.tokens, size))
        if rank is None:
            skip = 0 if graph else first // size
            start = first - skip * size
            q = _chunks(pad(self.q, (0, 0, start, 0)), size)
            here = slice(skip, skip + q.shape[2])
            inner, carried = self.inside(q, k[:, :, here], tuple(table[:, :, here] for table in tables))
            inner, carried = (x.flatten(2, 3)[:, :, start : start + count] for x in (inner, carried))
            chunk = torch.arange(first, first + count, device=device)[None] // size
        else:
            places = rank[:, None, :, None].expand(*self.q.shape)
            q = _chunks(torch.zeros_like(self.k).scatter(2, places, self.q), size)
            inner, carried = (at(x.flatten(2, 3), rank) for x in self.inside(q, k, tables))
            chunk = rank // size
        # unbound, since the gradient of a slice would be as large as all
        of_chunk = list(zip(*(table.unbind(2) for table in tables), strict=True))
        back = None if index is None else index.argsort(1)[:, None, None]

        def block(begin: int, end: int, keys: slice) -> Tensor:
            q, near, here = carried[:, :, begin:end], inner[:, :, begin:end], chunk[:, None, begin:end, None]
            low, high = (keys.start or 0, self.num_keys if keys.stop is None else keys.stop)
            low, most = (low, high) if back is None else (0, self.num_keys)
            last = -(-most // size) if rank is not None else min(-(-most // size), (first + end - 1) // size + 1)
            columns = [near] if graph else []
            for number in () if graph else reversed(range(low // size, last)):
                scores, moved = self.step(q, of_chunk[number])
                # unless all queries come after the chunk
                if rank is not None or (number + 1) * size > first + begin:
                    scores, moved = torch.where(here > number, scores, near), torch.where(here > number, moved, q)
                columns.append(scores)
                q = moved
            before = low // size * size
            together = torch.cat([near[..., :0], *reversed(columns)], -1)
            if together.shape[-1] < most - before:  # later keys than any of the queries
                together = pad(together, (0, most - before - together.shape[-1]))
            together = together[..., low - before : most - before]
            if back is None:
                return together
            return together.gather(3, back.expand(*together.shape[:3], -1))[..., keys]

        return block


def _chunks(x: Tensor, size: int) -> Tensor:
    """(batch, heads, n, width) -> (batch, heads, chunks, size, width), with zeros at the end."""
    missing = -x.shape[2] % size
    return (x if missing == 0 else pad(x, (0, 0, 0, missing))).unflatten(2, (-1, size))
