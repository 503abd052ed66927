# SPDX-License-Identifier: Apache-2.0
"""Attention with a relative table as one Triton kernel, forward and backward, in memory linear in the sequence.

The algorithm is FlashAttention-2's (Dao 2023): online softmax, the log-sum-exp kept, the backward computing scores anew.
A pair (query i, key j) has the cell num_queries - 1 - i + j: the longest distance is cell 0. A bias of the distance is a
`vector` over cells; a product of the query with a table is `products`, one per query and row, and `row` names each cell's.

A tile of BLOCK_M x BLOCK_N pairs meets BLOCK_M + BLOCK_N - 1 cells only. Where they hold one number, as beyond a clip or
the last bucket, it is added once. Else they are read through a tile of pointers: the window stays in L1 and neighbouring
lanes read neighbouring addresses; tl.gather would take as many loads from shared memory, and a barrier. The gradient of
the vector sums a tile along its diagonals: tl.gather shifts each row so that diagonals become columns, and what two
neighbouring tiles share is carried in registers, so a tile adds BLOCK numbers instead of BLOCK x BLOCK.
"""

import triton
import triton.language as tl

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
    """The smallest and the largest entry of a table of cells that a tile meets."""
    within = tl.minimum(tl.arange(0, 2 * max(BLOCK_M, BLOCK_N)), BLOCK_M + BLOCK_N - 2)
    cell = num_queries - BLOCK_M - first_i + first_j + within
    found = tl.load(table + tl.minimum(tl.maximum(cell, 0), num_queries + num_keys - 2))
    return tl.min(found, 0), tl.max(found, 0)


@triton.jit
def _scores(
    q, k, i, j, first_i, first_j, vector, products, row, rows, scale, diagonal, num_queries, num_keys,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, VECTOR: tl.constexpr, PRODUCTS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of scores times log2(e); -inf where the query does not see the key."""
    s = _dot(q, tl.trans(k), PRECISION) * scale
    seen = (i < num_queries)[:, None] & (j < num_keys)[None, :]
    cell = num_queries - 1 - i[:, None] + j[None, :]
    if VECTOR:
        low, high = _range(vector, first_i, first_j, num_queries, num_keys, BLOCK_M, BLOCK_N)
        if low == high:  # beyond T5's last bucket; and in a branch, the tile is not staged through shared memory
            s += low
        else:
            s += tl.load(vector + cell, mask=seen, other=0.0)
    if PRODUCTS:
        least, most = _range(row, first_i, first_j, num_queries, num_keys, BLOCK_M, BLOCK_N)
        of_query = products + i.to(tl.int64) * rows
        if least == most:  # beyond the clip all keys of a tile are in one row
            s += tl.load(of_query + least, mask=i < num_queries, other=0.0)[:, None]
        else:
            at = tl.load(row + cell, mask=seen, other=0)
            s += tl.load(of_query[:, None] + at, mask=seen, other=0.0)
    if CAUSAL:
        seen = seen & (j[None, :] <= i[:, None] + diagonal)
    return tl.where(seen, s * LOG2E, -float("inf"))


@triton.jit
def forward(
    Q, K, V, OUT, LSE, VECTOR_, PRODUCTS_, ROW, scale, diagonal, num_queries, num_keys, rows,
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
    for first_j in range(0, end, BLOCK_N):
        j = first_j + tl.arange(0, BLOCK_N)
        k = _inputs(K, kb, kh, kn, batch, head // GROUPS, j, num_keys, d, D)
        s = _scores(
            q, k, i, j, first_i, first_j, vector, products, ROW, rows, scale, diagonal, num_queries, num_keys,
            BLOCK_M, BLOCK_N, VECTOR, PRODUCTS, CAUSAL, PRECISION,
        )  # fmt: skip
        new = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new == -float("inf"), 0.0, new)
        p = tl.exp2(s - safe[:, None])
        shrink = tl.exp2(top - safe)
        total = total * shrink + tl.sum(p, 1)
        v = _inputs(V, vb, vh, vn, batch, head // GROUPS, j, num_keys, dv, DV)
        acc = acc * shrink[:, None] + _dot(p.to(v.dtype), v, PRECISION)
        top = new
    out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    inside = (i < num_queries)[:, None] & (dv < DV)[None, :]
    tl.store(OUT + (flat * num_queries + i[:, None]) * DV + dv[None, :], out.to(OUT.dtype.element_ty), mask=inside)
    lse = tl.where(total == 0.0, -float("inf"), (top + tl.log2(tl.where(total == 0.0, 1.0, total))) / LOG2E)
    tl.store(LSE + flat * num_queries + i, lse, mask=i < num_queries)


@triton.jit
def _diagonals(ds, HIGH: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of a square tile along its diagonals, by cell: the BLOCK lower ones, or the BLOCK - 1 higher and a zero."""
    r, c = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    column = c + HIGH * BLOCK - (BLOCK - 1) + r
    inside = (column >= 0) & (column < BLOCK)
    shifted = tl.gather(ds, tl.minimum(tl.maximum(column, 0), BLOCK - 1), 1)
    return tl.sum(tl.where(inside, shifted, 0.0), 0)


@triton.jit
def _keep(gradient, cell, value, cells, ATOMIC: tl.constexpr):
    inside = (cell >= 0) & (cell < cells)
    if ATOMIC:
        tl.atomic_add(gradient + cell, value, mask=inside)
    else:
        tl.store(gradient + cell, value, mask=inside)


@triton.jit
def backward_keys(
    Q, K, V, DOUT, LSE, DELTA, VECTOR_, PRODUCTS_, ROW, DK, DV_, DVECTOR, scale, diagonal, num_queries, num_keys, rows,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ob, oh, on, HEADS: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr,
    DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
    PRODUCTS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, LEARNED: tl.constexpr, ATOMIC: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values, over all queries of the heads that share them, and of the vector."""
    first_j, kv_heads = tl.program_id(0) * BLOCK, HEADS // GROUPS
    batch, kv_head = tl.program_id(1) // kv_heads, tl.program_id(1) % kv_heads
    j, d, dv = first_j + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    k = _inputs(K, kb, kh, kn, batch, kv_head, j, num_keys, d, D)
    v = _inputs(V, vb, vh, vn, batch, kv_head, j, num_keys, dv, DV)
    dk = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    dvalue = tl.zeros((BLOCK, BLOCK_DV), tl.float32)
    cells, c = num_queries + num_keys - 1, tl.arange(0, BLOCK)
    begin = 0
    if CAUSAL:
        begin = tl.maximum(first_j - diagonal, 0) // BLOCK * BLOCK
    for head in range(kv_head * GROUPS, kv_head * GROUPS + GROUPS):
        flat = (batch * HEADS + head).to(tl.int64)
        products = PRODUCTS_ + flat * num_queries * rows
        if ATOMIC:
            gradient = DVECTOR + head * cells
        else:
            gradient = DVECTOR + (flat * tl.num_programs(0) + tl.program_id(0)) * cells
        carried = tl.zeros((BLOCK,), tl.float32)
        lowest = num_queries - BLOCK - begin + first_j + BLOCK
        for first_i in range(begin, num_queries, BLOCK):
            i = first_i + tl.arange(0, BLOCK)
            q = _inputs(Q, qb, qh, qn, batch, tl.full((), head, tl.int32), i, num_queries, d, D)
            s = _scores(
                q, k, i, j, first_i, first_j, VECTOR_ + head * cells, products, ROW, rows, scale, diagonal, num_queries,
                num_keys, BLOCK, BLOCK, VECTOR, PRODUCTS, CAUSAL, PRECISION,
            )  # fmt: skip
            lse = tl.load(LSE + flat * num_queries + i, mask=i < num_queries, other=float("inf"))
            p = tl.exp2(s - lse[:, None] * LOG2E)
            dout = _inputs(DOUT, ob, oh, on, batch, tl.full((), head, tl.int32), i, num_queries, dv, DV)
            dvalue += _dot(tl.trans(p).to(dout.dtype), dout, PRECISION)
            delta = tl.load(DELTA + flat * num_queries + i, mask=i < num_queries, other=0.0)
            ds = p * (_dot(dout, tl.trans(v), PRECISION) - delta[:, None])
            dk += _dot(tl.trans(ds).to(q.dtype), q, PRECISION)
            if LEARNED:
                lowest = num_queries - BLOCK - first_i + first_j
                # this tile's higher cells are the lower ones of the tile before
                _keep(gradient, lowest + BLOCK + c, carried + _diagonals(ds, True, BLOCK), cells, ATOMIC)
                carried = _diagonals(ds, False, BLOCK)
        if LEARNED:
            _keep(gradient, lowest + c, carried, cells, ATOMIC)
    flat = tl.program_id(1).to(tl.int64) * num_keys + j[:, None]
    inside = (j < num_keys)[:, None]
    tl.store(DK + flat * D + d[None, :], (dk * scale).to(DK.dtype.element_ty), mask=inside & (d < D)[None, :])
    tl.store(DV_ + flat * DV + dv[None, :], dvalue.to(DV_.dtype.element_ty), mask=inside & (dv < DV)[None, :])


@triton.jit
def backward_queries(
    Q, K, V, DOUT, LSE, DELTA, VECTOR_, PRODUCTS_, ROW, DQ, DPRODUCTS, scale, diagonal, num_queries, num_keys, rows,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, ob, oh, on, HEADS: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr,
    DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
    PRODUCTS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, LEARNED: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries and of their products, over all keys they see."""
    first_i = tl.program_id(0) * BLOCK
    batch, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    flat = tl.program_id(1).to(tl.int64)
    i, d, dv = first_i + tl.arange(0, BLOCK), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    q = _inputs(Q, qb, qh, qn, batch, head, i, num_queries, d, D)
    dout = _inputs(DOUT, ob, oh, on, batch, head, i, num_queries, dv, DV)
    lse = tl.load(LSE + flat * num_queries + i, mask=i < num_queries, other=float("inf"))
    delta = tl.load(DELTA + flat * num_queries + i, mask=i < num_queries, other=0.0)
    vector = VECTOR_ + head * (num_queries + num_keys - 1)
    products = PRODUCTS_ + flat * num_queries * rows
    dq = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    end = num_keys
    if CAUSAL:
        end = tl.minimum(end, tl.minimum(first_i + BLOCK, num_queries) + diagonal)
    for first_j in range(0, end, BLOCK):
        j = first_j + tl.arange(0, BLOCK)
        k = _inputs(K, kb, kh, kn, batch, head // GROUPS, j, num_keys, d, D)
        v = _inputs(V, vb, vh, vn, batch, head // GROUPS, j, num_keys, dv, DV)
        s = _scores(
            q, k, i, j, first_i, first_j, vector, products, ROW, rows, scale, diagonal, num_queries, num_keys,
            BLOCK, BLOCK, VECTOR, PRODUCTS, CAUSAL, PRECISION,
        )  # fmt: skip
        p = tl.exp2(s - lse[:, None] * LOG2E)
        ds = p * (_dot(dout, tl.trans(v), PRECISION) - delta[:, None])
        dq += _dot(ds.to(k.dtype), k, PRECISION)
        if LEARNED:
            of_query = DPRODUCTS + (flat * num_queries + i) * rows
            least, most = _range(ROW, first_i, first_j, num_queries, num_keys, BLOCK, BLOCK)
            if least == most:
                tl.atomic_add(of_query + least, tl.sum(ds, 1), mask=i < num_queries)
            else:
                seen = s > -float("inf")
                at = tl.load(ROW + num_queries - 1 - i[:, None] + j[None, :], mask=seen, other=0)
                tl.atomic_add(of_query[:, None] + at, ds, mask=seen)
    inside = (i < num_queries)[:, None] & (d < D)[None, :]
    tl.store(DQ + (flat * num_queries + i[:, None]) * D + d[None, :], (dq * scale).to(DQ.dtype.element_ty), mask=inside)
