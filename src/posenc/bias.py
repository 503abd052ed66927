# SPDX-License-Identifier: Apache-2.0
"""The score-side structures: what an encoding may add to the attention scores, as structure rather than as a tensor.

Each structure gives one closure, `score_mod()`, in FlexAttention's signature and written on positions with
broadcastable operations. Fused by FlexAttention it is a kernel; evaluated on broadcast index grids it is the dense
bias. There is no second implementation that could drift. `distance` is always query position minus key position:
positive when the key is in the past. Terms are added after the scores have been scaled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from posenc.positions import Positions
from posenc.positions.visibility import grid_indices, rowwise

__all__ = [
    "Dense", "Factored", "KeyRelative", "KeyValues", "Positional", "QueryRelative", "Relative", "Score", "Values",
    "dense_sum", "hankel", "sum_by_rows",
]  # fmt: skip

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
OfDistance = Callable[[Tensor], Tensor]


class Score:
    """One additive term b_ij of the attention scores."""

    num_heads: int
    num_queries: int
    num_keys: int
    batch: int

    def score_mod(self) -> ScoreMod:
        """The term as (score, batch, head, query index, key index) -> score, on broadcastable index tensors."""
        raise NotImplementedError  # abstract: the structures below define it

    def dense(self, device: torch.device) -> Tensor:
        """The term as a (batch or 1, num_heads, num_queries, num_keys) tensor."""
        return self.rows(device)(0, self.num_queries)

    def rows(self, device: torch.device) -> Callable[[int, int], Tensor]:
        """`dense` by blocks of queries: (first, end) -> (batch or 1, num_heads, end - first, num_keys)."""
        mod, zero = self.score_mod(), torch.zeros((), device=device)

        def block(first: int, end: int) -> Tensor:
            b, h, i, j = grid_indices(self.batch, self.num_heads, end - first, self.num_keys, device)
            return mod(zero, b, h, i + first, j).expand(self.batch, self.num_heads, end - first, self.num_keys)

        return block


class _OfPositions(Score):
    positions: Positions

    def __post_init__(self) -> None:
        self.num_queries: int = self.positions.num_queries
        self.num_keys: int = self.positions.num_keys
        self.batch: int = self.positions.batch

    def distances(self) -> Tensor:
        """Every distance that the positions can need, from the longest to the shortest."""
        found = self.positions.distances()
        assert found is not None
        return found


@dataclass(eq=False)
class Relative(_OfPositions):
    """b[head, distance]: T5, ALiBi, KERPLE and every bias that depends on the distance alone.

    function(head, distance) -> bias takes broadcastable tensors; distance has a trailing axes dimension when the
    positions have one.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    num_heads: int
    positions: Positions

    def score_mod(self) -> ScoreMod:
        q, k = rowwise(self.positions.q), rowwise(self.positions.k)
        return lambda score, b, h, i, j: score + self.function(h, q(b, i) - k(b, j))

    def vector(self, device: torch.device) -> Tensor:
        """Every value the positions can need, (num_heads, number of distances), from the longest distance to the
        shortest. Where positions are contiguous, entry r + j belongs to the r-th query from the end and key j."""
        heads = torch.arange(self.num_heads, device=device)
        return self.function(heads[:, None], self.distances().to(device)).expand(self.num_heads, -1)

    def dense(self, device: torch.device) -> Tensor:
        if self.positions.start is None:
            return super().dense(device)
        return hankel(self.vector(device), self.num_keys).flip(-2)[None]


def hankel(vector: Tensor, num_keys: int) -> Tensor:
    """The Hankel view (..., rows, num_keys) of a vector (..., rows + num_keys - 1): entry [r, j] is vector[r + j].
    No copy. Read with the queries reversed, it is a bias that depends on the distance alone."""
    rows = vector.shape[-1] - num_keys + 1
    vector = vector.contiguous()
    return vector.as_strided((*vector.shape[:-1], rows, num_keys), (*vector.stride()[:-1], 1, 1))


@dataclass(eq=False)
class Positional(_OfPositions):
    """b[head, i, j], a function of the two positions that is not one of their distance: FIRE past its threshold,
    TUPE's reset of the [CLS] token.

    function(head, query position, key position) -> bias takes broadcastable tensors; positions have a trailing axes
    dimension when there are several axes.
    """

    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    num_heads: int
    positions: Positions

    def score_mod(self) -> ScoreMod:
        q, k = rowwise(self.positions.q), rowwise(self.positions.k)
        return lambda score, b, h, i, j: score + self.function(h, q(b, i), k(b, j))


@dataclass(eq=False)
class _Projected(_OfPositions):
    content: Tensor  # (batch, num_heads, n, head_dim), any factor of the scale already applied
    table: Tensor  # (num_heads or 1, rows, head_dim)
    index: OfDistance  # distance -> row of the table, for every distance within positions.span, visible or not
    positions: Positions

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch: int = self.content.shape[0]
        self.num_heads: int = self.content.shape[1]

    def index_vector(self) -> Tensor:
        """The table's row of every distance that the positions can need, from the longest to the shortest."""
        return self.index(self.distances()).long()

    def _mod(self, of_query: bool) -> ScoreMod:
        projected = self.content @ self.table.mT  # (batch, num_heads, n, rows)
        q, k = rowwise(self.positions.q), rowwise(self.positions.k)

        def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + projected[b, h, i if of_query else j, self.index(q(b, i) - k(b, j)).long()]

        return mod


class QueryRelative(_Projected):
    """q_i . r[distance]: Shaw's keys, Transformer-XL and XLNet, DeBERTa's content-to-position."""

    def score_mod(self) -> ScoreMod:
        return self._mod(of_query=True)


class KeyRelative(_Projected):
    """k_j . r[distance]: DeBERTa's position-to-content. Keys are per query head."""

    def score_mod(self) -> ScoreMod:
        return self._mod(of_query=False)

    def dense(self, device: torch.device) -> Tensor:
        if self.num_queries > 1:
            return super().dense(device)
        # a query alone needs one row per key, not every row for every key
        row = self.index(self.positions.q[:, :1] - self.positions.k).long()
        table = self.table[:, row].transpose(0, 1)  # (batch or 1, num_heads or 1, num_keys, head_dim)
        return (self.content * table).sum(-1)[:, :, None]


def cell(x: Tensor, b: Tensor, h: Tensor, *rest: Tensor) -> Tensor:
    """Read a (batch or 1, num_heads or 1, ...) tensor at (row, head, ...)."""
    return x[(b if x.shape[0] > 1 else 0, h if x.shape[1] > 1 else 0, *rest)]


@dataclass(eq=False)
class Factored(Score):
    """a_i . b_j: TUPE, absolute terms, and every term that separates exactly.

    left is (batch or 1, num_heads or 1, num_queries, m), right (batch or 1, num_heads or 1, num_keys, m).
    """

    left: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        self.batch: int = max(self.left.shape[0], self.right.shape[0])
        self.num_heads: int = max(self.left.shape[1], self.right.shape[1])
        self.num_queries: int = self.left.shape[2]
        self.num_keys: int = self.right.shape[2]

    def score_mod(self) -> ScoreMod:
        def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + (cell(self.left, b, h, i) * cell(self.right, b, h, j)).sum(-1)

        return mod

    def dense(self, device: torch.device) -> Tensor:
        return self.left @ self.right.mT


@dataclass(eq=False)
class Dense(Score):
    """Any (batch or 1, num_heads or 1, num_queries, num_keys) tensor: N x N memory, said out loud."""

    tensor: Tensor

    def __post_init__(self) -> None:
        self.batch: int = self.tensor.shape[0]
        self.num_heads: int = self.tensor.shape[1]
        self.num_queries: int = self.tensor.shape[2]
        self.num_keys: int = self.tensor.shape[3]

    def score_mod(self) -> ScoreMod:
        return lambda score, b, h, i, j: score + cell(self.tensor, b, h, i, j)

    def dense(self, device: torch.device) -> Tensor:
        return self.tensor


@dataclass(frozen=True, eq=False)
class Values:
    """w_ij, what position adds to the values: a table (num_heads or 1, rows, head_dim) and distance -> row (Shaw)."""

    table: Tensor
    index: OfDistance


@dataclass(frozen=True, eq=False)
class KeyValues:
    """w_j, what position adds to each value whatever the query: (batch or 1, num_kv_heads or 1, num_keys, head_dim)
    (FLOATER)."""

    added: Tensor


def dense_sum(terms: Sequence[Score], device: torch.device) -> Tensor | None:
    """The sum of all terms as one tensor, or None when there is no term."""
    return reduce(torch.add, (term.dense(device) for term in terms)) if terms else None


def sum_by_rows(terms: Sequence[Score], device: torch.device) -> Callable[[int, int], Tensor | None]:
    """`dense_sum` by blocks of queries: (first, end) -> that part of the sum."""
    blocks = [term.rows(device) for term in terms]
    return lambda first, end: reduce(torch.add, (block(first, end) for block in blocks)) if blocks else None
