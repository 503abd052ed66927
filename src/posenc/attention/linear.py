# SPDX-License-Identifier: Apache-2.0
"""Linear attention under a rotary encoding."""

from collections.abc import Callable
from typing import Never

import torch
from torch import Tensor
from torch.nn.functional import elu, pad

from posenc.attention.call import Call, check_names, checked, effects_of, gathered, given
from posenc.encoding import Encoding, Gates, Pass
from posenc.errors import InputError, check_integers
from posenc.functional import exactly
from posenc.positions import Positions


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, positive everywhere (Katharopoulos et al. 2020, eq. 7)."""
    return elu(x) + 1


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: Encoding | Pass | None = None,
    positions: Positions | None = None,
    *,
    feature: Callable[[Tensor], Tensor] = elu_plus_one,
    causal: bool | None = None,
    layer: int = 0,
    chunk_size: int = 64,
    gates: Gates = None,
    **others: Never,
) -> Tensor:
    """Linear attention under a rotary encoding: (batch, num_heads, num_queries, head_dim of v), in q's dtype.

    o_i = sum_j (R_i f(q_i)) . (R_j f(k_j)) v_j / sum_j f(q_i) . f(k_j), over the keys j that i sees: the rotation R
    comes after the feature map f, and in the numerator alone, so the denominator stays positive. Weights may be
    negative and need not add up to 1 (Su et al. 2021, "RoFormer", eq. 19; Katharopoulos et al. 2020 without R).

    Args:
        q, k, v, encoding, positions, causal, layer, gates: as in `posenc.attention`. With a cache, k and v are all of the
            keys and values. encoding may act by `rotate` and `rotate_values` alone.
        feature: a map to non-negative values, applied to q and k.
        chunk_size: tokens whose mutual weights are formed at a time; it changes the cost and not the result.

    Time and memory are linear in the length; packed documents add a product of chunk by chunk. A query whose
    denominator is zero, such as one that sees no key, gets zeros.

    Raises:
        InputError: shapes that do not fit, or an encoding that acts on scores or values or is not `isometric`.
    """
    if others:
        check_names("linear_attention", others)
    check_integers(1, chunk_size=chunk_size)
    call = given(Call(q, k, v, encoding, positions, causal, layer=layer, gates=gates))
    with exactly(q):
        return _summed(call, feature, chunk_size)


ALLOWED = {"augment", "embed", "gates", "rotate", "rotate_values"}
"""Where an encoding may act"""


def _summed(call: Call, feature: Callable[[Tensor], Tensor], chunk_size: int) -> Tensor:
    """`linear_attention` of a call."""
    if call.positions is not None and call.positions.sharding is not None:
        call = gathered(call, call.positions)
    call = checked(call)
    acting, positions, q, k, v = call.acting, call.at, call.q, call.k, call.v
    for leaf in acting.leaves:
        name, refused = leaf.encoding.known_as, ", ".join(site for site in leaf.sites if site not in ALLOWED)
        if not leaf.encoding.isometric:
            remedy = "use one that only turns them, such as rope"
            raise InputError(f"{name} changes the norms, which the denominator would not follow: {remedy}")
        if refused:
            raise InputError(
                f"linear attention has no scores for {name} ({refused}): use an encoding that only rotates"
            )
    assert positions is not None
    if positions.window is not None or positions.blocks:
        raise InputError("linear attention has no windows and blocks: use posenc.attention")
    precise = torch.promote_types(q.dtype, torch.float32)
    fq, fk = feature(q.to(precise)), feature(k.to(precise))
    effects = effects_of(call)
    (rq, rk), v = effects.rotated(fq, fk), effects.values_rotated(v)
    if positions.valid is not None:
        fk, rk, v = (x.masked_fill(~positions.valid[:, None, :, None], 0.0) for x in (fk, rk, v))
    summed = _RunningSums(positions, k.shape[1], chunk_size)
    total = summed(rq, rk, v.to(precise))
    weight = summed(fq, fk, torch.ones_like(fk[..., :1]))
    out = total / weight.masked_fill(weight == 0, torch.inf)
    if positions.q_valid is not None:
        out = out.masked_fill(~positions.q_valid[:, None, :, None], 0.0)
    return effects.rotated_back(out.to(q.dtype))


class _RunningSums:
    """sum_j (q_i . k_j) v_j over the keys that each query sees.

    Without causality or documents that is one product. Otherwise queries and keys are brought into one stream, sorted
    by document, then by order (all equal if not causal), keys before queries: now each query sees what stands before
    it in its document, whatever was padded, cached or packed, and one running sum serves all.
    """

    def __init__(self, positions: Positions, kv_heads: int, chunk_size: int) -> None:
        self.kv_heads, self.chunk_size, self.keys = kv_heads, chunk_size, positions.num_keys
        self.index: Tensor | None = None
        self.documents: Tensor | None = None
        documents = positions.q_document, positions.k_document
        packed = documents[0] is not None and documents[1] is not None
        self.all = (not positions.causal or positions.all_visible) and not packed
        # queries and keys that are the same tokens in order are a stream already
        square = positions.num_queries == positions.num_keys and positions.sharding is None
        square = square and positions.prefix is None
        if self.all or (square and positions.start is not None and positions.start[0] == positions.start[1]):
            return
        rows = positions.batch
        k_order, q_order = positions.k_order, positions.q_order
        if positions.prefix is not None:  # as if before every query
            k_order = torch.where(positions.prefix, torch.minimum(k_order, q_order.amin(1, keepdim=True)), k_order)
        order = torch.cat((k_order.expand(rows, -1), q_order.expand(rows, -1)), 1)
        if not positions.causal:
            order = torch.zeros_like(order)
        self.index = order.argsort(dim=1, stable=True)
        if documents[0] is not None and documents[1] is not None:
            both = torch.cat((documents[1].expand(rows, -1), documents[0].expand(rows, -1)), 1)
            self.index = self.index.gather(1, both.gather(1, self.index).argsort(dim=1, stable=True))
            self.documents = both.gather(1, self.index)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q.unflatten(1, (self.kv_heads, -1))  # (batch, kv heads, queries per key, n, width)
        k, v = k[:, :, None], v[:, :, None]
        if self.all:
            out = q @ (k.mT @ v)
        elif self.index is None:
            out = self.running(q, k, v)
        else:
            q = _take(pad(q, (0, 0, self.keys, 0)), self.index)
            k, v = (_take(pad(x, (0, 0, 0, self.index.shape[1] - self.keys)), self.index) for x in (k, v))
            out = _take(self.running(q, k, v), self.index.argsort(1)[:, self.keys :])
        return out.flatten(1, 2)

    def running(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Over (..., n, width): the keys up to and including each query itself, of its document."""
        length, size = q.shape[-2], self.chunk_size
        missing = -length % size
        q, k, v = (pad(x, (0, 0, 0, missing)).unflatten(-2, (-1, size)) for x in (q, k, v))
        near = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
        if self.documents is None:
            states = (k.mT @ v).cumsum(-3)
            before = pad(states, (0, 0, 0, 0, 1, 0))[..., :-1, :, :]
            far = q @ before
        else:
            # within a chunk only its last document can go on, and a chunk's start only goes on from the last one's
            # end; a sum of the chunks that end in the same document needs no subtraction of the others
            ids = pad(self.documents[:, None, None], (0, missing)).unflatten(-1, (-1, size))
            near = near & (ids[..., :, None] == ids[..., None, :])
            last = ids[..., -1]
            states = (k * (ids == last[..., None])[..., None]).mT @ v
            carried = last.roll(1, -1)
            chunk = torch.arange(last.shape[-1], device=q.device)
            going = (carried[..., :, None] == last[..., None, :]) & (chunk[:, None] > chunk)
            before = (going.to(q) @ states.flatten(-2)).unflatten(-1, states.shape[-2:])
            far = (q * (ids == carried[..., None])[..., None]) @ before
        out = (q @ k.mT * near) @ v + far
        return out.flatten(-3, -2)[..., :length, :]


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Tokens of (batch, heads, groups, n, width) at (batch or 1, m) indices."""
    index = index[:, None, None, :, None].expand(*x.shape[:3], -1, x.shape[-1])
    return x.gather(3, index)
