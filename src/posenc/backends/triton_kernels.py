# SPDX-License-Identifier: Apache-2.0
"""Our Triton kernels, imported only where one is called (`posenc.backends.triton`): attention with a relative table, forward
and backward, in memory linear in the sequence, and rotating queries and keys in one launch.

The algorithm is FlashAttention-2's (Dao 2023): online softmax, the log-sum-exp stored, scores computed again in the backward pass.
A pair (query i, key j) has the cell num_queries - 1 - i + j: the longest distance is cell 0. A bias of the distance is a
`vector` over cells; a product of the query with a table is `products`, one per query and row, and `row` names each cell's.

A tile of BLOCK_M x BLOCK_N pairs meets BLOCK_M + BLOCK_N - 1 cells only. Where they hold one number, as beyond a clip or
the last bucket, it is added once. Else they are read through a tile of pointers: the window stays in L1 and neighbouring
lanes read neighbouring addresses; tl.gather would take as many loads from shared memory, and a barrier. The gradient of
the vector sums a tile along its diagonals: tl.gather shifts each row so that diagonals become columns, and what two
neighbouring tiles share is carried in registers, so a tile adds BLOCK numbers instead of BLOCK x BLOCK.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc.backends.gpus import DTYPES, recorded
from posenc.errors import InputError, check_devices, unknown
from posenc.functional import Layout, no_second_derivatives, overlaps, unaliased

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
    PRECISION: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """A tile of scores times log2(e), (queries, keys) or, TURNED, (keys, queries); -inf where the query does not see the
    key. It has no branches: around one, ptxas serialises the products of tiles and spills registers."""
    of_queries: tl.constexpr = 0 if TURNED else 1  # the axis that queries do not have
    s = (_dot(k, tl.trans(q), PRECISION) if TURNED else _dot(q, tl.trans(k), PRECISION)) * scale
    query, key = tl.expand_dims(i, of_queries), tl.expand_dims(j, 1 - of_queries)
    seen = (query < num_queries) & (key < num_keys)
    cell = num_queries - 1 - query + key
    if VECTOR:
        least, varies = _range(vector, first_i, first_j, num_queries, num_keys, BLOCK_M, BLOCK_N)
        # beyond T5's last bucket nothing is read
        s += tl.load(vector + cell, mask=seen & tl.expand_dims(varies, of_queries), other=least)
    if PRODUCTS:
        least, varies = _range(row, first_i, first_j, num_queries, num_keys, BLOCK_M, BLOCK_N)
        of_query = products + i.to(tl.int64) * rows
        # beyond the clip all keys of a tile are in one row
        one = tl.load(of_query + least, mask=(i < num_queries) & (varies == 0), other=0.0)
        mixed = seen & tl.expand_dims(varies, of_queries)
        at = tl.load(row + cell, mask=mixed, other=0)
        s += tl.load(tl.expand_dims(of_query, of_queries) + at, mask=mixed, other=0.0) + tl.expand_dims(one, of_queries)
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
            BLOCK_M, BLOCK_N, VECTOR, PRODUCTS, CAUSAL, PRECISION, False,
        )  # fmt: skip
        v = _inputs(V, vb, vh, vn, batch, head // GROUPS, j, num_keys, dv, DV)
        acc, top, total = _weighed(acc, top, total, s, v, PRECISION)
    out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    inside = (i < num_queries)[:, None] & (dv < DV)[None, :]
    tl.store(OUT + (flat * num_queries + i[:, None]) * DV + dv[None, :], out.to(OUT.dtype.element_ty), mask=inside)
    lse = tl.where(total == 0.0, -float("inf"), (top + tl.log2(tl.where(total == 0.0, 1.0, total))) / LOG2E)
    tl.store(LSE + flat * num_queries + i, lse, mask=i < num_queries)


@triton.jit
def _diagonals(ds, HIGH: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of a square tile (keys, queries) along its diagonals, by cell: the BLOCK lower ones, or the BLOCK - 1 higher and
    a zero."""
    r, c = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    column = r - (c + HIGH * BLOCK - (BLOCK - 1))
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
                num_keys, BLOCK, BLOCK, VECTOR, PRODUCTS, CAUSAL, PRECISION, True,
            )  # fmt: skip
            lse = tl.load(LSE + flat * num_queries + i, mask=i < num_queries, other=float("inf"))
            p = tl.exp2(s - lse[None, :] * LOG2E)  # (keys, queries): no tile in registers has to be transposed
            dout = _inputs(DOUT, ob, oh, on, batch, tl.full((), head, tl.int32), i, num_queries, dv, DV)
            dvalue += _dot(p.to(dout.dtype), dout, PRECISION)
            delta = tl.load(DELTA + flat * num_queries + i, mask=i < num_queries, other=0.0)
            ds = p * (_dot(v, tl.trans(dout), PRECISION) - delta[None, :])
            dk += _dot(ds.to(q.dtype), q, PRECISION)
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
            BLOCK, BLOCK, VECTOR, PRODUCTS, CAUSAL, PRECISION, False,
        )  # fmt: skip
        p = tl.exp2(s - lse[:, None] * LOG2E)
        ds = p * (_dot(dout, tl.trans(v), PRECISION) - delta[:, None])
        dq += _dot(ds.to(k.dtype), k, PRECISION)
        if LEARNED:
            of_query = DPRODUCTS + (flat * num_queries + i) * rows
            least, varies = _range(ROW, first_i, first_j, num_queries, num_keys, BLOCK, BLOCK)
            tl.atomic_add(of_query + least, tl.sum(ds, 1), mask=(i < num_queries) & (varies == 0))
            mixed = (s > -float("inf")) & varies[:, None]
            at = tl.load(ROW + num_queries - 1 - i[:, None] + j[None, :], mask=mixed, other=0)
            tl.atomic_add(of_query[:, None] + at, ds, mask=mixed)
    inside = (i < num_queries)[:, None] & (d < D)[None, :]
    tl.store(DQ + (flat * num_queries + i[:, None]) * D + d[None, :], (dq * scale).to(DQ.dtype.element_ty), mask=inside)


# -------------------------------------------------------------------- attention as an operator of PyTorch


class Tiles(NamedTuple):
    """Sizes of tiles, warps of a program and stages of its pipeline, of each kernel."""

    forward: tuple[int, int, int, int]
    """Queries, keys, warps, stages."""
    keys: tuple[int, int, int]
    """Queries and keys, which are as many, warps, stages: of the gradients of keys and values."""
    queries: tuple[int, int, int]


TILES = {
    64: Tiles((128, 64, 8, 3), (64, 8, 3), (64, 8, 3)),
    128: Tiles((128, 64, 8, 3), (64, 8, 3), (64, 8, 3)),
    256: Tiles((64, 32, 4, 2), (32, 4, 2), (32, 4, 2)),
}
"""Up to a width of queries and values in half precision. Chosen by what ptxas says of registers and shared memory for
sm_90, not by time; RECORD has those that benchmarks/gpu.py found fastest on a GPU."""


def limit_of(width: int) -> int:
    """The key of TILES that serves a width."""
    return min((limit for limit in TILES if width <= limit), default=256)


def _tiles(q: Tensor, v: Tensor) -> Tiles:
    if INTERPRETED:
        return Tiles((32, 16, 4, 1), (16, 4, 1), (16, 4, 1))
    limit = limit_of(max(q.shape[-1], v.shape[-1]) * q.element_size() // 2)  # float32 takes the room of twice the width
    return TILES[limit]._replace(**recorded(q.device).get("tiles", {}).get(str(limit), {}))


def _blocks(width: int, value_width: int) -> tuple[int, int]:
    # a product of tiles needs 16 channels
    return max(16, triton.next_power_of_2(width)), max(16, triton.next_power_of_2(value_width))


def _common(
    q: Tensor, k: Tensor, v: Tensor, vector: Tensor | None, products: Tensor | None, row: Tensor | None,
    diagonal: int, precision: str,
) -> tuple[dict[str, Any], list[Tensor], tuple[int, int, int, int]]:  # fmt: skip
    """What all three kernels take as compile-time constants, with pointers in place of absent tensors."""
    heads, nothing = q.shape[1], q.new_empty(0, dtype=torch.float32)
    block_d, block_dv = _blocks(q.shape[-1], v.shape[-1])
    options = {
        "HEADS": heads, "GROUPS": heads // k.shape[1], "D": q.shape[-1], "DV": v.shape[-1], "BLOCK_D": block_d,
        "BLOCK_DV": block_dv, "VECTOR": vector is not None, "PRODUCTS": products is not None,
        "CAUSAL": diagonal < k.shape[2] - 1, "PRECISION": precision,
    }  # fmt: skip
    tables = [nothing if x is None else x.contiguous() for x in (vector, products)]
    tables.append(nothing.int() if row is None else row.to(torch.int32).contiguous())
    sizes = (diagonal, q.shape[2], k.shape[2], 0 if products is None else products.shape[-1])
    return options, tables, sizes


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


def _far_cells(tables: list[Tensor], heads: int, cells: int, options: dict[str, Any]) -> Tensor:
    """How many cells, from the longest distance on, have one number and one row: a scalar on the device."""
    vector, _, row = tables
    far = torch.full((), cells, dtype=torch.int32, device=row.device)
    reads = {name: options[name] for name in ("VECTOR", "PRODUCTS")}
    if any(reads.values()):
        _first_other[(triton.cdiv(cells, 1024),)](vector, row, far, heads, cells, BLOCK=1024, **reads)
    return far


@triton.jit
def _before_backward(
    OUT, DOUT, LSE, DLSE, DELTA, SAFE, queries, ob, oh, on, HEADS: tl.constexpr, DV: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """DELTA: what is taken from the gradient of every probability of a query. SAFE: the log-sum-exp, inf where a query sees no
    key: exp(s - inf) is zero."""
    i, dv = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_DV)
    batch, head, flat = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS, tl.program_id(1).to(tl.int64)
    inside = (i < queries)[:, None] & (dv < DV)[None, :]
    out = tl.load(OUT + (flat * queries + i[:, None]) * DV + dv[None, :], mask=inside, other=0.0).to(tl.float32)
    dout = _inputs(DOUT, ob, oh, on, batch, head, i, queries, dv, DV).to(tl.float32)
    at, seen = flat * queries + i, i < queries
    tl.store(DELTA + at, tl.sum(out * dout, 1) - tl.load(DLSE + at, mask=seen, other=0.0), mask=seen)
    lse = tl.load(LSE + at, mask=seen, other=0.0)
    tl.store(SAFE + at, tl.where(lse == -float("inf"), float("inf"), lse), mask=seen)


def _dense_channels(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


@torch.library.custom_op(
    "posenc::relative_attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? vector, Tensor? products, Tensor? row, float scale, "
    "SymInt diagonal, str precision, bool single=False) -> (Tensor, Tensor)",
)
def relative_attention(
    q: Tensor, k: Tensor, v: Tensor, vector: Tensor | None, products: Tensor | None, row: Tensor | None,
    scale: float, diagonal: int, precision: str, single: bool = False,
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
        single: the output is float32. The gradient of a score is p (dp - delta), delta = out . dout: what half precision rounds
            off `out` is added up over all scores that share an entry of a table, such as T5's last bucket.

    Returns the output (batch, num_heads, num_queries, value width) in q's dtype, zero where a query sees no key, and
    (batch, num_heads, num_queries) float32, -inf there.
    """
    q, k, v = _dense_channels(q), _dense_channels(k), _dense_channels(v)
    batch, heads, queries = q.shape[:3]
    options, tables, sizes = _common(q, k, v, vector, products, row, diagonal, precision)
    out = q.new_empty(batch, heads, queries, v.shape[-1], dtype=torch.float32 if single else q.dtype)
    lse = q.new_empty(batch, heads, queries, dtype=torch.float32)
    block_m, block_n, warps, stages = _tiles(q, v).forward
    with torch.cuda.device_of(q):  # Triton launches on the current device, which need not be theirs
        far = _far_cells(tables, heads, queries + k.shape[2] - 1, options)
        forward[(triton.cdiv(queries, block_m), batch * heads)](
            q, k, v, out, lse, *tables, far, scale, *sizes, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            BLOCK_M=block_m, BLOCK_N=block_n, num_warps=warps, num_stages=stages, **options,
        )  # fmt: skip
    return out, lse


@relative_attention.register_fake
def _(q, k, v, vector, products, row, scale, diagonal, precision, single=False):
    check_devices("posenc.attention", q, k, v, vector, products, row)
    out = q.new_empty(*q.shape[:3], v.shape[-1], dtype=torch.float32 if single else q.dtype)
    return out, q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op(
    "posenc::relative_attention_backward",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? vector, Tensor? products, Tensor? row, Tensor out, "
    "Tensor lse, Tensor dout, Tensor dlse, float scale, SymInt diagonal, str precision, bool of_vector, "
    "bool of_products, bool deterministic) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    q: Tensor, k: Tensor, v: Tensor, vector: Tensor | None, products: Tensor | None, row: Tensor | None,
    out: Tensor, lse: Tensor, dout: Tensor, dlse: Tensor, scale: float, diagonal: int, precision: str, of_vector: bool,
    of_products: bool, deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, vector and products; empty where not asked for. deterministic: the vector's gradient is summed from a part
    per block of keys, num_queries x num_keys / BLOCK numbers a head, instead of by atomic additions; that of the products is
    always atomic where keys of a query share a row."""
    q, k, v, dout = (_dense_channels(x) for x in (q, k, v, dout))
    (batch, heads, queries), (kv_heads, keys) = q.shape[:3], k.shape[1:3]
    options, tables, sizes = _common(q, k, v, vector, products, row, diagonal, precision)
    tiles = _tiles(q, v)
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3])
    delta, safe = torch.empty_like(lse), torch.empty_like(lse)
    _before_backward[(triton.cdiv(queries, 64), batch * heads)](
        out, dout, lse, dlse.contiguous(), delta, safe, queries, *dout.stride()[:3],
        HEADS=heads, DV=options["DV"], BLOCK_DV=options["BLOCK_DV"], BLOCK=64,
    )  # fmt: skip
    cells, blocks = queries + keys - 1, triton.cdiv(keys, tiles.keys[0])
    parts = (batch, heads, blocks, cells) if deterministic else (heads, cells)
    dvector = q.new_zeros(parts if of_vector else (0,), dtype=torch.float32)
    dproducts = torch.zeros_like(tables[1]) if of_products else dvector.new_empty(0)
    block, warps, stages = tiles.keys
    backward_keys[(blocks, batch * kv_heads)](
        q, k, v, dout, safe, delta, *tables, dk, dv, dvector, scale, *sizes, *strides,
        LEARNED=of_vector, ATOMIC=not deterministic, BLOCK=block, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
    block, warps, stages = tiles.queries
    backward_queries[(triton.cdiv(queries, block), batch * heads)](
        q, k, v, dout, safe, delta, *tables, dq, dproducts, scale, *sizes, *strides,
        LEARNED=of_products, BLOCK=block, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
    return dq, dk, dv, dvector.sum((0, 2)) if of_vector and deterministic else dvector, dproducts


@_backward.register_fake
def _(q, k, v, vector, products, row, out, lse, dout, dlse, scale, diagonal, precision, of_vector, of_products, deterministic):  # fmt: skip
    check_devices("posenc.attention", q, k, v, vector, products, row, out, lse, dout, dlse)
    tables = [q.new_empty(x.shape if asked else (0,), dtype=torch.float32)
              for x, asked in ((vector, of_vector), (products, of_products))]  # fmt: skip
    return *(x.new_empty(x.shape) for x in (q, k, v)), *tables


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.scale, ctx.diagonal, ctx.precision, _ = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx, dout, dlse):
    q, k, v, vector, products, row, out, lse = ctx.saved_tensors
    asked = ctx.needs_input_grad[3:5]
    grads = _backward(
        q, k, v, vector, products, row, out, lse, dout.to(q.dtype), dlse, ctx.scale, ctx.diagonal, ctx.precision, *asked,
        torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return (
        *grads[:3],
        *(x if wanted else None for x, wanted in zip(grads[3:], asked, strict=True)),
        None,
        None,
        None,
        None,
        None,
    )


relative_attention.register_autograd(_gradients, setup_context=_save)
_backward.register_autograd(no_second_derivatives("posenc.attention", "pass backend='reference'"))


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


def rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int, inplace: bool
) -> tuple[Tensor, Tensor]:
    """What `posenc.backends.triton.rotary_kernel` says."""
    batch, _, tokens, width = q.shape
    if (batch, tokens, width) != (k.shape[0], *k.shape[2:]) or q.dtype != k.dtype or q.device != k.device:
        raise InputError(f"q {tuple(q.shape)} and k {tuple(k.shape)}: one kernel turns the same tokens of both")
    if cos.shape != sin.shape or cos.dim() != 4 or cos.shape[0] not in (1, batch) or cos.shape[1:3] != (1, tokens):
        raise InputError(
            f"tables {tuple(cos.shape)} and {tuple(sin.shape)}: pass (1 or {batch}, 1, {tokens}, pairs) for both"
        )
    if not 0 <= start <= width - 2 * cos.shape[-1]:
        raise InputError(f"{cos.shape[-1]} pairs from there do not fit into {width} channels", start=start)
    if q.dtype not in DTYPES:
        raise InputError(f"q of {q.dtype}: the kernel computes in float32; use posenc.functional.rotary")
    if layout not in ("half", "interleaved"):
        raise unknown("layout", layout, ("half", "interleaved"))
    training = torch.is_grad_enabled()
    if training and (cos.requires_grad or sin.requires_grad):
        raise InputError("the kernel has no gradient for cos and sin: use posenc.functional.rotary, or detach them")
    wanted = training and (q.requires_grad or k.requires_grad)
    if inplace:
        if wanted:
            raise InputError("q and k require grad, and the kernel would overwrite them", "pass False", inplace=True)
        if overlaps(q) or overlaps(k):
            raise InputError("q or k is expanded, several of its entries are one in memory", "pass False", inplace=True)
        cos, sin = (unaliased(unaliased(table, q), k) for table in (cos, sin))
        _launch_rotary(q, k, q, k, cos, sin, layout, start, 1.0)
        return q, k
    if wanted or torch.compiler.is_compiling():
        return _rotary(q, k, cos, sin, layout, start, 1.0)
    return _out_of_place(q, k, cos, sin, layout, start, 1.0)


def _out_of_place(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int, sign: float
) -> tuple[Tensor, Tensor]:
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    _launch_rotary(q, k, q_out, k_out, cos, sin, layout, start, sign)
    return q_out, k_out


def _launch_rotary(
    q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int, sign: float
) -> None:
    (batch, q_heads, tokens, width), pairs = q.shape, cos.shape[-1]
    if pairs == 0:
        q_out.copy_(q)
        k_out.copy_(k)
        return
    if batch * tokens == 0:
        return
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
            REST=triton.next_power_of_2(width) if q is not q_out and 2 * pairs < width else 0,
            HEADS=max(1, min(triton.next_power_of_2(q_heads), 2048 // block)),
        )  # fmt: skip


# a separate operator: opaque to torch.compile, with a backward pass for autograd


@torch.library.custom_op("posenc::rotary", mutates_args=())
def _rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int, sign: float
) -> tuple[Tensor, Tensor]:
    return _out_of_place(q, k, cos, sin, layout, start, sign)


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
