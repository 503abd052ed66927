# SPDX-License-Identifier: Apache-2.0
"""Attention with a relative table as an operator of PyTorch: the kernels of `attention_tiles`, launched, with their
gradients."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from posenc.kernels.attention_tiles import INTERPRETED, backward_keys, backward_queries, forward


class Tiles(NamedTuple):
    """Sizes of tiles and of programs, in the forward and in the backward, whose tiles are square."""

    block_m: int
    block_n: int
    block: int
    warps: int
    backward_warps: int
    stages: int


TILES = {
    64: Tiles(128, 64, 64, 8, 8, 2),
    128: Tiles(128, 64, 64, 8, 8, 2),
    256: Tiles(64, 32, 32, 4, 4, 2),
}
"""Up to a width of queries and values in half precision. Chosen by what ptxas says of registers and shared memory for
sm_90, not by time; benchmarks/attention_gpu.py --tune tries others."""


def _tiles(q: Tensor, v: Tensor) -> Tiles:
    if INTERPRETED:
        return Tiles(32, 16, 16, 4, 4, 1)
    width = max(q.shape[-1], v.shape[-1]) * q.element_size() // 2  # float32 takes the room of twice the width
    return TILES[min((limit for limit in TILES if width <= limit), default=256)]


def _blocks(width: int, value_width: int) -> tuple[int, int]:
    # a product of tiles needs 16 channels
    return max(16, triton.next_power_of_2(width)), max(16, triton.next_power_of_2(value_width))


def _common(
    q: Tensor, k: Tensor, v: Tensor, vector: Tensor | None, products: Tensor | None, row: Tensor | None,
    diagonal: int, precision: str,
) -> tuple[dict[str, Any], list[Tensor], tuple[int, int, int, int]]:  # fmt: skip
    """What all three kernels are told at compile time, and pointers that stand in for what is absent."""
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


def _dense_channels(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


@torch.library.custom_op("posenc::relative_attention", mutates_args=())
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
    options, tables, sizes = _common(q, k, v, vector, products, row, diagonal, precision)
    out, lse = q.new_empty(batch, heads, queries, v.shape[-1]), q.new_empty(batch, heads, queries, dtype=torch.float32)
    tiles = _tiles(q, v)
    forward[(triton.cdiv(queries, tiles.block_m), batch * heads)](
        q, k, v, out, lse, *tables, scale, *sizes, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, num_warps=tiles.warps, num_stages=tiles.stages, **options,
    )  # fmt: skip
    return out, lse


@relative_attention.register_fake
def _(q, k, v, vector, products, row, scale, diagonal, precision):
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("posenc::relative_attention_backward", mutates_args=())
def _backward(
    q: Tensor, k: Tensor, v: Tensor, vector: Tensor | None, products: Tensor | None, row: Tensor | None,
    lse: Tensor, delta: Tensor, dout: Tensor, scale: float, diagonal: int, precision: str, of_vector: bool,
    of_products: bool, deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, vector and products; empty where not asked for. delta: (batch, num_heads, num_queries),
    what is taken from the gradient of every probability. deterministic: the vector's gradient is summed from a part
    per block of keys, num_queries x num_keys / BLOCK numbers a head, instead of by atomic additions; that of the products is
    always atomic where keys of a query share a row."""
    q, k, v, dout = (_dense_channels(x) for x in (q, k, v, dout))
    (batch, heads, queries), (kv_heads, keys) = q.shape[:3], k.shape[1:3]
    options, tables, sizes = _common(q, k, v, vector, products, row, diagonal, precision)
    tiles = _tiles(q, v)
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3])
    # an empty row has no probabilities: exp(s - inf) is zero
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    cells, blocks = queries + keys - 1, triton.cdiv(keys, tiles.block)
    parts = (batch, heads, blocks, cells) if deterministic else (heads, cells)
    dvector = q.new_zeros(parts if of_vector else (0,), dtype=torch.float32)
    dproducts = torch.zeros_like(tables[1]) if of_products else dvector.new_empty(0)
    launch = {"BLOCK": tiles.block, "num_warps": tiles.backward_warps, "num_stages": tiles.stages} | options
    backward_keys[(blocks, batch * kv_heads)](
        q, k, v, dout, lse, delta, *tables, dk, dv, dvector, scale, *sizes, *strides,
        LEARNED=of_vector, ATOMIC=not deterministic, **launch,
    )  # fmt: skip
    backward_queries[(triton.cdiv(queries, tiles.block), batch * heads)](
        q, k, v, dout, lse, delta, *tables, dq, dproducts, scale, *sizes, *strides, LEARNED=of_products, **launch,
    )  # fmt: skip
    return dq, dk, dv, dvector.sum((0, 2)) if of_vector and deterministic else dvector, dproducts


@_backward.register_fake
def _(q, k, v, vector, products, row, lse, delta, dout, scale, diagonal, precision, of_vector, of_products, deterministic):  # fmt: skip
    tables = [q.new_empty(x.shape if asked else (0,), dtype=torch.float32)
              for x, asked in ((vector, of_vector), (products, of_products))]  # fmt: skip
    return *(x.new_empty(x.shape) for x in (q, k, v)), *tables


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.scale, ctx.diagonal, ctx.precision = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx, dout, dlse):
    q, k, v, vector, products, row, out, lse = ctx.saved_tensors
    delta = (out.float() * dout.float()).sum(-1) - dlse
    asked = ctx.needs_input_grad[3:5]
    found = _backward(
        q, k, v, vector, products, row, lse, delta, dout, ctx.scale, ctx.diagonal, ctx.precision, *asked,
        torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    return (
        *found[:3],
        *(x if wanted else None for x, wanted in zip(found[3:], asked, strict=True)),
        None,
        None,
        None,
        None,
    )


relative_attention.register_autograd(_gradients, setup_context=_save)
