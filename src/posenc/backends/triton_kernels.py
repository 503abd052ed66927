# SPDX-License-Identifier: Apache-2.0
"""Our Triton kernels, imported only where one is called (`posenc.backends.triton`): attention with a relative table, without
gradients, in memory linear in the sequence, and rotating queries and keys in one launch.

The algorithm is FlashAttention-2's (Dao 2023), whose softmax is summed up tile by tile.
A pair (query i, key j) has the cell num_queries - 1 - i + j: the longest distance is cell 0. A bias of the distance is a
`vector` over cells; a product of the query with a table is `products`, one per query and row, and `row` names each cell's.

A tile of BLOCK_M x BLOCK_N pairs meets BLOCK_M + BLOCK_N - 1 cells only. Where they hold one number, as beyond a clip or
the last bucket, it is added once. Else they are read through a tile of pointers: the window stays in L1 and neighbouring
lanes read neighbouring addresses; tl.gather would take as many loads from shared memory, and a barrier.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc.backends.gpus import DTYPES, recorded
from posenc.errors import InputError, check_devices, check_word
from posenc.functional import Layout

LOG2E = tl.constexpr(1.4426950408889634)
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether kernels run on the CPU, under TRITON_INTERPRET=1."""


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    if INTERPRETED:  # Triton 3.9's interpreter multiplies the bit patterns of bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _inputs(x, stride_b, stride_h, stride_n, batch, head, at, n, d, D: tl.constexpr):
    """Rows `at` of one head, (rows, channels), with zeros past the ends."""
    start = x + batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h
    inside = (at < n)[:, None] & (d < D)[None, :]
    return tl.load(start + at[:, None].to(tl.int64) * stride_n + d[None, :], mask=inside, other=0.0)


@triton.jit
def _range(table, first_i, first_j, num_queries, num_keys, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The smallest entry of a table of cells that a tile meets, and for each query whether there is a larger one."""
    within = tl.minimum(tl.arange(0, 2 * max(BLOCK_M, BLOCK_N)), BLOCK_M + BLOCK_N - 2)
    cell = num_queries - BLOCK_M - first_i + first_j + within
    rows = tl.load(table + tl.minimum(tl.maximum(cell, 0), num_queries + num_keys - 2))
    least = tl.min(rows, 0)
    return least, tl.max(rows, 0) + tl.zeros((BLOCK_M,), rows.dtype) > least


@triton.jit
def _scores(
    q, k, i, j, first_i, first_j, vector, products, row, rows, scale, diagonal, num_queries, num_keys,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr, PRODUCTS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of scores times log2(e), (queries, keys); -inf where the query does not see the key. It has no branches: around
    one, ptxas serialises the products of tiles and spills registers."""
    s = _dot(q, tl.trans(k), PRECISION) * scale
    query, key = i[:, None], j[None, :]
    seen = (query < num_queries) & (key < num_keys)
    cell = num_queries - 1 - query + key
    if VECTOR:
        least, varies = _range(vector, first_i, first_j, num_queries, num_keys, BLOCK_M, BLOCK_N)
        # beyond T5's last bucket nothing is read
        s += tl.load(vector + cell, mask=seen & varies[:, None], other=least)
    if PRODUCTS:
        least, varies = _range(row, first_i, first_j, num_queries, num_keys, BLOCK_M, BLOCK_N)
        of_query = products + i.to(tl.int64) * rows
        # beyond the clip all keys of a tile are in one row
        one = tl.load(of_query + least, mask=(i < num_queries) & (varies == 0), other=0.0)
        mixed = seen & varies[:, None]
        at = tl.load(row + cell, mask=mixed, other=0)
        s += tl.load(of_query[:, None] + at, mask=mixed, other=0.0) + one[:, None]
    if CAUSAL:
        seen = seen & (key <= query + diagonal)
    return tl.where(seen, s * LOG2E, -float("inf"))


@triton.jit
def _weighed(acc, top, total, s, v, PRECISION: tl.constexpr):
    """The online softmax after one more tile of scores and values."""
    new = tl.maximum(top, tl.max(s, 1))
    safe = tl.where(new == -float("inf"), 0.0, new)
    p = tl.exp2(s - safe[:, None])
    shrink = tl.exp2(top - safe)
    return acc * shrink[:, None] + _dot(p.to(v.dtype), v, PRECISION), new, total * shrink + tl.sum(p, 1)


@triton.jit
def forward(
    Q, K, V, OUT, LSE, VECTOR_, PRODUCTS_, ROW, FAR, scale, diagonal, num_queries, num_keys, rows,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, HEADS: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    VECTOR: tl.constexpr, PRODUCTS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    first_i = tl.program_id(0) * BLOCK_M
    batch, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    flat = tl.program_id(1).to(tl.int64)
    i, d, dv = first_i + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    q = _inputs(Q, qb, qh, qn, batch, head, i, num_queries, d, D)
    vector = VECTOR_ + head * (num_queries + num_keys - 1)
    products = PRODUCTS_ + flat * num_queries * rows
    end = num_keys
    if CAUSAL:
        end = tl.minimum(end, tl.minimum(first_i + BLOCK_M, num_queries) + diagonal)
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    # keys before `split` are far from all queries of the tile, and seen by them: the bias is one number a query
    split = tl.minimum(end, num_keys // BLOCK_N * BLOCK_N)
    if CAUSAL:
        split = tl.minimum(split, first_i + diagonal + 1)
    far = tl.zeros((BLOCK_M,), tl.float32)
    if VECTOR:
        far += tl.load(vector)
    if PRODUCTS:
        far += tl.load(products + i.to(tl.int64) * rows + tl.load(ROW), mask=i < num_queries, other=0.0)
    if VECTOR or PRODUCTS:
        split = tl.minimum(split, tl.load(FAR) - num_queries + 1 + first_i)
    split = tl.maximum(split, 0) // BLOCK_N * BLOCK_N
    for first_j in range(0, split, BLOCK_N):
        j = first_j + tl.arange(0, BLOCK_N)
        k = _inputs(K, kb, kh, kn, batch, head // GROUPS, j, num_keys, d, D)
        s = _dot(q, tl.trans(k), PRECISION) * (scale * LOG2E) + (far * LOG2E)[:, None]
        v = _inputs(V, vb, vh, vn, batch, head // GROUPS, j, num_keys, dv, DV)
        acc, top, total = _weighed(acc, top, total, s, v, PRECISION)
    for first_j in range(split, end, BLOCK_N):
        j = first_j + tl.arange(0, BLOCK_N)
        k = _inputs(K, kb, kh, kn, batch, head // GROUPS, j, num_keys, d, D)
        s = _scores(
            q, k, i, j, first_i, first_j, vector, products, ROW, rows, scale, diagonal, num_queries, num_keys,
            BLOCK_M, BLOCK_N, VECTOR, PRODUCTS, CAUSAL, PRECISION,
        )  # fmt: skip
        v = _inputs(V, vb, vh, vn, batch, head // GROUPS, j, num_keys, dv, DV)
        acc, top, total = _weighed(acc, top, total, s, v, PRECISION)
    out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    inside = (i < num_queries)[:, None] & (dv < DV)[None, :]
    tl.store(OUT + (flat * num_queries + i[:, None]) * DV + dv[None, :], out.to(OUT.dtype.element_ty), mask=inside)
    lse = tl.where(total == 0.0, -float("inf"), (top + tl.log2(tl.where(total == 0.0, 1.0, total))) / LOG2E)
    tl.store(LSE + flat * num_queries + i, lse, mask=i < num_queries)


# -------------------------------------------------------------------- attention as an operator of PyTorch


TILES = {64: (128, 64, 8, 3), 128: (128, 64, 8, 3), 256: (64, 32, 4, 2)}
"""Up to a width of queries and values in half precision: queries and keys of a tile, warps of a program, stages of its pipeline.
Chosen by what ptxas says of registers and shared memory for sm_90, not by time; RECORD has those that benchmarks/gpu.py found
fastest on a GPU."""


def limit_of(width: int) -> int:
    """The key of TILES that serves a width."""
    return min((limit for limit in TILES if width <= limit), default=256)


def _tiles(q: Tensor, v: Tensor) -> tuple[int, ...]:
    if INTERPRETED:
        return 32, 16, 4, 1
    limit = limit_of(max(q.shape[-1], v.shape[-1]) * q.element_size() // 2)  # float32 takes the room of twice the width
    fastest: dict[str, Any] = recorded(q.device).get("tiles", {}).get(str(limit), {})
    return tuple(fastest.get("forward", TILES[limit]))


@triton.jit
def _first_other(VECTOR_, ROW, FAR, heads, cells, VECTOR: tl.constexpr, PRODUCTS: tl.constexpr, BLOCK: tl.constexpr):
    """The first cell whose number or row is not that of cell 0, into FAR, which holds `cells`."""
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < cells
    other = cell < 0
    if VECTOR:
        for head in range(heads):
            first = tl.load(VECTOR_ + head * cells)
            other = other | (tl.load(VECTOR_ + head * cells + cell, mask=inside, other=first) != first)
    if PRODUCTS:
        first = tl.load(ROW)
        other = other | (tl.load(ROW + cell, mask=inside, other=first) != first)
    tl.atomic_min(FAR, tl.min(tl.where(other, cell, cells), 0))


def _dense_channels(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


@torch.library.custom_op(
    "posenc::relative_attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? vector, Tensor? products, Tensor? row, float scale, "
    "SymInt diagonal, str precision) -> (Tensor, Tensor)",
)
def relative_attention(
    q: Tensor, k: Tensor, v: Tensor, vector: Tensor | None, products: Tensor | None, row: Tensor | None,
    scale: float, diagonal: int, precision: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention under a bias of the distance and products with a relative table, and the log-sum-exp of its scores.

    Args:
        q: (batch, num_heads, num_queries, head_dim), float32, float16 or bfloat16, any strides.
        k, v: (batch, num_kv_heads, num_keys, head_dim or value width).
        vector: (num_heads, num_queries + num_keys - 1) float32, added to the scaled scores by cell; None: nothing.
        products: (batch, num_heads, num_queries, rows) float32, added likewise from the row of the cell; None: nothing.
        row: (num_queries + num_keys - 1,) integers below rows, with products.
        scale: factor of q . k.
        diagonal: query i sees the keys up to i + diagonal; num_keys - 1 or more: all.
        precision: of products of float32 tiles, "ieee", "tf32" or "tf32x3".

    Returns the output (batch, num_heads, num_queries, value width) in q's dtype, zero where a query sees no key, and
    (batch, num_heads, num_queries) float32, -inf there.
    """
    q, k, v = _dense_channels(q), _dense_channels(k), _dense_channels(v)
    batch, heads, queries = q.shape[:3]
    nothing = q.new_empty(0, dtype=torch.float32)  # a pointer in the place of a table that is not there
    tables = [nothing if x is None else x.contiguous() for x in (vector, products)]
    tables.append(nothing.int() if row is None else row.to(torch.int32).contiguous())
    reads = {"VECTOR": vector is not None, "PRODUCTS": products is not None}
    # a product of tiles needs 16 channels
    block_d, block_dv = (max(16, triton.next_power_of_2(x.shape[-1])) for x in (q, v))
    out = q.new_empty(batch, heads, queries, v.shape[-1])
    lse = q.new_empty(batch, heads, queries, dtype=torch.float32)
    block_m, block_n, warps, stages = _tiles(q, v)
    with torch.cuda.device_of(q):  # Triton launches on the current device, which need not be theirs
        cells = queries + k.shape[2] - 1
        far = torch.full((), cells, dtype=torch.int32, device=q.device)  # cells that have one number and one row
        if any(reads.values()):
            _first_other[(triton.cdiv(cells, 1024),)](tables[0], tables[2], far, heads, cells, BLOCK=1024, **reads)
        forward[(triton.cdiv(queries, block_m), batch * heads)](
            q, k, v, out, lse, *tables, far, scale, diagonal, queries, k.shape[2], 0 if products is None else products.shape[-1],
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], HEADS=heads, GROUPS=heads // k.shape[1], D=q.shape[-1],
            DV=v.shape[-1], BLOCK_D=block_d, BLOCK_DV=block_dv, BLOCK_M=block_m, BLOCK_N=block_n, CAUSAL=diagonal < k.shape[2] - 1,
            PRECISION=precision, num_warps=warps, num_stages=stages, **reads,
        )  # fmt: skip
    return out, lse


@relative_attention.register_fake
def _(q, k, v, vector, products, row, scale, diagonal, precision):
    check_devices("posenc.attention", q, k, v, vector, products, row)
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


# -------------------------------------------------------------------- rotary: each program reads a token's tables once, for all heads


@triton.jit
def _rotate_heads(
    x, out, x_head, x_channel, out_head, out_channel, heads, cos, sin, start, width,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, REST: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Rotate all heads of one token. x, out: pointers to the token; REST: the block of all channels, of which those that
    do not rotate are copied, or 0."""
    pair, channel = tl.arange(0, BLOCK), tl.arange(0, 2 * BLOCK)
    for begin in range(0, heads, HEADS):
        head = (begin + tl.arange(0, HEADS)).to(tl.int64)[:, None]
        source, target = x + head * x_head + start * x_channel, out + head * out_head + start * out_channel
        if INTERLEAVED:  # neighbouring lanes read neighbouring channels: pairs are taken apart in registers
            visible = (head < heads) & (channel < 2 * PAIRS)[None, :]
            both = tl.load(source + channel[None, :] * x_channel, mask=visible, other=0.0).to(tl.float32)
            a, b = tl.split(tl.reshape(both, (HEADS, BLOCK, 2)))
            both = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (HEADS, 2 * BLOCK))
            tl.store(target + channel[None, :] * out_channel, both.to(out.dtype.element_ty), mask=visible)
        else:
            visible = (head < heads) & (pair < PAIRS)[None, :]
            a = tl.load(source + pair[None, :] * x_channel, mask=visible, other=0.0).to(tl.float32)
            b = tl.load(source + (pair + PAIRS)[None, :] * x_channel, mask=visible, other=0.0).to(tl.float32)
            tl.store(target + pair[None, :] * out_channel, (a * cos - b * sin).to(out.dtype.element_ty), mask=visible)
            tl.store(
                target + (pair + PAIRS)[None, :] * out_channel,
                (b * cos + a * sin).to(out.dtype.element_ty),
                mask=visible,
            )
        if REST:
            rest = tl.arange(0, REST)
            still = (rest < width) & ((rest < start) | (rest >= start + 2 * PAIRS))
            still = (head < heads) & still[None, :]
            unchanged = tl.load(x + head * x_head + rest[None, :] * x_channel, mask=still, other=0.0)
            tl.store(out + head * out_head + rest[None, :] * out_channel, unchanged, mask=still)


@triton.jit
def _rotary_kernel(
    q, q_out, k, k_out, cos, sin,
    q_row, q_head, q_token, q_channel, q_out_row, q_out_head, q_out_token, q_out_channel,
    k_row, k_head, k_token, k_channel, k_out_row, k_out_head, k_out_token, k_out_channel,
    cos_row, cos_token, cos_pair, sin_row, sin_token, sin_pair,
    tokens, q_heads, k_heads, start, width, sign,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, REST: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)  # one axis: CUDA's others end at 65535
    token, row = program % tokens, program // tokens
    pair = tl.arange(0, BLOCK)
    c = tl.load(cos + row * cos_row + token * cos_token + pair * cos_pair, mask=pair < PAIRS, other=0.0)
    s = tl.load(sin + row * sin_row + token * sin_token + pair * sin_pair, mask=pair < PAIRS, other=0.0)
    c, s = c.to(tl.float32)[None, :], s.to(tl.float32)[None, :] * sign
    _rotate_heads(
        q + row * q_row + token * q_token, q_out + row * q_out_row + token * q_out_token,
        q_head, q_channel, q_out_head, q_out_channel, q_heads, c, s, start, width,
        PAIRS, BLOCK, INTERLEAVED, REST, HEADS,
    )  # fmt: skip
    _rotate_heads(
        k + row * k_row + token * k_token, k_out + row * k_out_row + token * k_out_token,
        k_head, k_channel, k_out_head, k_out_channel, k_heads, c, s, start, width,
        PAIRS, BLOCK, INTERLEAVED, REST, HEADS,
    )  # fmt: skip


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int) -> tuple[Tensor, Tensor]:
    """What `posenc.backends.triton.rotary_kernel` says, of tensors that belong together."""
    width = q.shape[3]
    if not 0 <= start <= width - 2 * cos.shape[-1]:
        raise InputError(f"{cos.shape[-1]} pairs from there do not fit into {width} channels", start=start)
    if q.dtype not in DTYPES:
        raise InputError(f"q of {q.dtype}: the kernel computes in float32; use posenc.functional.rotary")
    check_word("layout", layout, ("half", "interleaved"))
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)):
        return _rotary(q, k, cos, sin, layout, start, 1.0)
    return _launch_rotary(q, k, cos, sin, layout, start, 1.0)


def _launch_rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int, sign: float
) -> tuple[Tensor, Tensor]:
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    (batch, q_heads, tokens, width), pairs = q.shape, cos.shape[-1]
    if pairs == 0:
        return q_out.copy_(q), k_out.copy_(k)
    if batch * tokens == 0:
        return q_out, k_out
    table_strides = [
        step for t in (cos, sin) for step in (t.stride(0) if t.shape[0] > 1 else 0, t.stride(2), t.stride(3))
    ]
    block = triton.next_power_of_2(pairs)
    with torch.cuda.device_of(q):  # as above
        _rotary_kernel[(batch * tokens,)](
            q, q_out, k, k_out, cos, sin,
            *q.stride(), *q_out.stride(), *k.stride(), *k_out.stride(), *table_strides,
            tokens, q_heads, k.shape[1], start, width, sign,
            PAIRS=pairs, BLOCK=block, INTERLEAVED=layout == "interleaved",
            REST=triton.next_power_of_2(width) if 2 * pairs < width else 0,
            HEADS=max(1, min(triton.next_power_of_2(q_heads), 2048 // block)),
        )  # fmt: skip
    return q_out, k_out


# a separate operator: opaque to torch.compile, with a backward pass for autograd


@torch.library.custom_op("posenc::rotary", mutates_args=())
def _rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int, sign: float
) -> tuple[Tensor, Tensor]:
    return _launch_rotary(q, k, cos, sin, layout, start, sign)


@_rotary.register_fake
def _(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int, sign: float) -> tuple[Tensor, Tensor]:
    check_devices("posenc.functional.rotary", q, k, cos, sin)
    return torch.empty_like(q), torch.empty_like(k)


def _save_tables(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, cos, sin, ctx.layout, ctx.start, ctx.sign = inputs
    ctx.save_for_backward(cos, sin)


def _rotary_gradients(ctx: Any, of_q: Tensor, of_k: Tensor) -> tuple[Any, ...]:
    cos, sin = ctx.saved_tensors
    return (*_rotary(of_q, of_k, cos, sin, ctx.layout, ctx.start, -ctx.sign), None, None, None, None, None)


_rotary.register_autograd(_rotary_gradients, setup_context=_save_tables)
