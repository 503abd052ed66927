# SPDX-License-Identifier: Apache-2.0
"""Attention with terms of position as one operator, in memory that grows with the sequence and not with its square.

Forward runs the CPU's flash kernel, block of queries by block of queries, with a mask made on the spot: for biases of
the distance alone no mask at all but a strided (Hankel) view of their vector, for everything else a tile in cache.
Backward recomputes the weights tile by tile from the saved log-sum-exp. What is invisible is never visited, and
neither are keys whose bias alone makes their weight vanish. To compilers the operator is opaque: one graph serves
every length.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from posenc.backends.call import Call
from posenc.backends.tiles import Slice, Term, Tile, skew

# private: where a release of PyTorch has them no more, the same equation is computed by its public operations
_flash: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_flash_backward: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def _hankel(vector: Tensor, tile: Tile, batch: int) -> Tensor:
    """The vector as a mask for the tile's queries in reverse, (batch, heads, rows, columns): no copy."""
    offset = vector.storage_offset() + tile.heads[0] * vector.stride(0) + tile.first
    return vector.as_strided((batch, *tile.shape), (0, vector.stride(0), 1, 1), offset)


def forward(calls: list[Call]) -> tuple[Tensor, Tensor]:
    """Output (batch, heads, queries, value width) and log-sum-exp (batch, heads, queries) of one softmax over the calls,
    which are about different keys of the same queries."""
    first, *others = sorted(calls, key=lambda call: call.vector is not None)  # whole rectangles are best not merged
    q, v = first.q, first.v
    # laid out as models project: what follows merges the heads without a copy
    shape, dtype = (q.shape[0], q.shape[2], q.shape[1], v.shape[3]), first.precise if others else q.dtype
    out = q.new_zeros(shape, dtype=dtype).transpose(1, 2)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=first.precise)
    for call in (first, *others):
        if call.values is not None or call.dropout_p > 0 or _flash is None:
            _plain_forward(call, out, lse, merge=call is not first)
            continue
        for block in _flash_blocks(call):
            found, sums = _flash(*block.inputs(call), 0.0, block.causal, attn_mask=block.mask, scale=call.scale)
            found = found[..., : v.shape[3]]
            if others and call.terms and block.mask is not None:  # the kernel's sum over no keys is 0
                sums = sums.masked_fill((block.mask == -torch.inf).all(-1), -torch.inf)
            if block.reverse:
                found, sums = found.flip(2), sums.flip(2)
            if call is first:
                block.queries_of(out).copy_(found)
                block.queries_of(lse).copy_(sums)
            else:
                _merge(block.queries_of(out), block.queries_of(lse), found, sums)
    return out.to(q.dtype), lse


def _merge(out: Tensor, lse: Tensor, found: Tensor, sums: Tensor) -> None:
    """Bring the output and log-sum-exp of further keys into those there are."""
    total = torch.logaddexp(lse, sums)
    anchor = total.masked_fill(total == -torch.inf, 0.0)  # nothing visible yet
    out.mul_((lse - anchor).exp_()[..., None]).addcmul_(found.to(out.dtype), (sums - anchor).exp_()[..., None])
    lse.copy_(total)


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
        for row, heads, tiles in call.regions(whole_rows=True):
            _enter(call.terms, row, heads)
            for tile in tiles:
                mask = call.bias(tile)[None]
                yield _Block((row, row + 1), heads, tile.queries, tile.keys, False, mask, False)
        return
    shared = all(own == -1 for own, *_ in call.rectangles)
    for row in [-1] if shared else range(call.q.shape[0]):
        batch = (0, call.q.shape[0]) if row < 0 else (row, row + 1)
        for band in call.bands:
            for queries, keys, diagonal in call.blocks(row, band, call.rows(band)):
                if call.vector is None:
                    yield _Block(batch, band.heads, queries, keys, call.square, None, False)
                    continue
                tile = call.tile(row, band.heads, queries, keys, diagonal)
                mask = _hankel(call.vector, tile, batch[1] - batch[0])
                yield _Block(batch, band.heads, queries, keys, False, mask, True)


def _enter(terms: list[Term], row: int, heads: Slice) -> None:
    for term in terms:
        term.enter(row, heads)


def _plain_forward(call: Call, out: Tensor, lse: Tensor, merge: bool) -> None:
    """The equation as it stands, a block at a time: dropout and terms on the values need the weights."""
    call.pack(call.precise)
    number = 0
    for row, heads, tiles in call.regions(whole_rows=True):
        _enter(call.every_term, row, heads)
        for tile in tiles:
            scores = _scores(call, tile)
            here = row, slice(*heads), slice(*tile.queries)
            sums = scores.logsumexp(-1)
            weights, by_distance = _weights(call, tile, scores, sums)
            if call.dropout_p > 0:
                weights *= _kept(call, weights, number)
            found = weights @ _cut_kv(call, call.v, tile)
            if by_distance is not None and call.values is not None:
                found += call.values.output(by_distance, tile)
            if merge:
                _merge(out[here], lse[here], found, sums)
            else:
                out[here], lse[here] = found.to(out.dtype), sums
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


def backward(
    calls: list[Call], firsts: list[int], v: Tensor, out: Tensor, lse: Tensor, grad: Tensor, of_lse: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Gradients of each call's q and k, and of v; those of the terms are left with them. firsts: which of v's keys is
    each call's first."""
    like = calls[0]
    learns = any(x is not None for term in like.every_term for x in term.grads)
    plain = learns or like.values is not None or like.dropout_p > 0 or _flash_backward is None or bool(of_lse.any())
    if plain:
        grad = grad.to(like.precise).contiguous()
        # sum_j P_ij dP_ij, less what reaches the scores through the log-sum-exp
        offset = (grad * out).sum(-1) - of_lse
    of_q, of_k, of_v = [], [], v.new_zeros(v.shape, dtype=like.precise)
    for call, first in zip(calls, firsts, strict=True):
        totals = [x.new_zeros(x.shape, dtype=call.precise) for x in (call.q, call.k)]
        totals.append(of_v[:, :, first : first + call.k.shape[2]])
        if plain:
            _plain_gradients(call, lse, grad, offset, totals)
        else:
            _flash_gradients(call, out, lse, grad, totals)
        of_q.append(totals[0].to(v.dtype))
        of_k.append(totals[1].to(v.dtype))
    return of_q, of_k, of_v.to(v.dtype)


def _plain_gradients(call: Call, lse: Tensor, grad: Tensor, offset: Tensor, totals: list[Tensor]) -> None:
    """Tile by tile, from the weights. offset: see `backward`; totals: of q, k and v."""
    call.pack(call.precise)
    number = 0
    for row, heads, tiles in call.regions(whole_rows=call.dropout_p > 0):
        _enter(call.every_term, row, heads)
        for tile in tiles:
            here = row, slice(*heads), slice(*tile.queries)
            weights, by_distance = _weights(call, tile, _scores(call, tile), lse[here])
            share = _kept(call, weights, number) if call.dropout_p > 0 else None
            _backward_tile(call, tile, weights, by_distance, share, grad[here], offset[here], totals)
            number += 1
        for term in call.every_term:
            term.leave()


def _flash_gradients(call: Call, out: Tensor, lse: Tensor, grad: Tensor, totals: list[Tensor]) -> None:
    """The kernel's own backward, where no term learns. totals: of q, k and v."""
    of_q, of_k, of_v = totals
    for block in _flash_blocks(call):
        q, k, v = block.inputs(call)
        rows = [_widened(block.queries_of(x), q.shape[-1]) for x in (grad, out)] + [block.queries_of(lse)]
        g, o, sums = (x.flip(2) for x in rows) if block.reverse else rows
        found = _flash_backward(g, q, k, v, o, sums, 0.0, block.causal, attn_mask=block.mask, scale=call.scale)
        own = found[0][..., : call.q.shape[-1]]
        block.queries_of(of_q).add_(own.flip(2) if block.reverse else own)
        for total, part in ((of_k, found[1]), (of_v, found[2])):
            block.keys_of(total, call).add_(part[..., : total.shape[-1]])


def _backward_tile(
    call: Call, tile: Tile, weights: Tensor, by_distance: Tensor | None, share: Tensor | None, g: Tensor, offset: Tensor,
    totals: list[Tensor],
) -> None:  # fmt: skip
    """Add a tile's part of every gradient. share: what dropout multiplies the weights by; g: the output's gradient."""
    of_q, of_k, of_v = totals
    here = tile.row, slice(*tile.heads), slice(*tile.queries)
    queries, keys, values = call.q[here], _cut_kv(call, call.k, tile), _cut_kv(call, call.v, tile)
    if call.values is None:
        change = call.scratch.take("change", *tile.shape)
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
