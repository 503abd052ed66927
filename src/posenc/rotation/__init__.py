# SPDX-License-Identifier: Apache-2.0
"""Turning pairs of channels as fast as PyTorch can: the kernels behind `posenc.functional.rotary`.

Rotating is bound by memory, so what counts is how often the tensor is passed over. Interleaved pairs are complex numbers:
one multiplication, one pass. Split pairs take three operations, run on blocks of tokens that stay in the cache between
them, and one if compiled. The way back is the same rotation by the opposite angle and needs the tables alone.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from posenc.checks import check_flags, check_value, checked
from posenc.errors import InputError, first_line, unknown

Layout = Literal["half", "interleaved"]

BLOCK_BYTES = 2**20
"""Of a block of tokens, per thread: with its result it fits a core's second-level cache."""

TINY = 2**13
"""Elements up to which the number of calls is what costs."""

COMPILED_FROM = 2**16
"""Elements from which a compiled kernel makes up for the 25 us that calling it costs."""


def rotary(
    x: Tensor, cos: Tensor, sin: Tensor, *, layout: Layout = "half", start: int = 0, inplace: bool = False
) -> Tensor:
    """Rotate pairs of channels: (..., seq, head_dim) -> the same shape and dtype (Su et al. 2021, RoFormer, eq. 34).

    cos and sin are (..., seq, pairs), broadcastable to x, one entry per rotated pair: a batch of tables takes an axis
    for the heads, cos[:, None]. They need not be of unit length
    (YaRN's attention factor, xPos) and may require gradients. The 2 * pairs channels from `start` on are rotated and
    the rest passes through (partial rotary). layout: "half" pairs channel c with c + pairs (GPT-NeoX, Llama in
    transformers), "interleaved" pairs 2c with 2c + 1 (RoFormer, GPT-J). inplace: overwrite x and return it.
    Half precision is computed in float32 and rounded once. The result lies in memory as x does.

    transformers' tables hold each angle twice: pass cos[..., :rotary_dim // 2]. Under partial rotary the whole of them
    fits x too, and turns twice the channels that it should.

    Raises:
        InputError: x of integers, tables that do not fit x, an unknown layout, or inplace where autograd needs the old x
            or where entries of x share memory.
    """
    if not torch.compiler.is_compiling() and not (
        type(x) is type(cos) is type(sin) is Tensor
        and type(start) is int
        and type(inplace) is bool
        and x.device == cos.device == sin.device
        and x.layout is cos.layout is sin.layout is torch.strided
    ):
        _check_given(x, cos, sin, start, inplace)
    if x.dim() == 0 or cos.dim() == 0 or sin.dim() == 0:
        raise InputError(
            f"x {tuple(x.shape)}, cos {tuple(cos.shape)} and sin {tuple(sin.shape)}: pass (.., seq, channels)"
        )
    pairs, width = cos.shape[-1], x.shape[-1]
    if cos.is_complex() or sin.is_complex():
        raise InputError(f"cos of {cos.dtype}, sin of {sin.dtype}: pass real numbers, each by itself")
    if not x.is_floating_point():
        raise InputError(f"x of {x.dtype}: a turned integer is none; pass x.float()")
    if start < 0:
        raise InputError(f"start={start}: pass the first channel that is turned, at least 0")
    if start + 2 * pairs > width:
        raise InputError(
            f"cos has {pairs} columns for head_dim={width}{f' and start={start}' if start else ''}: pass one per "
            "rotated pair, at most head_dim/2 (tables that repeat each angle, as in transformers, are "
            "cos[..., :head_dim//2] here)"
        )
    if not isinstance(layout, str) or layout not in ("half", "interleaved"):
        raise unknown("layout", layout, ("half", "interleaved"))
    if not torch.compiler.is_compiling() and not (sin.shape[-1] == pairs and _fits(cos, x) and _fits(sin, x)):
        raise InputError(
            f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} do not fit x {tuple(x.shape)}: pass (..., seq, pairs), a row "
            "per token of x or one for all; a batch of tables, (batch, seq, pairs), needs cos[:, None]"
        )
    training = torch.is_grad_enabled()
    learned = training and (cos.requires_grad or sin.requires_grad)
    if inplace:
        _check_inplace(x, cos, learned)
    if torch.compiler.is_compiling():
        alone = training and x.requires_grad and not learned
        turn = _Traced.apply if alone else formula
        sin = sin.clone() if sin is cos else sin  # Dynamo refuses one tensor as two inputs of a Function
        turned = turn(x, cos, sin, layout, start)
        return x.copy_(turned) if inplace else turned
    if learned or transformed():
        turned = formula(x, cos, sin, layout, start)
        return x.copy_(turned) if inplace else turned
    if training and x.requires_grad:
        return _Turn.apply(x, cos, sin, layout, start, inplace)  # type: ignore[no-untyped-call]
    return _turn(x, cos, sin, layout, start, inplace)


def formula(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int) -> Tensor:
    """`rotary` as one expression, which autograd and torch.compile understand."""
    order = x.dim() == 4 and x.shape[2] > 1 and x.stride(1) < x.stride(2)
    if order:  # heads lie next to one another, as a projection leaves them: keep it so
        x, cos, sin = x.transpose(-2, -3), _heads_inside(cos), _heads_inside(sin)
    pairs = cos.shape[-1]
    dtype, precise = x.dtype, _precise(x, cos)
    if layout == "half":
        a, b = x[..., start : start + pairs], x[..., start + pairs : start + 2 * pairs]
    else:
        a, b = x[..., start : start + 2 * pairs : 2], x[..., start + 1 : start + 2 * pairs : 2]
    if precise != cos.dtype:  # what they multiply follows
        cos, sin = cos.to(precise), sin.to(precise)
    # each half is cast before the concatenation: under Inductor this is what reaches the speed of a copy
    parts = [a * cos - b * sin, b * cos + a * sin]
    if precise != dtype:
        parts = [part.to(dtype) for part in parts]
    if layout == "interleaved":
        parts = [torch.stack(parts, -1).flatten(-2)]
    if start:
        parts.insert(0, x[..., :start].expand(*parts[0].shape[:-1], -1))
    if start + 2 * pairs < x.shape[-1]:
        parts.append(x[..., start + 2 * pairs :].expand(*parts[0].shape[:-1], -1))
    found = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
    return found.transpose(-2, -3) if order else found


def turns_token(q: Tensor, k: Tensor | None = None) -> bool:
    """Whether `turn_token` may and should serve heads whose channels all rotate: those of one token, with nothing to
    differentiate."""
    if q.shape[2] != 1 or torch.compiler.is_compiling():
        return False
    differentiable = q.requires_grad or (k is not None and k.requires_grad)
    return (
        q.numel() + (0 if k is None else k.numel()) <= 2 * TINY
        and not (differentiable and torch.is_grad_enabled())
        and not transformed()
    )


def turn_together(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Queries and keys (batch, heads, 1, head_dim) of one token in one go: tiny tensors cost what their calls cost.
    cos and sin are those of `widened`."""
    turned = turn_token(torch.cat((q, k), 1), cos, sin, layout)
    return turned.narrow(1, 0, q.shape[1]), turned.narrow(1, q.shape[1], k.shape[1])


def turn_token(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """The heads (batch, heads, 1, head_dim) of one token. cos and sin are those of `widened`."""
    if layout == "half":
        partner = x.roll(x.shape[-1] // 2, -1)
    else:
        partner = x.view(*x.shape[:-1], x.shape[-1] // 2, 2).flip(-1).view(x.shape)
    turned = torch.addcmul(x * cos, partner, sin)
    return turned if turned.dtype == x.dtype else turned.to(x.dtype)


def widened(cos: Tensor, sin: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Tables (..., pairs) as one column per channel, (..., 2 * pairs), signed: x' = x cos + (its partner) sin."""
    if layout == "half":
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    return cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)


# -------------------------------------------------------------------- gradients


class _Turn(torch.autograd.Function):
    """The rotation with tables that are constants. Its backward is itself with the opposite angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int, inplace: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.layout, ctx.start = layout, start
        if inplace:
            ctx.mark_dirty(x)
        return _turn(x, cos, sin, layout, start, inplace)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return rotary(gradient, cos, -sin, layout=ctx.layout, start=ctx.start), None, None, None, None, None


class _Traced(torch.autograd.Function):
    """The same for torch.compile, which would derive a backward of twice the passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.layout, ctx.start = layout, start
        return formula(x, cos, sin, layout, start)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return formula(gradient, cos, -sin, ctx.layout, ctx.start), None, None, None, None


def _check_given(x: Tensor, cos: Tensor, sin: Tensor, start: int, inplace: bool) -> None:
    for name, given in (("x", x), ("cos", cos), ("sin", sin)):
        check_value(name, given, Tensor)
        if given.device != x.device:
            raise InputError(f"{name} is on {given.device}, x on {x.device}: pass {name}.to(x.device)")
    check_value("start", start, int)
    check_flags(inplace=inplace)


def _fits(table: Tensor, x: Tensor) -> bool:
    """Whether everything but the channels broadcasts."""
    pairs = zip(table.shape[-2::-1], x.shape[-2::-1], strict=False)
    return all(n == m or n == 1 or m == 1 for n, m in pairs)


def overlaps(x: Tensor) -> bool:
    """Whether entries of x are, or for strides that interlock may be, one in memory."""
    if torch.compiler.is_compiling():
        return False
    reach = 0
    for step, n in sorted(zip(x.stride(), x.shape, strict=True)):
        if n > 1:
            if step <= reach:
                return x.numel() > 0
            reach += (n - 1) * step
    return False


def kept_apart(table: Tensor, x: Tensor) -> Tensor:
    """A table that stays as it is while x is overwritten."""
    return table.clone() if table.untyped_storage()._cdata == x.untyped_storage()._cdata else table


def _check_inplace(x: Tensor, cos: Tensor, learned: bool) -> None:
    remedy = "pass inplace=False"
    if learned:
        raise InputError(f"inplace=True: the gradient of cos and sin needs the unrotated x; {remedy}")
    if torch.is_grad_enabled() and x.requires_grad and x.is_leaf:
        raise InputError(f"inplace=True: x is a leaf that requires grad, which autograd forbids to overwrite; {remedy}")
    if overlaps(x):
        raise InputError(f"inplace=True: x is expanded or overlaps, several of its entries are one in memory; {remedy}")
    if torch.broadcast_shapes(x.shape[:-1], cos.shape[:-1]) != x.shape[:-1]:
        raise InputError(f"inplace=True: the result for tables {tuple(cos.shape)} is larger than x; {remedy}")


def transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work, which know formulas but not kernels."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


# -------------------------------------------------------------------- the kernels


def _turn(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int, inplace: bool) -> Tensor:
    if x.numel() <= TINY and not inplace:
        return formula(x, cos, sin, layout, start)
    shape = torch.broadcast_shapes(x.shape[:-1], cos.shape[:-1])
    if shape != x.shape[:-1]:
        x = x.expand(*shape, -1)
    if not inplace and _COMPILED.serves(x, layout):
        return _COMPILED(x, cos, sin, layout, start)
    pairs = cos.shape[-1]
    if inplace:
        cos, sin = kept_apart(cos, x), kept_apart(sin, x)
    out = x if inplace else torch.empty_like(x)
    if not inplace and 2 * pairs < x.shape[-1]:
        for rest in (slice(start), slice(start + 2 * pairs, None)):
            out[..., rest] = x[..., rest]
    x, found = (t[..., start : start + 2 * pairs] for t in (x, out))
    precise = _precise(x, cos)
    if layout == "interleaved" and x.dtype == precise and _is_complex(x) and _is_complex(found):
        turn = torch.complex(cos.to(precise), sin.to(precise))
        torch.mul(_as_complex(x), turn, out=_as_complex(found))
        return out
    for tokens in blocks(x, precise):
        c, s = (table[..., tokens, :] if table.dim() > 1 and table.shape[-2] > 1 else table for table in (cos, sin))
        block, target, c, s = x[..., tokens, :], found[..., tokens, :], c.to(precise), s.to(precise)
        if layout == "half":
            _turn_half(block.to(precise, copy=inplace), c, s, target)
        else:
            _turn_copied(block, c, s, target)
    return out


def _turn_half(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """out = x rotated, split pairs."""
    found = out if out.dtype == x.dtype else torch.empty_like(x)
    (a, b), (found_a, found_b) = x.chunk(2, -1), found.chunk(2, -1)
    torch.mul(x, torch.cat((cos, cos), -1), out=found)
    found_a.addcmul_(b, sin, value=-1)
    found_b.addcmul_(a, sin)
    if found is not out:
        out.copy_(found)


def _turn_copied(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """out = x rotated, interleaved pairs, by way of a copy that can be read as complex numbers."""
    copied = x.to(cos.dtype, copy=True)
    if not _is_complex(copied):
        copied = copied.contiguous()
    _as_complex(copied).mul_(torch.complex(cos, sin))
    out.copy_(copied)


def _is_complex(x: Tensor) -> bool:
    """Whether neighbouring channels can be read as one complex number."""
    return x.stride(-1) == 1 and x.storage_offset() % 2 == 0 and all(step % 2 == 0 for step in x.stride()[:-1])


def _as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.view(*x.shape[:-1], x.shape[-1] // 2, 2))


def blocks(x: Tensor, precise: torch.dtype) -> Iterator[slice]:
    """Runs of tokens that fit the cache, on the CPU; elsewhere all at once."""
    tokens = x.shape[-2]
    step = tokens
    if x.device.type == "cpu" and x.numel():
        step = max(1, BLOCK_BYTES * torch.get_num_threads() * tokens // (x.numel() * precise.itemsize))
    for first in range(0, tokens, max(1, step)):
        yield slice(first, first + step)


def _precise(x: Tensor, cos: Tensor) -> torch.dtype:
    if x.dtype == cos.dtype == torch.float32:
        return x.dtype
    return torch.promote_types(torch.promote_types(x.dtype, cos.dtype), torch.float32)


def _heads_inside(table: Tensor) -> Tensor:
    """A (..., heads, seq, pairs) or (seq, pairs) table for x of (batch, seq, heads, head_dim)."""
    return table.unsqueeze(-2) if table.dim() < 3 else table.transpose(-2, -3)


# -------------------------------------------------------------------- the compiled form, for eager users


class _Compiled:
    """`formula`, compiled: a graph for each kind of call, whatever its sizes."""

    def __init__(self) -> None:
        self.enabled = False
        self._kinds: set[tuple[object, ...]] = set()

    @cached_property
    def _run(self) -> Callable[..., Tensor]:
        return torch.compile(formula, dynamic=True, fullgraph=True)

    def serves(self, x: Tensor, layout: Layout) -> bool:
        """Large split pairs on the CPU; interleaved ones are slower compiled than as complex numbers."""
        large = x.shape[-2] > 1 and x.numel() >= COMPILED_FROM
        return self.enabled and layout == "half" and large and x.device.type == "cpu"

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int) -> Tensor:
        def shape(t: Tensor) -> tuple[object, ...]:
            order = sorted(range(t.dim()), key=t.stride)
            return (t.dtype, tuple(n == 1 for n in t.shape), tuple(order))

        kind = (layout, start, shape(x), shape(cos), shape(sin))
        with torch.no_grad():
            if kind in self._kinds:
                return self._run(x.detach(), cos, sin, layout, start)
            with torch._dynamo.config.patch(recompile_limit=len(self._kinds) + 64):
                found = self._run(x.detach(), cos, sin, layout, start)
            self._kinds.add(kind)
            return found


_COMPILED = _Compiled()


@checked
def compile_rotary(enable: bool = True) -> bool:
    """Rotate on the CPU with kernels made by torch.compile from now on, in this process; False goes back.

    For eager code; a model under torch.compile has them anyway. Forward and backward run near the speed of a copy.
    The price is paid here and at the first call of each kind (dtype, layout, order in memory): the first takes about ten
    seconds, further ones one or two, and no length makes another. Tiny inputs and inplace stay as they are.

    Returns whether it is on: without a working compiler a warning says what is missing, and nothing changes.
    """
    _COMPILED.enabled = False
    if enable:
        x, table = torch.zeros(1, 2, 2, 4), torch.zeros(2, 2)
        try:
            _COMPILED(x, table, table, "half", 0)
        except Exception as error:
            warnings.warn(
                f"compile_rotary: torch.compile does not work here ({first_line(error)}); rotations stay eager. On Linux it "
                "needs a C++ compiler, e.g. apt-get install g++",
                stacklevel=2,
            )
            return False
        _COMPILED.enabled = True
    return _COMPILED.enabled
