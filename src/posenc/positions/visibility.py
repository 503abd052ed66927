# SPDX-License-Identifier: Apache-2.0
"""Which keys a query sees: `Visibility`, the one value that says it, and regions by distance, blocks, hidden tokens."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.functional import interpreted
from posenc.positions.ids import check_range, index_in_document, numbered, select
from posenc.positions.shared import Shared

T = TypeVar("T")

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query index, key index) -> bool, FlexAttention's signature, broadcastable."""

Window = tuple[int | None, int | None]
"""Tokens before and after a query that it sees besides its own; None: no limit."""

PositionMapping = Callable[[Tensor], Tensor]

NO_LIMIT = -(2**62)
ORDINARY = 1e4
"""Numbers up to this size, times those of other tokens, are finite, and nothing once a weight of zero is put to them."""


class Region(NamedTuple):
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
        return [NO_LIMIT if number is None else number for number in self]

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
        if mask is None or torch.compiler.is_compiling() or mask.device.type != "cpu" or interpreted():
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
        looks = self.runs is not None and not torch.compiler.is_compiling() and not interpreted()
        if looks and all(_is_ordinary(x, *run) for run in self.runs or ()):
            return x
        return self.zeroed(x)

    def zeroed(self, x: Tensor) -> Tensor:
        """x (batch, heads, n, width) with zeros at these tokens."""
        return x.masked_fill(self.mask[:, None, :, None], 0.0)


def _is_ordinary(x: Tensor, row: int, first: int, end: int) -> bool:
    part = x.detach()[:, :, first:end] if row < 0 else x.detach()[row, :, first:end]  # aminmax takes twice the time
    return part.numel() == 0 or (float(part.amin()) >= -ORDINARY and float(part.amax()) <= ORDINARY)


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

    def check(self, size: int, batch: int) -> None:
        """Refuse a table with fewer blocks than the tokens take, or of another number of rows."""
        if self.table is None or torch.compiler.is_compiling():
            return
        rows, *counts = self.table.shape
        for name, index, count in zip(("queries", "keys"), (self.q, self.k), counts, strict=True):
            if int(index.max()) >= count:
                found = f"{count} blocks of {size} tokens for the {name}, which take {int(index.max()) + 1}"
                raise InputError(f"table {tuple(self.table.shape)} has {found}: give a row or a column for each")
        if rows > 1 and batch not in (1, rows):
            raise InputError(f"table of {rows} rows, positions of {batch}: give one table, or one for each row")


@dataclass(frozen=True, eq=False)
class Branch:
    """The positions at which a position map scores the pairs of a region: functions of the tokens' own positions,
    (batch or 1, n) -> (batch or 1, n); None: the identity. most: the keys that a query sees in all branches of the map
    together; None: every key that it may see."""

    region: Region
    q: PositionMapping | None = None
    k: PositionMapping | None = None
    most: int | None = None


Cut = slice | Callable[[Tensor], Tensor] | None
"""Which tokens of (batch or 1, n, ...) tensors are taken; None: all."""


class Extent(NamedTuple):
    """What is known of a tensor of integers, (batch or 1, n): all lie in low .. high; consecutive: every row is low, low + 1, .. high."""

    low: int
    high: int
    consecutive: bool = False

    def cut(self, part: Cut, count: int) -> "Extent":
        """That of the part of the `count` numbers of each row."""
        if part is None or not self.consecutive:
            return self
        if not isinstance(part, slice):
            return self._replace(consecutive=False)
        # not slice.indices: sizes may be symbols
        limits = part.start or 0, count if part.stop is None else part.stop
        first, end = (at + count if at < 0 else at for at in limits)
        return Extent(self.low + first, self.low + end - 1, True)

    @classmethod
    def of(cls, x: Tensor) -> "Extent | None":
        """None: the numbers are fractional, have several axes, or cannot be read without waiting for a device."""
        if torch.compiler.is_compiling() or x.device.type != "cpu" or x.dim() != 2 or x.is_floating_point():
            return None
        if interpreted():
            return None
        low, high = map(int, x.aminmax())
        return cls(low, high, high - low == x.shape[1] - 1 and bool((x.diff(dim=1) == 1).all()))


PAIRS = (
    ("q", "k"), ("q_order", "k_order"), ("q_valid", "valid"), ("q_document", "k_document"), ("q_placed", "k_placed"),
)  # fmt: skip
"""The tensors of `Positions`, of the queries and of the keys; and there is `prefix`, of the keys."""

TENSORS = (*chain.from_iterable(PAIRS), "prefix")


def taken(x: T, cut: Cut) -> T:
    """The tokens of a tensor, or None, that a cut takes."""
    if not isinstance(x, Tensor) or cut is None:
        return x
    return x[:, cut] if isinstance(cut, slice) else cut(x)  # type: ignore[return-value]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Visibility(Shared):
    """Which keys each query sees. Everything that restricts it is a field here, and whatever is derived from positions takes
    all fields along, see `Positions.derived` and `Positions.select`."""

    q_order: Tensor
    """(batch or 1, n) integers: a causal query sees the keys whose order is at most its own. Separate from the
    positions, which may be shared by tokens, fractional or restart per document."""
    k_order: Tensor
    """Likewise, of the keys"""
    causal: bool = False
    """Whether order restricts what a query sees"""
    valid: Tensor | None = None
    """(batch or 1, num_keys) bool; False marks padding. None: every key is valid."""
    q_valid: Tensor | None = None
    """(batch or 1, num_queries) bool, the same for queries; a query that is padding sees nothing"""
    q_document: Tensor | None = None
    """(batch or 1, n) integers; a query sees keys of its document. None: one document."""
    k_document: Tensor | None = None
    """Likewise, of the keys"""
    prefix: Tensor | None = None
    """(batch or 1, num_keys) bool: keys that causal queries before them see, too, see `Positions.with_prefix`"""
    window: Window | None = None
    """How many tokens before and after it a query sees, counted by their order, see `Positions.with_window`"""
    blocks: tuple[VisibleBlocks, ...] = ()
    """Which blocks of tokens see one another, see `Positions.with_blocks`; a query sees what all of them leave"""
    counted: bool = True
    """Whether this says all of what is visible. False: a mask beside it hides more, as a 4-D mask of transformers does, so
    `visible_counts` and `Positions.lengths` refuse to count."""

    # computed from the ids when the object is made, see `_relate`
    start: tuple[int, int] | None = field(default=None, init=False)
    """(first query position, first key position) when both run contiguously by ones, identically in every row and, where
    order matters, as their orders do, with nothing padded or packed: the case that fused paths recognise without reading a tensor"""
    diagonal: int | None = field(default=None, init=False)
    """A causal query at index i sees the keys up to index i + diagonal, its order less that of key 0 where the orders
    run by ones. None: rows differ, there is a prefix, or it is not known without waiting for a device."""
    rows: int = field(default=1, init=False)
    hides_tokens: bool = field(default=True, init=False)
    """Whether there is padding, or more than one document."""
    unmasked: bool = field(default=False, init=False)
    """True if only causality restricts what a query sees."""
    span: tuple[int, int] | None = field(default=None, init=False)
    """(shortest, longest) distance that a query may have from a key. None: not known, or far more than there are tokens."""

    def _relate(self, q: Extent | None, k: Extent | None, q_order: Extent | None, k_order: Extent | None) -> None:
        """Compute what the ids of queries have to do with those of keys, of what is known of each."""
        start = diagonal = span = None
        hides = self.valid is not None or self.q_valid is not None or self.q_document is not None
        unmasked = not hides and self.prefix is None and self.window is None and len(self.blocks) == 0
        if q_order is not None and k_order is not None and q_order.consecutive and k_order.consecutive:
            diagonal = q_order.low - k_order.low
        if q is not None and k is not None:
            ordered = diagonal == q.low - k.low or not (self.causal or self.window)
            if q.consecutive and k.consecutive and ordered and not hides:
                start = q.low, k.low
            span = q.low - k.high, q.high - k.low
            if start is None and span[1] - span[0] > 2 * (self.num_queries + self.num_keys):
                span = None  # a table of all distances would be larger than what it is for
        diagonal = None if self.prefix is not None else diagonal
        facts = {"start": start, "diagonal": diagonal, "span": span, "rows": self._rows()}
        for name, value in (facts | {"hides_tokens": hides, "unmasked": unmasked}).items():
            object.__setattr__(self, name, value)

    @property
    def num_queries(self) -> int:
        return self.q_order.shape[1]

    @property
    def num_keys(self) -> int:
        return self.k_order.shape[1]

    @property
    def batch(self) -> int:
        """Number of different rows; 1 if all rows of a batch are the same."""
        return self._rows() if torch.compiler.is_dynamo_compiling() else self.rows

    def _rows(self) -> int:
        every = [getattr(self, name) for name in TENSORS]  # torch.compile does not trace operator.attrgetter
        rows = [x.shape[0] for x in (*every, *chain.from_iterable(self.blocks)) if x is not None]
        most = max(rows)
        if not torch.compiler.is_compiling() and {*rows} - {1, most}:
            counts = " and ".join(map(str, sorted({*rows} - {1})))
            raise InputError(f"tokens of {counts} rows: give one row, or as many")
        return most

    def mask_mod(self) -> MaskMod:
        """Visibility in FlexAttention's signature, (batch, head, query index, key index) -> bool, broadcastable."""
        q_order, k_order = rowwise(self.q_order), rowwise(self.k_order)
        valid, q_valid, prefix = (None if x is None else rowwise(x) for x in (self.valid, self.q_valid, self.prefix))
        documents = None
        if self.q_document is not None and self.k_document is not None:
            documents = rowwise(self.q_document), rowwise(self.k_document)
        causal, (before, after) = self.causal, self.window or (None, None)
        blocks = [each.mask_mod() for each in self.blocks]

        def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            seen = (b >= 0) & (i >= 0) & (j >= 0)
            if causal:
                past = k_order(b, j) <= q_order(b, i)
                seen = seen & (past if prefix is None else past | prefix(b, j))
            if before is not None:
                seen = seen & (q_order(b, i) - k_order(b, j) <= before)
            if after is not None:
                seen = seen & (k_order(b, j) - q_order(b, i) <= after)
            if valid is not None:
                seen = seen & valid(b, j)
            if q_valid is not None:
                seen = seen & q_valid(b, i)
            if documents is not None:
                seen = seen & (documents[0](b, i) == documents[1](b, j))
            for block in blocks:
                seen = seen & block(b, h, i, j)
            return seen

        return visible

    def mask(self, first: int = 0, end: int | None = None) -> Tensor:
        """Visibility as a dense bool tensor, (batch or 1, 1, num_queries, num_keys): True where a query sees a key.
        first, end: for these queries only.

        Raises:
            InputError: they are not a range of the queries.
        """
        whole = end is None or (type(end) is int and end == self.q_order.shape[1])
        if type(first) is not int or first != 0 or not whole:
            check_range(first, self.num_queries if end is None else end, self.num_queries)
        q_order = self.q_order[:, None, first:end, None]
        if self.causal and self.unmasked:
            return self.k_order[:, None, None] <= q_order
        b, h, i, j = grid_indices(self.batch, 1, q_order.shape[2], self.num_keys, q_order.device)
        return self.mask_mod()(b, h, i + first, j)

    @property
    def all_visible(self) -> bool:
        """True if every query sees every key; False also if a tensor would have to be read to know it."""
        before, after = self.window or (None, None)
        if self.hides_tokens or self.prefix is not None or len(self.blocks) > 0:
            return False
        if not self.causal and self.window is None:
            return True
        if self.diagonal is None:
            return False
        ahead = self.num_keys - 1 - self.diagonal  # tokens that query 0 would see after itself
        if self.causal and ahead > 0:
            return False
        return (before is None or self.num_queries - 1 + self.diagonal <= before) and (after is None or ahead <= after)

    def hidden(self) -> tuple[Hidden | None, Hidden | None]:
        """The queries that are padding, and the keys that no query sees: padding, and what comes after every query, as free
        slots of a cache do. None: there are none. What only a window or a document hides is a token."""
        if self.valid is None and self.q_valid is None and (not self.causal or self.q_order is self.k_order):
            return None, None
        return self.shared("hidden", self._hidden)

    def _hidden(self) -> tuple[Hidden | None, Hidden | None]:
        queries = None if self.q_valid is None else ~self.q_valid
        keys = None if self.valid is None else ~self.valid
        ahead = None if self.diagonal is None else self.num_keys - self.diagonal - self.num_queries
        if self.causal and self.q_order is not self.k_order and (ahead is None or ahead > 0):
            later = self.k_order > self.q_order.amax(1, keepdim=True)
            later = later if self.prefix is None else later & ~self.prefix
            keys = later if keys is None else keys | later
        return Hidden.of(queries), Hidden.of(keys)

    @property
    def sees_future(self) -> bool:
        """Whether a query may see keys after itself."""
        return not self.causal or self.prefix is not None

    @property
    def region(self) -> Region:
        """The window as a region of distances in the tokens' order."""
        before, after = self.window or (None, None)
        if before is None and after is None:
            return EVERYTHING
        return Region(None if after is None else -after, None if before is None else before + 1)

    def require_counted(self) -> None:
        """Refuse positions that do not say all of what is visible, for what counts it."""
        if not self.counted:
            remedy = "pass a 2-D mask, or position_ids that start again with each document and use_cache=False"
            raise InputError(f"this encoding counts what is visible, which a 4-D mask hides: {remedy}")

    def visible_counts(self) -> Tensor:
        """How many keys each query sees, (batch or 1, num_queries)."""
        self.require_counted()
        if self.all_visible:
            return torch.full_like(self.q_order, self.num_keys)
        if len(self.blocks) > 0 or (self.prefix is not None and self.window is not None):
            rows = self.num_queries if torch.compiler.is_compiling() else 1024  # a mask of all is large
            ends = range(0, self.num_queries, rows)
            return torch.cat([self.mask(at, min(at + rows, self.num_queries))[:, 0].sum(-1) for at in ends], 1)
        before, after = self.window or (None, None)
        after = 0 if self.causal else after
        if not self.hides_tokens and self.start is not None and self.prefix is None:
            index = self.q_order - self.k_order[:, :1]
            end = torch.full_like(index, self.num_keys) if after is None else index + after + 1
            first = torch.zeros_like(index) if before is None else (index - before).clamp(0, self.num_keys)
            return (end.clamp(0, self.num_keys) - first).clamp(min=0)
        q, k, q_document, k_document, valid, prefix = (
            x if x is None else x.expand(self.batch, -1)
            for x in (self.q_order, self.k_order, self.q_document, self.k_document, self.valid, self.prefix)
        )
        assert q is not None
        assert k is not None
        if prefix is not None and self.causal:  # as if before every query
            k = torch.where(prefix, torch.minimum(k.amin(1, keepdim=True), q.amin(1, keepdim=True)), k)
        if q_document is None or k_document is None:
            q_document, k_document = torch.zeros_like(q), torch.zeros_like(k)
        counts = count_between(q, k, q_document, k_document, valid, (before, after))
        return counts if self.q_valid is None else counts * self.q_valid

    def of_queries(self, x: Tensor) -> Tensor:
        """Of a tensor over the keys, (batch, heads, num_keys, width), the part of the queries' tokens."""
        self.require_among_keys()
        if self.q_order is self.k_order:
            return x
        if self.diagonal is not None:
            return x[:, :, self.diagonal : self.diagonal + self.num_queries]
        slots = self.slots()[:, None, :, None].expand(x.shape[0], x.shape[1], -1, x.shape[3])
        return x.gather(2, slots)

    def slots(self) -> Tensor:
        """Which key each query is, (batch or 1, num_queries), where keys lie in their order."""
        return self.q_order - self.k_order[:, :1]

    def as_keys(self, of_keys: Tensor, alone: Callable[[], Tensor]) -> Tensor:
        """Of a number for each key, (batch or 1, num_keys), those of the queries' tokens, (batch or 1, num_queries); `alone` makes them
        where queries are other tokens, as in cross-attention."""
        if self.q_order is self.k_order and self.q_document is self.k_document:
            return of_keys
        slots = self.slots()
        index = slots.clamp(0, self.num_keys - 1)
        among = slots == index
        if self.q_document is not None and self.k_document is not None:
            among = among & (select(self.k_document, index) == self.q_document)
        return torch.where(
            among.all(), select(of_keys, index), alone()
        )  # without reading, for which a device would wait

    def require_among_keys(self) -> None:
        """Refuse queries of other tokens than the keys, for what a layer's input says of each key's token alone."""
        if self.q_order is self.k_order:
            return
        if self.diagonal is not None:
            fits = 0 <= self.diagonal <= self.num_keys - self.num_queries
        elif torch.compiler.is_compiling() or self.q_order.device.type != "cpu":
            return  # reading them would wait for the device
        else:
            fits = self.shared("among keys", lambda: bool(((self.slots() >= 0) & (self.slots() < self.num_keys)).all()))
        if not fits:
            what = f"the {self.num_queries} queries are not among the {self.num_keys} keys"
            raise InputError(f"{what}, whose tokens the gates are of: pass positions of self-attention")

    def require_full_sequence(self, why: str, remedy: str = "pass the full sequence") -> None:
        """Refuse queries that are only some of a sequence's tokens, as with a cache, for what needs all of them."""
        if self.num_queries != self.num_keys:
            some = f"only {self.num_queries} of {self.num_keys} tokens are here"
            raise InputError(f"{why}, so it needs the full sequence: {some}; {remedy}")

    def in_blocks(self, size: int, table: Tensor | None) -> VisibleBlocks:
        """The blocks of `Positions.with_blocks`."""
        numbers = [
            at if tokens is None else at * tokens
            for at, tokens in zip(self.from_first(), (self.q_valid, self.valid), strict=True)
        ]
        table = table if table is None or table.dim() == 3 else table[None]
        of_q, of_k = (index.clamp(min=0) // size for index in numbers)
        blocks = VisibleBlocks(None if table is None else table.to(of_q.device), of_q, of_k)
        blocks.check(size, self.batch)
        return blocks

    def from_first(self) -> tuple[Tensor, Tensor]:
        """How far each query and each key is, by order, from the first token of its row or document, (batch or 1, n)."""
        if self.q_document is not None and self.k_document is not None:
            alone, of_keys = partial(index_in_document, self.q_document), index_in_document(self.k_document)
            return self.as_keys(of_keys, alone), of_keys
        order = self.k_order
        if self.valid is not None:
            order = order.masked_fill(~self.valid, torch.iinfo(torch.long).max)
        first = order.amin(1, keepdim=True)
        return self.q_order - first, self.k_order - first


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

    b, h = torch.arange(batch, device=device), torch.arange(heads, device=device)
    i, j = torch.arange(queries, device=device), torch.arange(keys, device=device)
    return b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1), i.view(1, 1, -1, 1), j.view(1, 1, 1, -1)


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
