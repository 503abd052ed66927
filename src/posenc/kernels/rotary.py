# SPDX-License-Identifier: Apache-2.0
"""Rotating queries and keys in one launch: each program reads a token's tables once, for all heads of both."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc.errors import InputError, unknown
from posenc.functional import Layout, overlaps, unaliased
from posenc.kernels import DTYPES


@triton.jit
def _heads(
    x, out, x_head, x_channel, out_head, out_channel, heads, cos, sin, start, width,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, REST: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Rotate all heads of one token. x, out: pointers to the token; REST: the block of all channels, of which those that
    do not rotate are copied, or 0."""
    pair = tl.arange(0, BLOCK)
    if INTERLEAVED:
        first, second = start + 2 * pair, start + 2 * pair + 1
    else:
        first, second = start + pair, start + pair + PAIRS
    for begin in range(0, heads, HEADS):
        head = (begin + tl.arange(0, HEADS)).to(tl.int64)[:, None]
        visible = (head < heads) & (pair < PAIRS)[None, :]
        source, target = x + head * x_head, out + head * out_head
        a = tl.load(source + first[None, :] * x_channel, mask=visible, other=0.0).to(tl.float32)
        b = tl.load(source + second[None, :] * x_channel, mask=visible, other=0.0).to(tl.float32)
        turned_a, turned_b = a * cos - b * sin, b * cos + a * sin
        tl.store(target + first[None, :] * out_channel, turned_a.to(out.dtype.element_ty), mask=visible)
        tl.store(target + second[None, :] * out_channel, turned_b.to(out.dtype.element_ty), mask=visible)
        if REST:
            channel = tl.arange(0, REST)
            still = (channel < width) & ((channel < start) | (channel >= start + 2 * PAIRS))
            still = (head < heads) & still[None, :]
            kept = tl.load(source + channel[None, :] * x_channel, mask=still, other=0.0)
            tl.store(target + channel[None, :] * out_channel, kept, mask=still)


@triton.jit
def _kernel(
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
    _heads(
        q + row * q_row + token * q_token, q_out + row * q_out_row + token * q_out_token,
        q_head, q_channel, q_out_head, q_out_channel, q_heads, c, s, start, width,
        PAIRS, BLOCK, INTERLEAVED, REST, HEADS,
    )  # fmt: skip
    _heads(
        k + row * k_row + token * k_token, k_out + row * k_out_row + token * k_out_token,
        k_head, k_channel, k_out_head, k_out_channel, k_heads, c, s, start, width,
        PAIRS, BLOCK, INTERLEAVED, REST, HEADS,
    )  # fmt: skip


def rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int, inplace: bool
) -> tuple[Tensor, Tensor]:
    """What `posenc.kernels.rotary_kernel` says."""
    batch, _, tokens, width = q.shape
    if (batch, tokens, width) != (k.shape[0], *k.shape[2:]) or q.dtype != k.dtype or q.device != k.device:
        raise InputError(f"q {tuple(q.shape)} and k {tuple(k.shape)}: one kernel turns the same tokens of both")
    if cos.shape != sin.shape or cos.dim() != 4 or cos.shape[0] not in (1, batch) or cos.shape[1:3] != (1, tokens):
        raise InputError(
            f"tables {tuple(cos.shape)} and {tuple(sin.shape)}: pass (1 or {batch}, 1, {tokens}, pairs) for both"
        )
    if not 0 <= start <= width - 2 * cos.shape[-1]:
        raise InputError(f"start={start}: {cos.shape[-1]} pairs from there do not fit into {width} channels")
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
            raise InputError("inplace=True: q and k require grad, and the kernel would overwrite them; pass False")
        if overlaps(q) or overlaps(k):
            raise InputError("inplace=True: q or k is expanded, several of its entries are one in memory; pass False")
        cos, sin = (unaliased(unaliased(table, q), k) for table in (cos, sin))
        _launch(q, k, q, k, cos, sin, layout, start, 1.0)
        return q, k
    if wanted or torch.compiler.is_compiling():
        return _rotary(q, k, cos, sin, layout, start, 1.0)
    return _out_of_place(q, k, cos, sin, layout, start, 1.0)


def _out_of_place(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int, sign: float
) -> tuple[Tensor, Tensor]:
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    _launch(q, k, q_out, k_out, cos, sin, layout, start, sign)
    return q_out, k_out


def _launch(
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
    _kernel[(batch * tokens,)](
        q, q_out, k, k_out, cos, sin,
        *q.stride(), *q_out.stride(), *k.stride(), *k_out.stride(), *table_strides,
        tokens, q_heads, k.shape[1], start, width, sign,
        PAIRS=pairs, BLOCK=block, INTERLEAVED=layout == "interleaved",
        REST=triton.next_power_of_2(width) if q is not q_out and 2 * pairs < width else 0,
        HEADS=max(1, min(triton.next_power_of_2(q_heads), 2048 // block)),
    )  # fmt: skip


# an operator of its own: torch.compile keeps it whole, autograd knows its way back


@torch.library.custom_op("posenc::rotary", mutates_args=())
def _rotary(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int, sign: float
) -> tuple[Tensor, Tensor]:
    return _out_of_place(q, k, cos, sin, layout, start, sign)


@_rotary.register_fake
def _(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int, sign: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, cos, sin, ctx.layout, ctx.start, ctx.sign = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, of_q: Tensor, of_k: Tensor) -> tuple[Any, ...]:
    cos, sin = ctx.saved_tensors
    return (*_rotary(of_q, of_k, cos, sin, ctx.layout, ctx.start, -ctx.sign), None, None, None, None, None)


_rotary.register_autograd(_backward, setup_context=_setup_context)
