# SPDX-License-Identifier: Apache-2.0
"""Pure tensor functions: the formulas of the encodings, without modules or state."""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from posenc.checks import check_divisors, check_sizes, check_tensor, checked
from posenc.errors import InputError, unknown
from posenc.rotation import Layout, compile_rotary, rotary

__all__ = [
    "CURVES", "Layout", "SinusoidalLayout", "alibi_slopes", "binary_digits", "compile_rotary", "deberta_bucket",
    "frequency_curve", "layout_permutation", "rotary", "shift_matrix", "sinusoidal", "sinusoidal_from", "t5_bucket",
    "turning",
]  # fmt: skip

SinusoidalLayout = Literal["interleaved", "concat"]

CURVES: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "geometric": lambda t, base, exponent: torch.pow(base, -t),
    "power": lambda t, base, exponent: t**exponent,
}
"""Frequency curves theta(t), t in [0, 1]: 10000^-t of the Transformer, and t^exponent (1 is linear, 1/2 the root)."""


@checked
def frequency_curve(
    dim: int, base: float = 10000.0, curve: str = "geometric", exponent: float = 1.0, endpoint: bool = False
) -> Tensor:
    """The dim/2 angular frequencies theta(t_c), float64, of sinusoidal codes and rotations.

    t_c = 2c/dim, c = 0 .. dim/2-1 (Vaswani et al. 2017, section 3.5); with endpoint=True t_c = c/(dim/2-1), so that
    the last frequency is exactly theta(1) (tensor2tensor, fairseq, Whisper). The curves besides base^-t are those
    compared by Su, kexue.fm/archives/8231.

    Raises:
        InputError: odd dim, base not above 0, unknown curve, or a power curve that is not increasing.
    """
    check_even("dim", dim)
    check_divisors(base=base)
    if curve not in CURVES:
        raise unknown("curve", curve, CURVES)
    if curve == "power" and not exponent > 0:
        raise InputError(f"exponent={exponent}: t^exponent needs a positive exponent")
    pairs = dim // 2
    steps = max(pairs - 1, 1) if endpoint else pairs
    t = torch.arange(pairs, dtype=torch.float64, device="cpu") / steps
    return CURVES[curve](t, base, exponent)


@checked
def sinusoidal(
    positions: Tensor,
    dim: int,
    base: float = 10000.0,
    layout: SinusoidalLayout = "interleaved",
    *,
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
        raise InputError(f"dtype={dtype}: would cut the codes to whole numbers; pass a float dtype")
    frequencies = frequency_curve(dim, base, curve, exponent, endpoint).to(table_device(positions.device))
    return sinusoidal_from(positions, frequencies, layout).to(dtype or torch.get_default_dtype())


@checked
def sinusoidal_from(positions: Tensor, frequencies: Tensor, layout: SinusoidalLayout) -> Tensor:
    """`sinusoidal` for frequencies (dim/2,) already at hand; the result has their dtype.

    Raises:
        InputError: an unknown layout, or tensors without real values.
    """
    check_tensor("positions", positions)
    check_tensor("frequencies", frequencies)
    angles = positions.to(frequencies)[..., None] * frequencies
    if layout == "interleaved":
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)
    if layout == "concat":
        return torch.cat((angles.sin(), angles.cos()), -1)
    raise unknown("layout", layout, get_args(SinusoidalLayout))  # in compiled code, which `checked` passes by


@checked
def shift_matrix(shift: float, dim: int, base: float = 10000.0, layout: SinusoidalLayout = "interleaved") -> Tensor:
    """The (dim, dim) float64 matrix M with M p(t) = p(t + shift) for every t: a rotation per frequency.

    Raises:
        InputError: odd dim or unknown layout.
    """
    angles = shift * frequency_curve(dim, base)
    sines = torch.arange(0, dim, 2) if layout == "interleaved" else torch.arange(dim // 2)
    cosines = sines + (1 if layout == "interleaved" else dim // 2)
    return turning(angles, cosines, sines, dim)


@checked
def turning(angles: Tensor, first: Tensor, second: Tensor, dim: int) -> Tensor:
    """The (dim, dim) matrix that turns the channels (first, second) of each pair by its angle, and leaves the others.

    angles, first, second: (pairs,); the result has the angles' dtype.

    Raises:
        InputError: integer angles, other numbers of them than of channels, or channels outside 0 .. dim-1.
    """
    check_tensor("angles", angles)
    if not angles.is_floating_point():
        raise InputError(f"angles of {angles.dtype}: pass angles.float()")
    check_sizes(dim=dim)
    for name, channels in (("first", first), ("second", second)):
        check_tensor(name, channels, whole=True)
        if channels.shape != angles.shape or angles.dim() != 1:
            raise InputError(
                f"{name} {tuple(channels.shape)} for angles {tuple(angles.shape)}: pass one channel an angle"
            )
        if channels.numel() and not 0 <= int(channels.min()) <= int(channels.max()) < dim:
            raise InputError(f"{name} has channels outside 0 .. dim - 1 = {dim - 1}: pass those of the matrix")
    first, second = first.long(), second.long()
    cos, sin = angles.cos(), angles.sin()
    matrix = torch.eye(dim, dtype=angles.dtype)
    matrix[first, first], matrix[first, second] = cos, -sin
    matrix[second, first], matrix[second, second] = sin, cos
    return matrix


@checked
def binary_digits(positions: Tensor, bits: int) -> Tensor:
    """Binary digits of integer positions, least significant first: (...) -> (..., bits) of zeros and ones.
    Positions from 2^bits on repeat the earlier ones.

    Raises:
        InputError: fractional positions, or bits outside 1 .. 62.
    """
    check_tensor("positions", positions, whole=True)
    if not 1 <= bits <= 62:
        raise InputError(f"bits={bits}: must lie between 1 and 62")
    return (positions[..., None] >> torch.arange(bits, device=positions.device)) & 1


@checked
def layout_permutation(rotary_dim: int, source: Layout, target: Layout) -> Tensor:
    """Where each of the rotary_dim channels of one layout lies in another: x[..., permutation] is x in the target's.

    Channel i of pair c moves to channel i of pair c, so rotary(x, layout=source)[..., permutation] equals
    rotary(x[..., permutation], layout=target). (rotary_dim,) int64.

    Raises:
        InputError: odd rotary_dim, or an unknown layout.
    """
    check_even("rotary_dim", rotary_dim)
    channels = torch.arange(rotary_dim, device="cpu")
    pairs = {"half": channels.view(2, -1).T, "interleaved": channels.view(-1, 2)}  # (pairs, 2)
    permutation = torch.empty_like(channels)
    permutation[pairs[target].flatten()] = pairs[source].flatten()
    return permutation


@checked
def alibi_slopes(num_heads: int) -> Tensor:
    """ALiBi's slope of each head, (num_heads,) float64, for any number of heads (Press et al. 2022, section 3).

    Powers of two: 2^(-8(h+1)/H). Otherwise the slopes of the power of two below, then every second one of the
    power of two above, as in the authors' code.

    Raises:
        InputError: num_heads < 1.
    """
    check_sizes(num_heads=num_heads)
    lower = 1 << (int(num_heads).bit_length() - 1)

    def geometric(count: int) -> Tensor:
        return 2.0 ** (-8.0 * torch.arange(1, count + 1, dtype=torch.float64, device="cpu") / count)

    return torch.cat((geometric(lower), geometric(2 * lower)[0::2][: num_heads - lower]))


@checked
def t5_bucket(
    relative_position: Tensor, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
) -> Tensor:
    """T5's bucket of key position minus query position: int64, same shape (Raffel et al. 2020, section 2.1).

    Half of a direction's buckets hold one distance each, the other half grow logarithmically up to max_distance.
    bidirectional: the upper half of the buckets is for keys after the query; otherwise those share bucket 0.

    Raises:
        InputError: too few buckets, or max_distance not beyond the exact ones.
    """
    check_tensor("relative_position", relative_position, meta=True)
    relative_position = relative_position if relative_position.is_floating_point() else relative_position.long()
    per_side = num_buckets // 2 if bidirectional else num_buckets
    exact = per_side // 2
    if exact < 1 or max_distance <= exact:
        raise InputError(
            f"num_buckets={num_buckets}, max_distance={max_distance}: needs at least {4 if bidirectional else 2} "
            f"buckets and max_distance above {exact}"
        )
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


@checked
def deberta_bucket(distance: Tensor, num_buckets: int = 256, max_distance: int = 512) -> Tensor:
    """DeBERTa's bucket of query position minus key position: int64, same shape and sign (He et al. 2021; v2, v3).

    Distances up to num_buckets / 2 are their own bucket; longer ones grow logarithmically, so that max_distance - 1 is
    in the last bucket, num_buckets - 1. Further ones go on beyond it, as in transformers; the authors clamp them.

    Raises:
        InputError: an odd number of buckets or less than 4, or max_distance not beyond the exact ones.
    """
    check_tensor("distance", distance, meta=True)
    distance = distance if distance.is_floating_point() else distance.long()
    exact = num_buckets // 2
    if num_buckets < 4 or num_buckets % 2 or max_distance - 1 <= exact:
        raise InputError(
            f"num_buckets={num_buckets}, max_distance={max_distance}: needs an even number of at least 4 buckets and "
            f"max_distance above {exact + 1}"
        )
    # float32 on purpose, as in t5_bucket
    far = distance.abs().clamp(min=exact).float() / exact
    growth = far.log() / far.new_full((), (max_distance - 1) / exact).log()
    bucket = torch.ceil(growth * (exact - 1)).long() + exact
    return torch.where(distance.abs() <= exact, distance.long(), distance.sign().long() * bucket)


def table_device(device: torch.device) -> torch.device:
    """Where a float64 table for tensors on a device can live: one without float64 (MPS) or without values (meta)
    reads it from the CPU."""
    return torch.device("cpu") if device.type in ("mps", "meta") else device


def check_even(name: str, value: int) -> None:
    """Refuse a width that cannot be split into pairs, or that nothing has."""
    if value < 2 or value % 2:
        raise InputError(f"{name}={value}: positions act on pairs of channels, so it must be even and at least 2")
    check_sizes(**{name: value})
