"""Attention with terms of position as one operator, in memory that grows with the sequence and not with its square.

Forward runs the CPU's flash kernel, block of queries by block of queries, with a mask made on the spot: for biases of
the distance alone no mask at all but a strided (Hankel) view of their vector, for everything else a tile in cache.
Backward recomputes the weights tile by tile from the saved log-sum-exp. What is invisible is never visited, and
neither are keys whose bias alone makes their weight vanish. To compilers the operator is opaque: one graph serves
every length.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from posenc.backends.tiles import Any, OfDistance, OfKey, OfQuery, OnValues, Product, Scratch, Slice, Term, Tile, skew

KINDS: dict[str, type[Term]] = {
    "distance": OfDistance, "query": OfQuery, "key": OfKey, "product": Product, "any": Any, "values": OnValues,
}  # fmt: skip

ROWS = 256
"""Queries of a tile."""
COLUMNS = 1024
"""Keys of a tile, where the softmax is known already: with ROWS, what stays in a core's second-level cache."""
NEGLIGIBLE = 40.0
"""A weight below e^-40 of its row's largest is beyond what float32 can see, 2^-24, even 10^10 times."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass
class Call:
    """One call: tensors, and what is visible of their products."""

    q: Tensor
    k: Tensor
    v: Tensor
    terms: list[Term]
    values: OnValues | None
    table: list[int]
    causal: bool
    scale: float
    longest: int
    dropout_p: float
    seed: int

    def __post_init__(self) -> None:
        self.precise = torch.promote_types(self.q.dtype, torch.float32)
        self.groups = self.q.shape[1] // self.k.shape[1]
        self.scratch = Scratch(self.q.new_empty(0, dtype=self.precise))
        # no terms, and every rectangle causal from its first query and key on, which the kernel knows by itself
        self.square = not self.terms and self.causal and all(q0 + d == k0 for _, q0, _, k0, _, d in self.segments)
        self.vector = self._vector()
        self.bands = [(0, self.q.shape[1], 0, 2**62)]
        if self.vector is not None and self.terms:
            self.bands = self._bands(self.vector)

    def _vector(self) -> Tensor | None:
        """The terms, if a vector of distances is all there is: minus infinity for the future."""
        if self.values is not None or self.dropout_p or any(not isinstance(t, OfDistance) for t in self.terms):
            return None
        if self.terms:
            vector = self.terms[0].tensors[0].contiguous()
        elif self.causal and not self.square:
            width = self.longest + self.q.shape[2] + self.k.shape[2] + 1
            vector = self.scratch.like.new_zeros(1, width).expand(self.q.shape[1], -1)
        else:
            return None
        if self.causal:
            vector = vector.clone()
            vector[:, self.longest + 1 :] = -torch.inf
        return vector

    def _bands(self, vector: Tensor) -> list[tuple[int, int, int, int]]:
        """Heads (first, end) and the entries of the vector (first, end) beyond which weights are negligible.

        |scale q . k| is at most peak, so a key's score is at most its bias + peak, and the query's own is at least its
        bias - peak: a bias lower than that of distance 0 by 2 peak + NEGLIGIBLE cannot matter.
        """
        heads, width = vector.shape
        own = 0 <= self.longest < width and all(d + q0 >= k0 and d + q1 <= k1 for _, q0, q1, k0, k1, d in self.segments)
        if not own or self.q.dtype == torch.float64:
            return [(0, heads, 0, width)]
        norms = [x.float().square().sum(-1).amax((0, 2)).sqrt() for x in (self.q, self.k)]
        peak = abs(self.scale) * norms[0] * norms[1].repeat_interleave(self.groups)
        matters = vector >= (vector[:, self.longest] - 2 * peak - NEGLIGIBLE)[:, None]
        matters[:, self.longest] = True  # whatever NaN there may be
        matters = matters.unflatten(0, (-1, self.groups)).any(1)  # heads that share keys go together
        first = matters.int().argmax(1).tolist()
        end = (width - matters.flip(1).int().argmax(1)).tolist()
        found: list[tuple[int, int, int, int]] = []
        for group, band in enumerate(zip(first, end, strict=True)):
            before = found.pop() if found and found[-1][2:] == band else None
            start = group * self.groups if before is None else before[0]
            found.append((start, (group + 1) * self.groups, *band))
        return found

    def pack(self, dtype: torch.dtype | None = None) -> None:
        """Queries, keys and values in one piece per head, which blocks of one head read faster than a model's layout."""
        self.q, self.k, self.v = (x.to(dtype or x.dtype).contiguous() for x in (self.q, self.k, self.v))

    @property
    def every_term(self) -> list[Term]:
        return self.terms if self.values is None else [*self.terms, self.values]

    @property
    def segments(self) -> Iterator[tuple[int, ...]]:
        return (tuple(self.table[at : at + 6]) for at in range(0, len(self.table), 6))

    def blocks(self, row: int, first: int, end: int, rows: int) -> Iterator[tuple[Slice, Slice, int]]:
        """(queries, keys they see, diagonal) of every block of at most `rows` queries in a row of the batch, or in
        what all rows share (-1); keys within entries first .. end of a vector of distances."""
        for own, q0, q1, k0, k1, diagonal in self.segments:
            if own not in (-1, row):
                continue
            q0 = max(q0, k0 - diagonal) if self.causal else q0  # earlier ones see nothing
            for i0 in range(q0, q1, rows):
                i1 = min(q1, i0 + rows)
                # entry e is at distance longest - e, and query i at distance i - j + diagonal from key j
                away = self.longest - diagonal
                j0, j1 = max(k0, i0 - away + first), min(k1, i1 - 1 - away + end)
                if self.causal:
                    j1 = min(j1, i1 + diagonal)
                if j0 < j1:
                    yield (i0, i1), (j0, j1), diagonal

    def regions(self, columns: int | None) -> Iterator[tuple[int, Slice, list[Tile]]]:
        """Row of the batch, a few heads, and the tiles of all that is visible there: of ROWS queries and so many keys,
        or every key that the queries see."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        step = keys if columns is None else min(keys, columns)
        cells = max(min(queries, ROWS) * step, *(term.kept for term in self.every_term), 0)
        for row in range(self.q.shape[0]):
            for h0, h1, first, end in self.bands:
                blocks = list(self.blocks(row, first, end, ROWS))
                for heads in self.head_blocks((h0, h1), cells):
                    tiles = [
                        self.tile(row, heads, rows, (j0, min(j0 + step, seen[1])), diagonal)
                        for rows, seen, diagonal in blocks
                        for j0 in range(*seen, step)
                    ]
                    yield row, heads, tiles

    def tile(self, row: int, heads: Slice, queries: Slice, keys: Slice, diagonal: int) -> Tile:
        return Tile(row, heads, queries, keys, self.longest - diagonal - (queries[1] - 1) + keys[0], diagonal)

    def hidden(self, tile: Tile) -> int | None:
        """The first column by distance that is in the future, if there is one."""
        if not self.causal:
            return None
        _, rows, columns = tile.shape
        column = tile.queries[1] - tile.keys[0] + tile.diagonal
        return column if column < rows + columns - 1 else None

    def bias(self, tile: Tile) -> Tensor:
        """The sum of the terms on a tile, (heads, rows, columns), minus infinity where the future is hidden."""
        heads, rows, columns = tile.shape
        hidden = self.hidden(tile)
        if hidden is None and not any(term.by_distance for term in self.terms):
            view, _ = self.scratch.take("bias", *tile.shape)
            fresh = True
        else:
            buffer, _ = self.scratch.take("bias", heads, rows, columns + rows - 1)
            fresh = True
            for term in self.terms:
                if term.by_distance:
                    term.add(buffer, tile, fresh)
                    fresh = False
            if fresh:
                buffer.zero_()
                fresh = False
            if hidden is not None:
                buffer[..., hidden:] = -torch.inf
            view = skew(buffer, columns)
        for term in self.terms:
            if not term.by_distance:
                term.add(view, tile, fresh)
                fresh = False
        return view.zero_() if fresh else view

    def kv_heads(self, heads: Slice) -> Slice:
        return heads[0] // self.groups, (heads[1] - 1) // self.groups + 1

    def head_blocks(self, heads: Slice, cells: int) -> Iterator[Slice]:
        """Heads in blocks of about 2 MiB of scores, none of which has several keys' heads under grouped queries."""
        step, h = max(1, 2**19 // max(cells, 1)), heads[0]
        while h < heads[1]:
            most = heads[1] if self.groups == 1 else (h // self.groups + 1) * self.groups
            yield h, min(h + step, most)
            h = min(h + step, most)


def _hankel(vector: Tensor, tile: Tile, batch: int) -> Tensor:
    """The vector as a mask for the tile's queries in reverse, (batch, heads, rows, columns): no copy."""
    offset = vector.storage_offset() + tile.heads[0] * vector.stride(0) + tile.first
    return vector.as_strided((batch, *tile.shape), (0, vector.stride(0), 1, 1), offset)


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """Output (batch, heads, queries, value width) and log-sum-exp (batch, heads, queries)."""
    q, v = call.q, call.v
    # laid out as models project: what follows merges the heads without a copy
    out = q.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=call.precise)
    if call.values is not None or call.dropout_p > 0:
        _plain_forward(call, out, lse)
        return out, lse
    for block in _flash_blocks(call):
        inputs, here = block.inputs(call), block.queries_of(out)
        found, sums = _flash(*inputs, 0.0, block.causal, attn_mask=block.mask, scale=call.scale)
        found = found[..., : v.shape[3]]
        here.copy_(found.flip(2) if block.reverse else found)
        block.queries_of(lse).copy_(sums.flip(2) if block.reverse else sums)
    return out, lse


@dataclass
class _Block:
    """One call of the flash kernel."""

    batch: Slice
    heads: Slice
    queries: Slice
    keys: Slice
    causal: bool
    mask: Tensor | None
    reverse: bool
    """The mask is for the queries in reverse."""

    def queries_of(self, x: Tensor) -> Tensor:
        return x[slice(*self.batch), slice(*self.heads), slice(*self.queries)]

    def keys_of(self, x: Tensor, call: Call) -> Tensor:
        return x[slice(*self.batch), slice(*call.kv_heads(self.heads)), slice(*self.keys)]

    def inputs(self, call: Call) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; the kernel wants one width, and zeros fill what is missing."""
        width = max(call.q.shape[-1], call.v.shape[-1])
        q = _widened(self.queries_of(call.q), width)
        k, v = (_widened(self.keys_of(x, call), width) for x in (call.k, call.v))
        return q.flip(2) if self.reverse else q, k, v


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else pad(x, (0, width - x.shape[-1]))


def _flash_blocks(call: Call) -> Iterator[_Block]:
    if call.terms and call.vector is None:
        call.pack()
        for row, heads, tiles in call.regions(None):
            _enter(call.terms, row, heads)
            for tile in tiles:
                mask = call.bias(tile)[None]
                yield _Block((row, row + 1), heads, tile.queries, tile.keys, False, mask, False)
        return
    shared = all(own == -1 for own, *_ in call.segments)
    for row in [-1] if shared else range(call.q.shape[0]):
        batch = (0, call.q.shape[0]) if row < 0 else (row, row + 1)
        for h0, h1, first, end in call.bands:
            narrow = call.causal or (call.vector is not None and end - first < call.vector.shape[1])
            rows = call.q.shape[2] if call.square else ROWS if narrow else 4 * ROWS
            for queries, keys, diagonal in call.blocks(row, first, end, rows):
                if call.vector is None:
                    yield _Block(batch, (h0, h1), queries, keys, call.causal, None, False)
                    continue
                tile = call.tile(row, (h0, h1), queries, keys, diagonal)
                mask = _hankel(call.vector, tile, batch[1] - batch[0])
                yield _Block(batch, (h0, h1), queries, keys, False, mask, True)


def _enter(terms: list[Term], row: int, heads: Slice) -> None:
    for term in terms:
        term.enter(row, heads)


def _plain_forward(call: Call, out: Tensor, lse: Tensor) -> None:
    """The equation as it stands, a block at a time: dropout and terms on the values need the weights."""
    call.pack(call.precise)
    number = 0
    for row, heads, tiles in call.regions(None):
        _enter(call.every_term, row, heads)
        for tile in tiles:
            scores = _scores(call, tile)
            here = row, slice(*heads), slice(*tile.queries)
            lse[here] = sums = scores.logsumexp(-1)
            weights, by_distance = _weights(call, tile, scores, sums)
            if call.dropout_p > 0:
                weights *= _kept(call, weights, number)
            found = weights @ _cut_kv(call, call.v, tile)
            if by_distance is not None and call.values is not None:
                found += call.values.output(by_distance, tile)
            out[here] = found.to(out.dtype)
            number += 1


def _cut_kv(call: Call, x: Tensor, tile: Tile) -> Tensor:
    """A tile's keys or values, (heads, columns, width)."""
    heads = tile.heads[1] - tile.heads[0]
    part = x[tile.row, slice(*call.kv_heads(tile.heads)), slice(*tile.keys)]
    return part if part.shape[0] == heads else part.expand(heads, -1, -1)


def _scores(call: Call, tile: Tile) -> Tensor:
    scores = call.bias(tile)
    q = call.q[tile.row, slice(*tile.heads), slice(*tile.queries)]
    return scores.baddbmm_(q, _cut_kv(call, call.k, tile).mT, alpha=call.scale)


def _weights(call: Call, tile: Tile, scores: Tensor, sums: Tensor) -> tuple[Tensor, Tensor | None]:
    """The softmax from its log-sum-exp: by key, and the same memory by distance where values need it."""
    scores -= sums.masked_fill(sums == -torch.inf, torch.inf)[..., None]  # nothing visible: no weight
    if call.values is None:
        return scores.exp_(), None
    by_distance = call.scratch.by_distance("weights", tile)
    return torch.exp(scores, out=skew(by_distance, tile.shape[2])), by_distance


def _kept(call: Call, weights: Tensor, number: int) -> Tensor:
    generator = torch.Generator(weights.device).manual_seed(call.seed + number)
    kept = torch.empty(weights.shape, dtype=weights.dtype, device=weights.device)
    return kept.bernoulli_(1 - call.dropout_p, generator=generator).div_(1 - call.dropout_p)


def backward(call: Call, out: Tensor, lse: Tensor, grad: Tensor, of_lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; those of the terms are left with them."""
    q, k, v, precise = call.q, call.k, call.v, call.precise
    learns = any(x is not None for term in call.every_term for x in term.grads)
    if not learns and call.values is None and call.dropout_p == 0 and not of_lse.any():
        return _flash_gradients(call, out, lse, grad)
    call.pack(precise)
    # sum_j P_ij dP_ij, less what reaches the scores through the log-sum-exp
    grad = grad.to(precise).contiguous()
    offset = (grad * out).sum(-1) - of_lse
    totals = [torch.zeros(x.shape, dtype=precise, device=x.device) for x in (q, k, v)]
    number = 0
    for row, heads, tiles in call.regions(None if call.dropout_p > 0 else COLUMNS):
        _enter(call.every_term, row, heads)
        for tile in tiles:
            here = row, slice(*heads), slice(*tile.queries)
            weights, by_distance = _weights(call, tile, _scores(call, tile), lse[here])
            share = _kept(call, weights, number) if call.dropout_p > 0 else None
            _backward_tile(call, tile, weights, by_distance, share, grad[here], offset[here], totals)
            number += 1
        for term in call.every_term:
            term.leave()
    of_q, of_k, of_v = (total.to(x.dtype) for total, x in zip(totals, (q, k, v), strict=True))
    return of_q, of_k, of_v


def _flash_gradients(call: Call, out: Tensor, lse: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel's own backward, where no term learns."""
    of_q, of_k, of_v = totals = [torch.zeros(x.shape, dtype=call.precise) for x in (call.q, call.k, call.v)]
    for block in _flash_blocks(call):
        q, k, v = block.inputs(call)
        rows = [_widened(block.queries_of(x), q.shape[-1]) for x in (grad, out)] + [block.queries_of(lse)]
        g, o, sums = (x.flip(2) for x in rows) if block.reverse else rows
        found = _flash_backward(
            g, q, k, v, o, sums, 0.0, block.causal, attn_mask=block.mask, scale=call.scale
        )  # fmt: skip
        own = found[0][..., : call.q.shape[-1]]
        block.queries_of(of_q).add_(own.flip(2) if block.reverse else own)
        for total, part in ((of_k, found[1]), (of_v, found[2])):
            block.keys_of(total, call).add_(part[..., : total.shape[-1]])
    of_q, of_k, of_v = (total.to(x.dtype) for total, x in zip(totals, (call.q, call.k, call.v), strict=True))
    return of_q, of_k, of_v


def _backward_tile(
    call: Call, tile: Tile, weights: Tensor, by_distance: Tensor | None, share: Tensor | None, g: Tensor, offset: Tensor,
    totals: list[Tensor],
) -> None:  # fmt: skip
    """Add a tile's part of every gradient. share: what dropout multiplies the weights by; g: the output's gradient."""
    of_q, of_k, of_v = totals
    here = tile.row, slice(*tile.heads), slice(*tile.queries)
    queries, keys, values = call.q[here], _cut_kv(call, call.k, tile), _cut_kv(call, call.v, tile)
    if call.values is None:
        change, _ = call.scratch.take("change", *tile.shape)
        torch.matmul(g, values.mT, out=change)
    else:
        change = skew(call.values.of_weights(g, tile), tile.shape[2]).baddbmm_(g, values.mT)
    kept = weights
    if share is not None:
        kept, change = weights * share, change * share
    _add_kv(call, of_v, tile, kept, g)
    change -= offset[..., None]
    slope = call.scratch.by_distance("slope", tile)
    inner = torch.mul(weights, change, out=skew(slope, tile.shape[2]))
    if by_distance is not None and call.values is not None:
        if share is not None:
            weights.copy_(kept)
        call.values.collect_output(g, by_distance, tile)
    for term in call.terms:
        term.collect(slope if term.by_distance else inner, tile)
    of_q[here].baddbmm_(inner, keys, alpha=call.scale)
    _add_kv(call, of_k, tile, inner, queries, call.scale)


def _add_kv(call: Call, total: Tensor, tile: Tile, weights: Tensor, x: Tensor, scale: float = 1.0) -> None:
    """Add weights^T x, (heads, columns, width), to the gradient of keys or values."""
    target = total[tile.row, slice(*call.kv_heads(tile.heads)), slice(*tile.keys)]
    if call.groups == 1:
        target.baddbmm_(weights.mT, x, alpha=scale)
    else:
        for of_head, of_x in zip(weights, x, strict=True):
            target[0].addmm_(of_head.T, of_x, alpha=scale)
