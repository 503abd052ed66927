# SPDX-License-Identifier: Apache-2.0
"""Our Triton kernels, imported only where one is called (`posenc.backends.triton`): attention with a relative table, without
gradients, in memory linear in the sequence, and rotating queries and keys in one launch.

The algorithm is FlashAttention-2's (Dao 2023), whose softmax is summed up tile by tile.
A pair (query i, key j) has the cell num_queries - 1 - i + j: the longest distance is cell 0. A bias of the distance is a
`vector` over cells; a product of the query with a table is `products`, one per query and row, and `row` names each cell's.

Where the numbers of a tile's cells are one, as beyond a clip or the last bucket, or lie on a line, as ALiBi's do, they
are computed. Else they are read through a tile of pointers: the window stays in L1 and neighbouring lanes read
neighbouring addresses.
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
NVIDIA = tl.constexpr(not triton.knobs.runtime.interpret and torch.version.hip is None)


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr):
    if INTERPRETED:  # Triton 3.9's interpreter multiplies the bit patterns of bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _read(at):
    """tl.load, which Triton's pipeline does not see: it would copy tiles of a table into shared memory, number by number."""
    if not NVIDIA:
        return tl.load(at)
    if at.dtype.element_ty.primitive_bitwidth == 32:
        x = tl.inline_asm_elementwise("ld.global.nc.b32 $0, [$1];", "=r,l", [at], tl.int32, True, 1)
    else:
        x = tl.inline_asm_elementwise("ld.global.nc.b16 $0, [$1];", "=h,l", [at], tl.int16, True, 1)
    return x.to(at.dtype.element_ty, bitcast=True)


@triton.jit
def _inputs(x, stride_n, at, n, d, D: tl.constexpr, MASKED: tl.constexpr):
    """Rows `at` of one head, (rows, channels), with zeros past the channels and, if MASKED, past the rows."""
    inside = (d < D)[None, :]
    if MASKED:
        inside = inside & (at < n)[:, None]
    return tl.load(x + at[:, None].to(tl.int64) * stride_n + d[None, :], mask=inside, other=0.0)


@triton.jit
def forward(
    Q, K, V, OUT, LSE, VECTOR_, PRODUCTS_, ROW, FAR, scale, diagonal, num_queries, num_keys, rows,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, HEADS: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    VECTOR: tl.constexpr, PRODUCTS: tl.constexpr, LONG: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The online softmax over keys in three loops. They have no branches: around one, ptxas serialises the products of tiles and
    spills registers. LONG: FAR holds what `_straight` found."""
    first_i = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # rows with the most keys begin first
    flat = tl.program_id(1).to(tl.int64)
    batch, head = flat // HEADS, flat % HEADS
    m, n, d, dv = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    inside = first_i + m < num_queries
    m = tl.minimum(m, num_queries - 1 - first_i)  # past the end, the last query once more
    i = first_i + m
    q = _inputs(Q + batch * qb + head * qh, qn, i, num_queries, d, D, False)
    K += batch * kb + head // GROUPS * kh
    V += batch * vb + head // GROUPS * vh
    VECTOR_ += head * (num_queries + num_keys - 1)
    of_query = PRODUCTS_ + (flat * num_queries + i) * rows
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_DV), tl.float32)
    # the tile's queries see all keys before `middle`; before `split` the bias is one number a query, or on a line
    end, middle = num_keys, num_keys
    if CAUSAL:
        end = tl.minimum(end, tl.minimum(first_i + BLOCK_M, num_queries) + diagonal)
        middle = tl.maximum(tl.minimum(middle, first_i + diagonal + 1), 0)
    middle = middle // BLOCK_N * BLOCK_N
    split, slope, far = 0 if VECTOR or PRODUCTS else middle, 0.0, tl.zeros((BLOCK_M,), tl.float32)
    if LONG:
        equal, straight = tl.load(FAR + head), tl.load(FAR + HEADS + head)
        split = tl.maximum(tl.maximum(equal, straight) - num_queries + 1 + first_i, 0) // BLOCK_N * BLOCK_N
        split = tl.minimum(split, middle)
        if VECTOR:
            corner, start = tl.maximum(num_queries - 1 + diagonal, 0), tl.load(VECTOR_)
            last = tl.load(VECTOR_ + corner, mask=straight > equal, other=0.0)
            slope = tl.where(straight > equal, (last - start) / tl.maximum(corner, 1), 0.0)
            far += tl.where(straight > equal, last, start) - slope * m
        if PRODUCTS:
            far += tl.load(of_query + tl.load(ROW)).to(tl.float32)
        if middle - split < 4 * BLOCK_N:  # filling a loop's pipeline takes time
            middle = split
    first = 0
    for part in tl.static_range(3):
        until = split if part == 0 else middle if part == 1 else end
        for first_j in range(first, until, BLOCK_N):
            j = first_j + n
            k = _inputs(K, kn, j, num_keys, d, D, part == 2)
            s = _dot(q, tl.trans(k), PRECISION) * (scale * LOG2E)
            if VECTOR and part == 0:
                s += (slope * LOG2E * (j - first_i - diagonal).to(tl.float32))[None, :]
            cell = num_queries - 1 - first_i + first_j + n[None, :] - m[:, None]
            if part == 2:  # past the keys, the last one once more
                cell = tl.minimum(cell, num_queries + num_keys - 2)
            if VECTOR and part > 0:
                s += _read(VECTOR_ + cell) * LOG2E
            if PRODUCTS and part > 0:
                s += _read(of_query[:, None] + _read(ROW + cell)).to(tl.float32) * LOG2E
            if part == 2:
                seen = (j < num_keys)[None, :] & (n[None, :] - m[:, None] <= first_i - first_j + diagonal)
                s = tl.where(seen, s, -float("inf"))
            v = _inputs(V, vn, j, num_keys, dv, DV, part == 2)
            new = tl.maximum(top, tl.max(s, 1))
            safe = tl.where(new == -float("inf"), 0.0, new)
            p = tl.exp2(s - safe[:, None])
            shrink = tl.exp2(top - safe)
            acc = acc * shrink[:, None] + _dot(p.to(v.dtype), v, PRECISION)
            top, total = new, total * shrink + tl.sum(p, 1)
        if part == 0:
            top += far * LOG2E
        first = until
    empty = (top == -float("inf")) & (total == total)  # a maximum passes over NaN, the sum does not
    out = tl.where(empty[:, None], 0.0, acc / tl.where(empty, 1.0, total)[:, None])
    at = OUT + (flat * num_queries + i[:, None]) * DV + dv[None, :]
    tl.store(at, out.to(OUT.dtype.element_ty), mask=inside[:, None] & (dv < DV)[None, :])
    lse = tl.where(empty, -float("inf"), (top + tl.log2(tl.where(empty, 1.0, total))) / LOG2E)
    tl.store(LSE + flat * num_queries + i, lse, mask=inside)


# -------------------------------------------------------------------- attention as an operator of PyTorch


TILES = {64: (128, 64, 8, 3), 128: (128, 64, 8, 3), 256: (64, 32, 4, 2)}
"""Up to a width of queries and values in half precision: queries and keys of a tile, warps of a program, stages of its pipeline,
by what ptxas says of registers and shared memory for sm_90; RECORD has those that benchmarks/gpu.py found fastest on a GPU."""


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
def _straight(
    VECTOR_, ROW, FAR, corner, cells, HEADS: tl.constexpr, VECTOR: tl.constexpr, PRODUCTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Of each head, the first cell whose number or row is not that of cell 0, and the first whose number is off the line from
    cell 0 to the corner, or whose row is another; into FAR, which holds `cells`."""
    cell, head = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    another = tl.load(ROW + cell, mask=cell < cells, other=0) != tl.load(ROW) if PRODUCTS else cell < 0
    bent = another
    if VECTOR:
        VECTOR_ += head * cells
        first, last = tl.load(VECTOR_), tl.load(VECTOR_ + corner)
        number = tl.load(VECTOR_ + cell, mask=cell < cells, other=0.0)
        line = last + (last - first) / tl.maximum(corner, 1) * (cell - corner)
        # float32's rounding of slope times distance is no bend
        bent = bent | ~(tl.abs(number - line) <= 5e-7 * tl.maximum(tl.abs(number), tl.abs(last)))
        another = another | (number != first)
    tl.atomic_min(FAR + head, tl.min(tl.where(another, cell, cells), 0))
    tl.atomic_min(FAR + HEADS + head, tl.min(tl.where(bent, cell, cells), 0))


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
        products: (batch, num_heads, num_queries, rows) in q's dtype or float32, added likewise from the row of the cell; None: nothing.
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
    diagonal = min(diagonal, k.shape[2] - 1)
    with torch.cuda.device_of(q):  # Triton launches on the current device, which need not be theirs
        cells = queries + k.shape[2] - 1
        far, long = nothing, queries > block_m and any(reads.values())
        if long:
            far = torch.full((2, heads), cells, dtype=torch.int32, device=q.device)
            grid, corner = (triton.cdiv(cells, 1024), heads), max(queries - 1 + diagonal, 0)
            _straight[grid](tables[0], tables[2], far, corner, cells, HEADS=heads, BLOCK=1024, **reads)
        forward[(triton.cdiv(queries, block_m), batch * heads)](
            q, k, v, out, lse, *tables, far, scale, diagonal, queries, k.shape[2], 0 if products is None else products.shape[-1],
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], HEADS=heads, GROUPS=heads // k.shape[1], D=q.shape[-1],
            DV=v.shape[-1], BLOCK_D=block_d, BLOCK_DV=block_dv, BLOCK_M=block_m, BLOCK_N=block_n, CAUSAL=diagonal < k.shape[2] - 1,
            LONG=long, PRECISION=precision, num_warps=warps, num_stages=stages, **reads,
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
