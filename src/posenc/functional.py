# SPDX-License-Identifier: Apache-2.0
"""Pure tensor functions: the formulas of the encodings, without modules or state."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NoReturn, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad

from posenc.errors import (
    InputError,
    check_integers,
    check_numbers,
    check_positive,
    check_sizes,
    check_tensor,
    check_value,
    check_word,
    unknown,
)

__all__ = [
    "CURVES", "Layout", "SinusoidalLayout", "alibi_slopes", "binary_digits", "deberta_bucket",
    "frequency_curve", "layout_permutation", "rotary", "shift_matrix", "sinusoidal", "sinusoidal_from", "t5_bucket",
]  # fmt: skip

Layout = Literal["half", "interleaved"]
SinusoidalLayout = Literal["interleaved", "concat"]

# ---------------------------------------------------------------- sinusoidal codes

CURVES: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "geometric": lambda t, base, exponent: torch.pow(base, -t),
    "power": lambda t, base, exponent: t**exponent,
}
"""Frequency curves theta(t), t in [0, 1]: 10000^-t of the Transformer, and t^exponent (1 is linear, 1/2 the root)."""


def frequency_curve(
    dim: int, *, base: float = 10000.0, curve: str = "geometric", exponent: float = 1.0, endpoint: bool = False
) -> Tensor:
    """The dim/2 angular frequencies theta(t_c), float64, of sinusoidal codes and rotations.

    t_c = 2c/dim, c = 0 .. dim/2-1 (Vaswani et al. 2017, section 3.5); with endpoint=True t_c = c/(dim/2-1), so that
    the last frequency is exactly theta(1) (tensor2tensor, fairseq, Whisper). The curves besides base^-t are those
    compared by Su, kexue.fm/archives/8231.

    Raises:
        InputError: odd dim, base or exponent not above 0, unknown curve, or a number that it does not read.
    """
    check_even("dim", dim)
    check_positive(base=base)
    check_word("curve", curve, CURVES)
    check_positive(exponent=exponent)
    if curve == "power" and base != 10000.0:
        raise InputError("t^exponent has no base", "leave it out", curve=curve, base=base)
    if curve != "power" and exponent != 1.0:
        raise InputError(
            "base^-t has no exponent", "leave it out, or pass curve='power'", curve=curve, exponent=exponent
        )
    pairs = dim // 2
    steps = max(pairs - 1, 1) if endpoint else pairs
    t = torch.arange(pairs, dtype=torch.float64, device="cpu") / steps
    return CURVES[curve](t, base, exponent)


def sinusoidal(
    positions: Tensor,
    dim: int,
    *,
    base: float = 10000.0,
    layout: SinusoidalLayout = "interleaved",
    curve: str = "geometric",
    exponent: float = 1.0,
    endpoint: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sinusoidal codes: sin(k theta_c), cos(k theta_c). (...) positions -> (..., dim), computed in float64.

    layout: "interleaved" alternates sin and cos (Vaswani et al. 2017, section 3.5); "concat" puts all sines before
    all cosines (Transformer-XL, Marian, RoFormer). dtype defaults to torch's default.

    Raises:
        InputError: odd dim, unknown layout, a dtype of integers, or what `frequency_curve` refuses.
    """
    if dtype is not None and not dtype.is_floating_point:
        raise InputError("integers cannot store the codes", "pass a float dtype", dtype=dtype)
    frequencies = frequency_curve(dim, base=base, curve=curve, exponent=exponent, endpoint=endpoint)
    frequencies = frequencies.to(table_device(positions.device))
    return sinusoidal_from(positions, frequencies, layout).to(dtype or torch.get_default_dtype())


def sinusoidal_from(positions: Tensor, frequencies: Tensor, layout: SinusoidalLayout) -> Tensor:
    """`sinusoidal` for given frequencies (dim/2,); the result has their dtype."""
    check_tensor("positions", positions)
    check_tensor("frequencies", frequencies)
    angles = positions.to(frequencies)[..., None] * frequencies
    if layout == "interleaved":
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)
    if layout == "concat":
        return torch.cat((angles.sin(), angles.cos()), -1)
    raise unknown("layout", layout, get_args(SinusoidalLayout))


def shift_matrix(shift: float, *, dim: int, base: float = 10000.0, layout: SinusoidalLayout = "interleaved") -> Tensor:
    """The (dim, dim) float64 matrix M with M p(t) = p(t + shift) for every t: a rotation per frequency.

    Raises:
        InputError: odd dim or unknown layout.
    """
    check_numbers(shift=shift)
    check_word("layout", layout, get_args(SinusoidalLayout))
    angles = shift * frequency_curve(dim, base=base)
    channels = torch.arange(dim, device="cpu")
    sines, cosines = (channels[::2], channels[1::2]) if layout == "interleaved" else channels.chunk(2)
    return turning(angles, cosines, sines, dim)


def turning(angles: Tensor, first: Tensor, second: Tensor, dim: int) -> Tensor:
    """The (dim, dim) matrix that rotates the channels (first, second) of each pair by its angle, and leaves the others
    unchanged. angles, first, second: (pairs,); the result has the angles' dtype."""
    cos, sin = angles.cos(), angles.sin()
    matrix = torch.eye(dim, dtype=angles.dtype, device=angles.device)
    matrix[first, first], matrix[first, second] = cos, -sin
    matrix[second, first], matrix[second, second] = sin, cos
    return matrix


def binary_digits(positions: Tensor, bits: int) -> Tensor:
    """Binary digits of integer positions, least significant first: (...) -> (..., bits) of zeros and ones.
    Positions from 2^bits on repeat the earlier ones.

    Raises:
        InputError: fractional positions, or bits outside 1 .. 62.
    """
    check_tensor("positions", positions, integers=True)
    check_integers(1, 62, bits=bits)
    return torch.bitwise_right_shift(positions[..., None], torch.arange(bits, device=positions.device)) & 1


# ---------------------------------------------------------------- slopes and buckets


def alibi_slopes(num_heads: int, *, bias_max: float = 8.0) -> Tensor:
    """ALiBi's slope of each head, (num_heads,) float64, for any number of heads (Press et al. 2022, section 3).

    Powers of two: 2^(-bias_max(h+1)/H), MPT's alibi_bias_max. Otherwise the slopes of the power of two below, then every
    second one of the power of two above, as in the authors' code.

    Raises:
        InputError: num_heads < 1, bias_max not above 0, or above 126, where float32 takes slopes for 0.
    """
    check_sizes(num_heads=num_heads)
    check_positive(bias_max=bias_max)
    check_numbers(None, 126, bias_max=bias_max)
    lower = 1 << (int(num_heads).bit_length() - 1)

    def geometric(count: int) -> Tensor:
        return 2.0 ** (-bias_max * torch.arange(1, count + 1, dtype=torch.float64, device="cpu") / count)

    return torch.cat((geometric(lower), geometric(2 * lower)[0::2][: num_heads - lower]))


def t5_bucket(
    relative_position: Tensor, *, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
) -> Tensor:
    """T5's bucket of key position minus query position: int64, same shape (Raffel et al. 2020, section 2.1).

    Half of a direction's buckets hold one distance each, the other half grow logarithmically up to max_distance.
    bidirectional: the upper half of the buckets is for keys after the query; otherwise those share bucket 0.

    Raises:
        InputError: too few buckets, or max_distance not beyond the exact ones.
    """
    check_tensor("relative_position", relative_position, meta=True)
    check_integers(num_buckets=num_buckets, max_distance=max_distance)
    relative_position = relative_position if relative_position.is_floating_point() else relative_position.long()
    per_side = num_buckets // 2 if bidirectional else num_buckets
    exact = per_side // 2
    if exact < 1 or max_distance <= exact:
        needs = f"needs at least {4 if bidirectional else 2} buckets and max_distance above {exact}"
        raise InputError(needs, num_buckets=num_buckets, max_distance=max_distance)
    if bidirectional:
        side = (relative_position > 0).long() * per_side
        distance = relative_position.abs()
    else:
        side = torch.zeros_like(relative_position, dtype=torch.long)
        distance = (-relative_position).clamp(min=0)
    # float32 on purpose: T5's own logarithms are, and the bucket edges are to be the same
    growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (growth * (per_side - exact)).long()).clamp(max=per_side - 1)
    return side + torch.where(distance < exact, distance.long(), far)


def deberta_bucket(distance: Tensor, *, num_buckets: int = 256, max_distance: int = 512) -> Tensor:
    """DeBERTa's bucket of query position minus key position: int64, same shape and sign (He et al. 2021; v2, v3).

    Distances up to num_buckets / 2 are their own bucket; longer ones grow logarithmically, so that max_distance - 1 is
    in the last bucket, num_buckets - 1. Further ones go on beyond it, as in transformers; the authors clamp them.

    Raises:
        InputError: an odd number of buckets or less than 4, or max_distance not beyond the exact ones.
    """
    check_tensor("distance", distance, meta=True)
    check_integers(num_buckets=num_buckets, max_distance=max_distance)
    distance = distance if distance.is_floating_point() else distance.long()
    exact = num_buckets // 2
    if num_buckets < 4 or num_buckets % 2 or max_distance - 1 <= exact:
        needs = f"needs an even number of at least 4 buckets, and a largest distance above {exact + 1}"
        raise InputError(needs, num_buckets=num_buckets, max_distance=max_distance)
    # float32 on purpose, as in t5_bucket
    far = distance.abs().clamp(min=exact).float() / exact
    growth = far.log() / far.new_full((), (max_distance - 1) / exact).log()
    bucket = torch.ceil(growth * (exact - 1)).long() + exact
    return torch.where(distance.abs() <= exact, distance.long(), distance.sign().long() * bucket)


# ---------------------------------------------------------------- rotation of pairs of channels

# Rotating is bound by memory, so what counts is how often the tensor is passed over. Interleaved pairs are complex numbers:
# one multiplication, one pass. Split pairs take three operations, run on blocks of tokens that stay in the cache between
# them. The backward pass is the same rotation by the opposite angle and needs the tables alone.

BLOCK_BYTES = 2**20
"""Of a block of tokens, per thread: with its result it fits a core's second-level cache."""

AS_IT_IS: AbstractContextManager[Any] = nullcontext()

TINY = 2**13
"""Elements up to which the number of calls is what costs."""


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, layout: Layout = "half", start: int = 0) -> Tensor:
    """Rotate pairs of channels: (..., seq, head_dim) -> the same shape and dtype (Su et al. 2021, RoFormer, eq. 34).

    cos and sin are both (..., seq, pairs), broadcastable to x, one entry per rotated pair: a batch of tables takes an axis
    for the heads, cos[:, None]. They need not be of unit length (YaRN's attention factor, xPos) and may require gradients.
    The 2 * pairs channels from `start` on are rotated, and the rest passes through (partial rotary). layout: "half" pairs
    channel c with c + pairs (GPT-NeoX, Llama in transformers), "interleaved" 2c with 2c + 1 (RoFormer, GPT-J). Half precision
    is computed in float32 and rounded once. The result lies in memory as x does.

    transformers' tables hold each angle twice: pass cos[..., :rotary_dim // 2].

    Raises:
        InputError: x of integers, tables that do not fit x, or an unknown layout.
    """
    traced = torch.compiler.is_compiling()
    if not traced and not (
        type(x) is type(cos) is type(sin) is Tensor
        and type(start) is int
        and x.device == cos.device == sin.device
        and x.layout is cos.layout is sin.layout is torch.strided
    ):
        _check_given(x, cos, sin, start)
    if x.dim() == 0 or cos.dim() == 0 or sin.dim() == 0:
        raise InputError(f"x {x.dim()}-D, cos {cos.dim()}-D, sin {sin.dim()}-D: pass (.., seq, channels)")
    pairs, width = cos.shape[-1], x.shape[-1]
    if cos.is_complex() or sin.is_complex():
        raise InputError(f"cos of {cos.dtype}, sin of {sin.dtype}: pass real numbers, each by itself")
    if not x.is_floating_point():
        raise InputError(f"x of {x.dtype}: x must be floating point; pass x.float()")
    if start < 0:
        raise InputError("the first channel that is rotated must be at least 0", start=start)
    if start + 2 * pairs > width:
        remedy = "one per rotated pair, cos[..., :head_dim // 2] of tables that repeat each angle"
        raise InputError(f"cos has {pairs} columns for head_dim={width} and start={start}: pass {remedy}")
    if not isinstance(layout, str) or layout not in ("half", "interleaved"):
        raise unknown("layout", layout, ("half", "interleaved"))
    if not traced and not (sin.shape == cos.shape and _fits(cos, x)):
        remedy = "pass both as (..., seq, pairs); a batch of tables, (batch, seq, pairs), needs cos[:, None]"
        raise InputError(f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} do not fit x {tuple(x.shape)}: {remedy}")
    training = torch.is_grad_enabled()
    learned = training and (cos.requires_grad or sin.requires_grad)
    if training and x.requires_grad and not learned and (traced or not transformed()):
        if traced:
            sin = sin.clone() if sin is cos else sin  # Dynamo refuses one tensor as two inputs of a Function
        return _Rotation.apply(x, cos, sin, layout, start)  # type: ignore[no-untyped-call]
    if traced or learned or x.numel() <= TINY or transformed():
        return formula(x, cos, sin, layout, start)
    return _rotate(x, cos, sin, layout, start)


def formula(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int) -> Tensor:
    """`rotary` as one expression, which autograd and torch.compile understand."""
    order = x.dim() == 4 and x.shape[2] > 1 and x.stride(1) < x.stride(2)
    if order:  # heads lie next to one another, as a projection leaves them: they stay so
        x, cos, sin = x.transpose(-2, -3), _heads_inside(cos), _heads_inside(sin)
    pairs = cos.shape[-1]
    dtype, precise = x.dtype, torch.promote_types(torch.promote_types(x.dtype, cos.dtype), torch.float32)
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
        # flatten has no rule for batched gradients
        parts = [torch.stack(parts, -1).reshape(*parts[0].shape[:-1], 2 * pairs)]
    if start:
        parts.insert(0, x[..., :start].expand(*parts[0].shape[:-1], -1))
    if start + 2 * pairs < x.shape[-1]:
        parts.append(x[..., start + 2 * pairs :].expand(*parts[0].shape[:-1], -1))
    rotated = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
    return rotated.transpose(-2, -3) if order else rotated


def rotates_token(x: Tensor) -> bool:
    """Whether `rotate_token` applies to heads whose channels all rotate: one token, and nothing to differentiate."""
    if x.shape[2] != 1 or torch.compiler.is_compiling():
        return False
    return x.numel() <= TINY and not (x.requires_grad and torch.is_grad_enabled()) and not transformed()


def rotate_token(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Rotate the heads (batch, heads, 1, head_dim) of one token. cos and sin are those of `widened`."""
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


class _Rotation(torch.autograd.Function):
    """The rotation with tables that are constants. Its backward is itself with the opposite angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.layout, ctx.start = layout, start
        if torch.compiler.is_compiling():  # which would derive a backward of twice the passes
            return formula(x, cos, sin, layout, start)
        return _rotate(x, cos, sin, layout, start)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        if torch.compiler.is_compiling() or batched(gradient):
            return formula(gradient, cos, -sin, ctx.layout, ctx.start), None, None, None, None
        return rotary(gradient, cos, -sin, layout=ctx.layout, start=ctx.start), None, None, None, None


def _check_given(x: Tensor, cos: Tensor, sin: Tensor, start: int) -> None:
    for name, given in (("x", x), ("cos", cos), ("sin", sin)):
        check_value(name, given, Tensor)
        if given.device != x.device:
            raise InputError(f"{name} is on {given.device}, x on {x.device}: pass {name}.to(x.device)")
    check_integers(start=start)


def _fits(table: Tensor, x: Tensor) -> bool:
    """Whether everything but the channels broadcasts."""
    for n, m in zip(table.shape[-2::-1], x.shape[-2::-1], strict=False):  # noqa: SIM110  # a generator takes twice the time
        if n != m and n != 1 and m != 1:
            return False
    return True


def _covers(x: Tensor, table: Tensor) -> bool:
    """Whether a table that fits x makes it no larger. torch.broadcast_shapes says so, too, in 100 us."""
    for n, m in zip(table.shape[-2::-1], x.shape[-2::-1], strict=False):
        if n != 1 and n != m:  # of sizes that are symbols Dynamo takes those of a tuple for others
            return False
    return table.dim() <= x.dim()


def exactly(x: Tensor, traced: bool | None = None) -> AbstractContextManager[Any]:
    """Without autocast on x's device, which would round biases, gates and angles. traced: whether a graph is, if it is known."""
    kind = "cpu" if x.is_meta else x.device.type
    if torch.is_autocast_enabled(kind) or (torch.compiler.is_compiling() if traced is None else traced):
        return torch.autocast(kind, enabled=False)
    return AS_IT_IS


def transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is active; they need formulas instead of kernels."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def batched(gradient: Tensor) -> bool:
    """Whether it is a batch of them, by torch.autograd.grad(..., is_grads_batched=True), which kernels don't see."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(gradient))


def no_second_derivatives(subject: str, remedy: str) -> Callable[..., NoReturn]:
    """The backward of an operator that is a backward itself: a refusal."""

    def refuse(ctx: Any, *gradients: Any) -> NoReturn:
        raise InputError(f"second derivatives of {subject}: its operator has none; {remedy}")

    return refuse


def interpreted() -> bool:
    """Whether they, or a dispatch mode such as FakeTensorMode, make of operations what they like: tensors cannot be looked at then."""
    transforms = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    return transforms or torch._C._len_torch_dispatch_stack() > 0


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, start: int) -> Tensor:
    if x.numel() <= TINY:
        return formula(x, cos, sin, layout, start)
    if not _covers(x, cos):
        x = x.expand(*torch.broadcast_shapes(x.shape[:-1], cos.shape[:-1]), -1)
    pairs = cos.shape[-1]
    target = out = torch.empty_like(x)
    if 2 * pairs < x.shape[-1]:
        for rest in (slice(start), slice(start + 2 * pairs, None)):
            out[..., rest] = x[..., rest]
        x, target = x[..., start : start + 2 * pairs], out[..., start : start + 2 * pairs]
    precise = torch.promote_types(torch.promote_types(x.dtype, cos.dtype), torch.float32)
    if layout == "interleaved" and x.dtype == precise and _is_complex(x) and _is_complex(target):
        factor = torch.complex(cos.to(precise), sin.to(precise))
        torch.mul(_as_complex(x), factor, out=_as_complex(target))
        return out
    tokens_of_all = x.shape[-2]
    for tokens in blocks(x, precise):
        if tokens.stop >= tokens_of_all and tokens.start == 0:
            block, result, c, s = x, target, cos.to(precise), sin.to(precise)
        else:
            c, s = (table[..., tokens, :] if table.dim() > 1 and table.shape[-2] > 1 else table for table in (cos, sin))
            block, result, c, s = x[..., tokens, :], target[..., tokens, :], c.to(precise), s.to(precise)
        if layout == "half":
            _rotate_half(block.to(precise), c, s, result)
        else:
            _rotate_copied(block, c, s, result)
    return out


def _rotate_half(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """out = x rotated, split pairs."""
    rotated = out if out.dtype == x.dtype else torch.empty_like(x)
    (a, b), (rotated_a, rotated_b) = x.chunk(2, -1), rotated.chunk(2, -1)
    torch.mul(x, torch.cat((cos, cos), -1), out=rotated)
    rotated_a.addcmul_(b, sin, value=-1)
    rotated_b.addcmul_(a, sin)
    if rotated is not out:
        out.copy_(rotated)


def _rotate_copied(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
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
    """Runs of tokens that fit the CPU's cache; on other devices, all tokens at once."""
    tokens = x.shape[-2]
    step = tokens
    if x.device.type == "cpu" and x.numel():
        step = max(1, BLOCK_BYTES * torch.get_num_threads() * tokens // (x.numel() * precise.itemsize))
    for first in range(0, tokens, max(1, step)):
        yield slice(first, first + step)


def _heads_inside(table: Tensor) -> Tensor:
    """A (..., heads, seq, pairs) or (seq, pairs) table for x of (batch, seq, heads, head_dim)."""
    return table.unsqueeze(-2) if table.dim() < 3 else table.transpose(-2, -3)


def layout_permutation(rotary_dim: int, *, source: Layout, target: Layout) -> Tensor:
    """Index of each of the rotary_dim channels in another layout: x[..., permutation] is x in the target layout.

    Channel i of pair c moves to channel i of pair c, so rotary(x, layout=source)[..., permutation] equals
    rotary(x[..., permutation], layout=target). (rotary_dim,) int64.

    Raises:
        InputError: odd rotary_dim, or an unknown layout.
    """
    check_even("rotary_dim", rotary_dim)
    for name, layout in (("source", source), ("target", target)):
        check_word(name, layout, get_args(Layout))
    channels = torch.arange(rotary_dim, device="cpu")
    pairs = {"half": channels.view(2, -1).T, "interleaved": channels.view(-1, 2)}  # (pairs, 2)
    permutation = torch.empty_like(channels)
    permutation[pairs[target].flatten()] = pairs[source].flatten()
    return permutation


# ---------------------------------------------------------------- angles, and tables of their cosines and sines

FINE = 256
"""Tokens between the positions whose angles `contiguous_tables` takes exactly."""


def angles_at(ids: Tensor, inv_freq: Tensor) -> Tensor:
    """(batch or 1, n) positions times (pairs,) frequencies -> (batch or 1, 1, n, pairs), as exact as the frequencies."""
    inv_freq = inv_freq.to(ids.device) if ids.is_meta else inv_freq  # whose values the table has, and no meta tensor
    return ids.to(inv_freq)[:, None, :, None] * inv_freq


def cos_sin(
    ids: Tensor, inv_freq: Tensor, dtype: torch.dtype, first: int | None = None, amplitude: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """cos and sin of `angles_at`, times amplitude, in dtype: two (batch or 1, 1, n, pairs) tables on the device of ids.

    first: the positions are known to be first, first + 1, ..; where they are many, and amplitude is a number, angles
    are added rather than computed, see `contiguous_tables`. None: they may be any.
    """
    if first is not None and not isinstance(amplitude, Tensor) and not torch.compiler.is_compiling():
        count = ids.shape[1]
        if count >= 2 * FINE and dtype == torch.float32 and not ids.is_meta:
            cos, sin = contiguous_tables(first, count, inv_freq, amplitude)
            return cos.to(ids.device)[None, None], sin.to(ids.device)[None, None]
    angles = angles_at(ids, inv_freq)
    return (angles.cos() * amplitude).to(ids.device, dtype), (angles.sin() * amplitude).to(ids.device, dtype)


def contiguous_tables(first: int, count: int, inv_freq: Tensor, amplitude: float = 1.0) -> tuple[Tensor, Tensor]:
    """cos and sin of (first + t) * inv_freq, t = 0 .. count - 1, times amplitude: two (count, pairs) float32 tables.

    inv_freq: (pairs,) float64. Angles are taken in float64 at every 256th position and for the 256 steps from there,
    and added: cos(a + b) = cos a cos b - sin a sin b. Off by at most 2e-7 however far out, and a tenth of the time of
    a cosine for each entry.
    """
    coarse = first + torch.arange(0, count, FINE, dtype=torch.float64, device=inv_freq.device)
    fine = torch.arange(FINE, dtype=torch.float64, device=inv_freq.device)
    (far_cos, far_sin), (near_cos, near_sin) = (
        ((angles.cos() * factor).float(), (angles.sin() * factor).float())
        for angles, factor in ((coarse[:, None, None] * inv_freq, amplitude), (fine[:, None] * inv_freq, 1.0))
    )
    cos, sin = (near_cos.new_empty(coarse.shape[0], FINE, inv_freq.shape[0]) for _ in range(2))
    for rows in blocks(cos.flatten(-2), torch.float32):
        torch.mul(far_cos[rows], near_cos, out=cos[rows]).addcmul_(far_sin[rows], near_sin, value=-1)
        torch.mul(far_sin[rows], near_cos, out=sin[rows]).addcmul_(far_cos[rows], near_sin)
    return cos.flatten(0, 1)[:count], sin.flatten(0, 1)[:count]


# ---------------------------------------------------------------- shared


def table_device(device: torch.device) -> torch.device:
    """The device of a float64 table for tensors on a device: one without float64 (MPS) or without values (meta)
    reads it from the CPU."""
    return torch.device("cpu") if device.type in ("mps", "meta") else device


def inverse_softplus(x: Tensor) -> Tensor:
    """What softplus maps to x > 0; the exponential of a large one would overflow."""
    return x + (-(-x).expm1()).log()


def check_even(name: str, value: int) -> None:
    """Refuse a width that cannot be split into pairs, or that nothing has."""
    check_integers(**{name: value})
    if value < 2 or value % 2:
        raise InputError("channels go in pairs, so it must be even and at least 2", argument=name, value=value)
    check_sizes(**{name: value})
