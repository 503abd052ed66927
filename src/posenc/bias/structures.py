# SPDX-License-Identifier: Apache-2.0
"""The score-side structures: what an encoding may add to the attention scores, as structure rather than as a tensor.

Each structure gives one closure, `score_mod()`, in FlexAttention's signature and written on positions with
broadcastable operations: evaluated on broadcast index grids it is the dense bias, and the definition. For speed a
structure also `reduces` to one of the few kinds in `posenc.bias.terms`, which every fast backend computes; the tests compare
each with `score_mod`. `distance` is always query position minus key position: positive when the key is in the past.
Terms are added after the scores have been scaled.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MethodType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from posenc.bias.terms import (
    HIDDEN,
    CapTerm,
    DifferenceTerm,
    EntriesTerm,
    KeyTerm,
    ProductTerm,
    QueryTerm,
    SlopeTerm,
    Term,
    ValuesTerm,
    VectorTerm,
    cell,
)
from posenc.errors import InputError, shown
from posenc.positions import Positions
from posenc.positions.memory import SHORT
from posenc.positions.order import running_sums
from posenc.positions.segments import distances_of, segments
from posenc.positions.visibility import grid_indices, rowwise

__all__ = [
    "Added", "Dense", "Factored", "KeyRelative", "KeySlope", "KeyValues", "Mixer", "Modifier", "Positional", "QueryRelative",
    "Relative", "RunningSum", "Score", "SoftCap", "Values", "Weights", "dense_sum", "hankel", "sum_by_rows",
    "validated", "validated_values",
]  # fmt: skip

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
OfDistance = Callable[[Tensor], Tensor]
Block = Callable[[int, int, slice], Tensor]
"""(first query, end, keys) -> that part of a term, (batch or 1, num_heads, end - first, keys)."""
ALL_KEYS = slice(None)
SIZES = ("batch", "num_heads", "num_queries", "num_keys")
Shapes = dict[str, tuple[str, ...]]
"""Of each tensor of a class, by the name of its field, its sizes by name: one name is one number; "|1": or 1."""


class Refused(NamedTuple):
    """Why the CPU's operator does not serve a term or a call, and what would be faster than what does."""

    why: str
    faster: str = ""


class Score:
    """One additive term b_ij of the attention scores.

    A class of your own sets batch (1: the same for every row), num_heads, num_queries and num_keys, and defines `score_mod` or
    `rows`; it is then computed from dense tensors, or FlexAttention. To be fast on the CPU too, it also defines `reduced`
    and `unsupported`.
    """

    num_heads: int
    num_queries: int
    num_keys: int
    batch: int
    by_distance: ClassVar[bool] = False
    """Whether `reduced` needs distances: the term is one of `distances_of(positions)`, and has an attribute `positions`."""
    linear: ClassVar[bool] = False
    """Whether `reduced` takes memory that grows with the sequence, not its square, without distances."""
    dense_if_short: ClassVar[bool] = True
    """Whether `dense` costs less than the CPU's operator, for few queries and keys."""
    in_kernel: ClassVar[str | None] = None
    """Which input of our Triton kernel the term becomes; None: it has none."""
    shapes: ClassVar[Shapes] = {}
    """Of the tensors that it is made of."""

    def score_mod(self) -> ScoreMod:
        """The term as (score, batch, head, query index, key index) -> score, on broadcastable index tensors."""
        raise NotImplementedError  # abstract: the structures below define it

    def dense(self, device: torch.device) -> Tensor:
        """The term as a (batch or 1, num_heads, num_queries, num_keys) tensor."""
        return self.blocks(device)(0, self.num_queries, ALL_KEYS)

    def rows(self, device: torch.device) -> Callable[[int, int], Tensor]:
        """`dense` by blocks of queries: (first, end) -> (batch or 1, num_heads, end - first, num_keys)."""
        block = self.blocks(device)
        return lambda first, end: block(first, end, ALL_KEYS)

    def blocks(self, device: torch.device) -> Block:
        """`dense` by blocks of queries and keys."""
        if type(self).rows is not Score.rows:  # which a user's class may define alone
            rows = self.rows(device)
            return lambda first, end, keys: rows(first, end)[..., keys]
        mod, zero = self.score_mod(), torch.zeros((), device=device)

        def block(first: int, end: int, keys: slice) -> Tensor:
            start, stop = keys.start or 0, self.num_keys if keys.stop is None else keys.stop
            b, h, i, j = grid_indices(self.batch, self.num_heads, end - first, stop - start, device)
            return mod(zero, b, h, i + first, j + start).expand(self.batch, self.num_heads, end - first, stop - start)

        return block

    def reduced(self, distances: Tensor | None, device: torch.device) -> Term:
        """The term as one of the kinds that backends compute. distances: of its entries if by_distance, integers, from
        the longest to the shortest; None where there is no such list, and the term is dense."""
        return EntriesTerm(self.dense(device))

    def factors(self) -> tuple[Tensor, Tensor] | None:
        """(left, right), see `Factored`, if the term is their product: further channels of queries and keys."""
        return None

    def unsupported(self, positions: Positions) -> Refused | None:
        """Why the CPU's operator cannot compute the term in a call at these positions; None if it can."""
        why = f"a term is a {type(self).__name__}, of whose form nothing is known"
        return Refused(why, "Relative, QueryRelative, KeyRelative or Factored terms")

    def misfit(self, q: Tensor, k: Tensor) -> str | None:
        """Why the term is not one of these queries' and keys' scores; None if it is. Reads no tensor."""
        for name in SIZES:
            if not hasattr(self, name):
                return f"has no {name}: set {', '.join(f'self.{name}' for name in SIZES)}"
        if (self.num_queries, self.num_keys) != (q.shape[2], k.shape[2]):
            given = f"q has {q.shape[2]} and k has {k.shape[2]}"
            return f"is of {self.num_queries} queries and {self.num_keys} keys; {given}"
        # not `in (1, all)`, in which Dynamo takes sizes that are symbols for different ones
        if self.num_heads != 1 and self.num_heads != q.shape[1]:
            return f"has {self.num_heads} heads, q has {q.shape[1]}: give one per query head, or one for all"
        if self.batch != 1 and self.batch != q.shape[0]:
            return f"has {self.batch} rows, q has a batch of {q.shape[0]}: give one per row, or one for all"
        sizes = {"batch": q.shape[0], "num_heads": q.shape[1], "num_queries": q.shape[2], "num_keys": k.shape[2]}
        return _misshaped(self, sizes, q.device)


def _rows(numbers: Tensor, positions: Positions) -> int:
    """Rows of a term of numbers of the tokens and their positions: those of one that has not 1."""
    return positions.batch if numbers.shape[0] == 1 else numbers.shape[0]


def _written(shape: tuple[str, ...]) -> str:
    return f"({', '.join(shape)})".replace("|1", " or 1")


def _require_numbers(made: Any) -> None:
    """Refuse what is no tensor of numbers with as many axes as its shape says."""
    for name, shape in made.shapes.items():
        user, x = type(made).__name__, getattr(made, name)
        if not isinstance(x, Tensor) or x.dim() != len(shape):
            raise InputError(f"{user}: {name} is {shown(x)}; pass a tensor of shape {_written(shape)}")
        if x.dtype == torch.bool:
            remedy = "torch.zeros(shape).masked_fill(~visible, -torch.inf), or hide keys by positions"
            raise InputError(f"{user}: {name} is bool: pass numbers; for a mask, {remedy}")


def _misshaped(made: Any, sizes: dict[str, int], device: torch.device) -> str | None:
    """Which tensor is of another shape than these sizes make of the declared one, or on another device."""
    for name, shape in made.shapes.items():
        x = getattr(made, name)
        for size, of in zip(x.shape, shape, strict=True):
            wanted = sizes.setdefault(of.removesuffix("|1"), size)
            if size != wanted and not (of.endswith("|1") and size == 1):
                shapes = f"{tuple(x.shape)}: pass {_written(shape)}, where {of.removesuffix('|1')} is {wanted}"
                return f"has {name} of shape {shapes}"
        if x.device != device:
            return f"has {name} on {x.device}, q is on {device}: move it with .to(q.device)"
    return None


class _LookedUp(Score):
    """Whose closure is what FlexAttention looks up of the tensors that it is made of."""

    def score_mod(self) -> ScoreMod:
        lookup = self.reduced(None, torch.device("cpu")).lookup(None)
        return lambda score, b, h, i, j: score + lookup.at(b, h, i, j)

    def unsupported(self, positions: Positions) -> Refused | None:
        return None


class _OfPositions(Score):
    positions: Positions

    def __post_init__(self) -> None:
        self.num_queries, self.num_keys = self.positions.q.shape[1], self.positions.k.shape[1]
        self.batch = self.positions.batch


class _ByDistance(_OfPositions):
    by_distance = True

    def unsupported(self, positions: Positions) -> Refused | None:
        if self.positions.axes > 1:
            return Refused("a bias of positions with several coordinates")
        visible = segments(positions)
        if positions.span is None or visible is None or not visible.regular:
            return Refused("positions are not contiguous", "contiguous positions")
        return None if self.positions.with_gates(()) is positions else Refused("a term counts other positions")


@dataclass(eq=False)
class Relative(_ByDistance):
    """b[head, distance]: T5, ALiBi, KERPLE and every bias that depends on the distance alone.

    function(head, distance) -> bias takes broadcastable tensors; distance has a trailing axes dimension when the
    positions have one.
    """

    function: Callable[[Tensor, Tensor], Tensor]
    num_heads: int
    positions: Positions
    in_kernel = "vector"

    def score_mod(self) -> ScoreMod:
        q, k = rowwise(self.positions.q), rowwise(self.positions.k)
        return lambda score, b, h, i, j: score + self.function(h, q(b, i) - k(b, j))

    def vector(self, device: torch.device) -> Tensor:
        """Every value the positions can need, (num_heads, number of distances), from the longest distance to the
        shortest. Where positions are contiguous, entry r + j belongs to the r-th query from the end and key j."""
        distances = distances_of(self.positions)
        assert distances is not None
        return self._at(distances.to(device))

    def _at(self, distances: Tensor) -> Tensor:
        heads = torch.arange(self.num_heads, device=distances.device).unsqueeze(1)
        return self.function(heads, distances).expand(self.num_heads, distances.shape[0])

    def reduced(self, distances: Tensor | None, device: torch.device) -> Term:
        if distances is None:
            return super().reduced(None, device)
        span = self.positions.span
        every = span is not None and distances.shape[0] == span[1] - span[0] + 1
        return VectorTerm(self.vector(device) if every else self._at(distances))

    def dense(self, device: torch.device) -> Tensor:
        if self.positions.start is None:
            return super().dense(device)
        if self.num_queries == 1:
            return self.vector(device).view(1, self.num_heads, 1, self.num_keys)
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

    def unsupported(self, positions: Positions) -> Refused | None:
        if self.positions.axes > 1:
            return Refused("a bias of positions with several coordinates")
        return Refused("a term is a function of both positions", "a bias of the distance alone")


@dataclass(eq=False)
class _Projected(_ByDistance):
    content: Tensor  # (batch, num_heads, n, head_dim), any factor of the scale already applied
    table: Tensor  # (num_heads or 1, rows, head_dim)
    index: OfDistance  # distance -> row of the table, for every distance within positions.span, visible or not
    positions: Positions

    def __post_init__(self) -> None:
        _require_numbers(self)
        self.batch, self.num_heads = self.content.shape[:2]
        self.num_queries, self.num_keys = self.positions.q.shape[1], self.positions.k.shape[1]

    dense_if_short = False
    of_query: ClassVar[bool]
    term: ClassVar[type[Term]]

    def score_mod(self) -> ScoreMod:
        projected = times(self.content, self.table.mT)  # (batch, num_heads, n, rows)
        q, k = rowwise(self.positions.q), rowwise(self.positions.k)

        def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            row = rows_at(self.index, q(b, i) - k(b, j), self.table)
            return score + projected[b, h, i if self.of_query else j, row]

        return mod

    def blocks(self, device: torch.device) -> Block:
        projected = times(self.content, self.table.mT)

        def block(first: int, end: int, keys: slice) -> Tensor:
            rows = rows_between(self.index, self.table, self.positions, first, end, keys)[:, None]
            if self.of_query:
                of_tokens = projected[:, :, first:end]
                return of_tokens.gather(-1, rows.expand(*of_tokens.shape[:3], -1))
            of_tokens = projected[:, :, keys]
            return of_tokens.gather(-1, rows.mT.expand(*of_tokens.shape[:3], -1)).mT

        return block

    def reduced(self, distances: Tensor | None, device: torch.device) -> Term:
        if distances is None:
            return super().reduced(None, device)
        return self.term(self.content, self.table, rows_at(self.index, distances, self.table))


class QueryRelative(_Projected):
    """q_i . r[distance]: Shaw's keys, Transformer-XL and XLNet, DeBERTa's content-to-position."""

    of_query, term, in_kernel = True, QueryTerm, "products"
    shapes: ClassVar[Shapes] = {
        "content": ("batch|1", "num_heads|1", "num_queries", "width"), "table": ("num_heads|1", "rows", "width"),
    }  # fmt: skip


class KeyRelative(_Projected):
    """k_j . r[distance]: DeBERTa's position-to-content. Keys are per query head."""

    of_query, term = False, KeyTerm
    shapes: ClassVar[Shapes] = {
        "content": ("batch|1", "num_heads|1", "num_keys", "width"), "table": ("num_heads|1", "rows", "width"),
    }  # fmt: skip

    def dense(self, device: torch.device) -> Tensor:
        if self.num_queries > 1:
            return super().dense(device)
        # a query alone needs one row per key, not every row for every key
        row = rows_at(self.index, self.positions.q[:, :1] - self.positions.k, self.table)
        table = self.table[:, row].transpose(0, 1)  # (batch or 1, num_heads or 1, num_keys, head_dim)
        return (self.content * table).sum(-1)[:, :, None]


def times(x: Tensor, table: Tensor) -> Tensor:
    """x (batch, num_heads, n, a) @ table (num_heads or 1, a, m); a product with one matrix for all heads takes half the time of
    one for each, where x, laid out as models project, is not copied for it."""
    if table.shape[0] > 1:
        return x @ table
    return x @ table[0] if x.is_contiguous() else (x.transpose(1, 2) @ table[0]).transpose(1, 2)


def rows_at(index: OfDistance, distance: Tensor, table: Tensor) -> Tensor:
    """The rows of a table (.., rows, width) that an index gives distances, int64. Out of range is refused on the CPU, where
    reading them waits for nobody."""
    rows = index(distance).long()
    if rows.device.type != "cpu" or type(rows) is not Tensor or torch.compiler.is_compiling() or rows.numel() == 0:
        return rows
    least, most = map(int, rows.aminmax())
    if least < 0 or most >= table.shape[-2]:
        wrong, reach = least if least < 0 else most, f"from {int(distance.min())} to {int(distance.max())}"
        remedy = f"give every distance {reach} one"
        raise InputError(f"index gives row {wrong} of a table of {table.shape[-2]} rows: {remedy}")
    return rows


def rows_between(
    index: OfDistance, table: Tensor, positions: Positions, first: int, end: int, keys: slice = ALL_KEYS
) -> Tensor:
    """`rows_at` of queries first .. end - 1 and keys, (batch or 1, end - first, keys); of few tokens in a row once a pass, by a
    method of one of our encodings: any other index may be another in the next layer."""
    if positions.start is None:
        return rows_at(index, positions.q[:, first:end, None] - positions.k[:, None, keys], table)

    def of_all() -> Tensor:
        distances = distances_of(positions)
        assert distances is not None
        return hankel(rows_at(index, distances, table), positions.k.shape[1]).flip(0)[None]

    ours = isinstance(index, MethodType) and type(index.__self__).__module__.startswith("posenc.")
    few = positions.q.shape[1] * positions.k.shape[1] <= SHORT
    rows = positions.shared(("rows", index, table.shape[-2]), of_all) if ours and few else of_all()
    return rows[:, first:end, keys]


@dataclass(eq=False)
class Factored(Score):
    """a_i . b_j: TUPE, absolute terms, and every term that separates exactly.

    left is (batch or 1, num_heads or 1, num_queries, m), right (batch or 1, num_heads or 1, num_keys, m).
    """

    left: Tensor
    right: Tensor
    in_kernel = "channels"
    shapes: ClassVar[Shapes] = {
        "left": ("batch|1", "num_heads|1", "num_queries", "m"), "right": ("batch|1", "num_heads|1", "num_keys", "m"),
    }  # fmt: skip

    def __post_init__(self) -> None:
        _require_numbers(self)
        self.batch: int = self.right.shape[0] if self.left.shape[0] == 1 else self.left.shape[0]
        self.num_heads: int = max(self.left.shape[1], self.right.shape[1])
        self.num_queries: int = self.left.shape[2]
        self.num_keys: int = self.right.shape[2]

    def score_mod(self) -> ScoreMod:
        def mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + (cell(self.left, b, h, i) * cell(self.right, b, h, j)).sum(-1)

        return mod

    def blocks(self, device: torch.device) -> Block:
        return lambda first, end, keys: self.left[:, :, first:end] @ self.right[:, :, keys].mT

    def reduced(self, distances: Tensor | None, device: torch.device) -> Term:
        return ProductTerm(self.left, self.right)

    def factors(self) -> tuple[Tensor, Tensor]:
        return self.left, self.right

    def unsupported(self, positions: Positions) -> Refused | None:
        return None


class _PerKey(_LookedUp, _OfPositions):
    """Of a number per key in the one field of `shapes`, (batch or 1, num_heads or 1, num_keys)."""

    linear = True

    def __post_init__(self) -> None:
        _require_numbers(self)
        given: Tensor = getattr(self, *self.shapes)
        self.batch, self.num_heads = _rows(given, self.positions), given.shape[1]
        self.num_queries, self.num_keys = self.positions.q.shape[1], self.positions.k.shape[1]


@dataclass(eq=False)
class RunningSum(_PerKey):
    """F_i - F_j, where F is the running sum of a number per token: forget gates (Lin et al. 2025, "Forgetting Transformer").

    gates: (batch or 1, num_heads or 1, num_keys), of each key's token, such as logarithms of forget gates, finite; F_i - F_j is
    the sum over the tokens after j up to i, in their order. Sums and differences are taken in float64, so that they are exact
    far from the start. Gates of padding and of other documents do not count.
    """

    gates: Tensor
    positions: Positions
    shapes: ClassVar[Shapes] = {"gates": ("batch|1", "num_heads|1", "num_keys")}

    def reduced(self, distances: Tensor | None, device: torch.device) -> Term:
        of_query, of_key = running_sums(self.gates[..., None], self.positions)
        term = DifferenceTerm(of_query[..., 0], of_key[..., 0])
        term.in_double = self.gates.dtype == torch.float64
        return term


@dataclass(eq=False)
class KeySlope(_PerKey):
    """-|i - j| s_j: the distance times a number per key, such as a slope that a key makes of its content (GRAPE).

    slopes: (batch or 1, num_heads or 1, num_keys), finite. Distances are differences of positions, exact far from the start,
    where products of positions and slopes, which differ by as much, would have lost their digits.
    """

    slopes: Tensor
    positions: Positions
    shapes: ClassVar[Shapes] = {"slopes": ("batch|1", "num_heads|1", "num_keys")}

    def reduced(self, distances: Tensor | None, device: torch.device) -> Term:
        return SlopeTerm(self.slopes, self.positions.q[:, None], self.positions.k[:, None])

    def misfit(self, q: Tensor, k: Tensor) -> str | None:
        if self.positions.axes > 1:
            return "is of positions with several coordinates: pass positions with one"
        return super().misfit(q, k)


@dataclass(eq=False)
class Dense(_LookedUp):
    """Any (batch or 1, num_heads or 1, num_queries, num_keys) tensor: N x N memory, stated explicitly."""

    tensor: Tensor
    shapes: ClassVar[Shapes] = {"tensor": ("batch|1", "num_heads|1", "num_queries", "num_keys")}

    def __post_init__(self) -> None:
        _require_numbers(self)
        self.batch, self.num_heads, self.num_queries, self.num_keys = self.tensor.shape

    def blocks(self, device: torch.device) -> Block:
        return lambda first, end, keys: self.tensor[:, :, first:end, keys]

    def reduced(self, distances: Tensor | None, device: torch.device) -> Term:
        return EntriesTerm(self.tensor)


@dataclass(frozen=True, eq=False)
class Modifier:
    """A function of each score, after scale and bias and before the softmax: what an encoding's `modify` returns.

    function(score, batch, head, query index, key index) -> score, FlexAttention's `score_mod`: pointwise, of broadcastable
    tensors. Parameters that it reads get gradients. A score that hides its key, minus infinity or a dtype's lowest number, is not given to it and goes on hiding it.
    """

    function: ScoreMod

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputError("pass a function (score, batch, head, query, key) -> score", function=self.function)

    def __call__(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        hidden = score < HIDDEN
        return torch.where(hidden, -torch.inf, self.function(torch.where(hidden, 0.0, score), b, h, i, j))

    def of_block(self, scores: Tensor, first_query: int, first_key: int) -> Tensor:
        """Scores (batch, num_heads, queries, keys), of queries and keys from these on, as the function changes them."""
        batch, heads, queries, keys = scores.shape
        b, h, i, j = grid_indices(batch, heads, queries, keys, scores.device)
        return self(scores, b, h, i + first_query, j + first_key)

    def reduced(self) -> CapTerm | None:
        """The function as a term of the CPU's operator and of FlexAttention; None: it is known only as a function."""
        return None


class SoftCap(Modifier):
    """cap * tanh(score / cap): scores that grow stay below the cap (Gemma 2; Bello et al. 2016)."""

    cap: float

    def __init__(self, cap: float) -> None:
        if not (isinstance(cap, (int, float)) and 0 < cap < torch.inf):
            raise InputError("pass a positive number, such as 50.0", cap=cap)
        super().__init__(lambda score, b, h, i, j: cap * torch.tanh(score / cap))
        object.__setattr__(self, "cap", float(cap))

    def reduced(self) -> CapTerm:
        return CapTerm(torch.tensor(self.cap, dtype=torch.float64))


class Added(Modifier):
    """A term of the scores that is added where it stands among the modifiers, as after a soft cap."""

    block: Block

    def __init__(self, term: Score, device: torch.device) -> None:
        super().__init__(lambda score, b, h, i, j: term.score_mod()(score, b, h, i, j))
        # here, not in a block, which is computed again for the gradient
        object.__setattr__(self, "block", term.blocks(device))

    def of_block(self, scores: Tensor, first_query: int, first_key: int) -> Tensor:
        queries, keys = scores.shape[2:]
        return scores + self.block(first_query, first_query + queries, slice(first_key, first_key + keys)).to(scores)


@dataclass(frozen=True, eq=False)
class Weights(Modifier):
    """Attention weights as a function of rows of scores, in place of the softmax: what `modify` may return last.

    function(score, batch, head, query index, key index) -> weights, of the scores (batch, num_heads, queries, keys) of some queries
    with all the keys that any of them sees; keys that are hidden score minus infinity, and get 0. Weights need not add up to 1.
    """

    def __call__(self, score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.function(score, b, h, i, j)


class Mixer(Modifier):
    """A function of the scores of all heads of a pair: function(scores, first_query, first_key) -> scores, both (batch,
    num_heads, queries, keys), of some of the queries and keys. Computed by blocks of queries, again in the backward pass.
    FlexAttention and the other kernels, which have one head at a time, have no form for it."""

    function: Callable[[Tensor, int, int], Tensor]  # type: ignore[assignment]

    def of_block(self, scores: Tensor, first_query: int, first_key: int) -> Tensor:
        hidden = scores < HIDDEN
        return self.function(scores.masked_fill(hidden, 0.0), first_query, first_key).masked_fill(hidden, -torch.inf)


@dataclass(frozen=True, eq=False)
class Values:
    """w_ij, what position adds to the values: a table (num_heads or 1, rows, head_dim) and distance -> row (Shaw)."""

    table: Tensor
    index: OfDistance
    shapes: ClassVar[Shapes] = {"table": ("num_heads|1", "rows", "width of v")}

    def __post_init__(self) -> None:
        _require_numbers(self)

    def reduced(self, distances: Tensor) -> ValuesTerm:
        """For the CPU's operator, with an entry for each distance."""
        return ValuesTerm(self.table, rows_at(self.index, distances, self.table))


@dataclass(frozen=True, eq=False)
class KeyValues:
    """w_j, what position adds to each value whatever the query: (batch or 1, num_kv_heads or 1, num_keys, head_dim)
    (FLOATER)."""

    added: Tensor
    shapes: ClassVar[Shapes] = {"added": ("batch|1", "num_kv_heads|1", "num_keys", "width of v")}

    def __post_init__(self) -> None:
        _require_numbers(self)


def validated(bias: object, q: Tensor, k: Tensor, *, origin: str) -> list[Score]:
    """What an encoding's `bias` returned, as a list of terms that are of these queries' and keys' scores. Looks at shapes,
    dtypes and devices alone, so no GPU waits. origin: who returned it, for the message ("MyEncoding.bias")."""
    if bias is None:
        return []
    alone = isinstance(bias, (Score, Tensor)) or not isinstance(bias, (list, tuple, Iterable))
    terms: Any = [bias] if alone else bias
    scores: list[Score] = []
    for term in terms:
        if isinstance(term, Tensor):
            raise InputError(f"{origin} returned {shown(term)}: wrap it as posenc.bias.Dense(tensor)")
        if not isinstance(term, Score):
            raise InputError(f"{origin} returned {shown(term)}: return a posenc.bias.Score, a list of them, or None")
        misfit = term.misfit(q, k)
        if misfit is not None:
            raise InputError(f"{origin} returned a {type(term).__name__} that {misfit}")
        scores.append(term)
    return scores


def validated_values(
    added: Values | KeyValues | None, q: Tensor, v: Tensor, *, origin: str
) -> Values | KeyValues | None:
    """What an encoding's `values` returned, once it fits the queries and values of a call. origin: as in `validated`."""
    if added is None:
        return None
    sizes = {"batch": v.shape[0], "num_heads": q.shape[1], "num_kv_heads": v.shape[1], "num_keys": v.shape[2]}
    misfit = _misshaped(added, sizes | {"width of v": v.shape[3]}, v.device)
    if misfit is not None:
        raise InputError(f"{origin} returned {type(added).__name__} that {misfit}")
    return added


def dense_sum(terms: Sequence[Score], device: torch.device) -> Tensor | None:
    """The sum of all terms as one tensor, or None when there is no term."""
    total = None
    for term in terms:
        total = term.dense(device) if total is None else total + term.dense(device)
    return total


def sum_by_rows(terms: Sequence[Score], device: torch.device) -> Callable[..., Tensor | None]:
    """`dense_sum` by blocks of queries: (first, end, keys=all) -> that part of the sum."""
    blocks = [term.blocks(device) for term in terms]

    def block(first: int, end: int, keys: slice = ALL_KEYS) -> Tensor | None:
        return reduce(torch.add, (each(first, end, keys) for each in blocks)) if blocks else None

    return block
