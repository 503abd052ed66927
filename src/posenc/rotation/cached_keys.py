# SPDX-License-Identifier: Apache-2.0
"""Moving a cache of rotated keys: to other positions, or to another frequency schedule, without a new prefill."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.checks import as_numbers, check_tensor, checked
from posenc.encoding import Encoding
from posenc.encodings.pope import PoPE
from posenc.encodings.rotary import Rotary
from posenc.encodings.rotary_axes import AxesRotary
from posenc.errors import InputError
from posenc.positions import Positions

Where = Positions | Tensor | Sequence[Any]
Turning = Rotary | AxesRotary | PoPE


@checked
def re_rotate(
    keys: Tensor,
    encoding: Encoding,
    positions: Where,
    *,
    to: Where | None = None,
    into: Encoding | None = None,
    layer: int = 0,
    inplace: bool = False,
) -> Tensor:
    """Rotated keys as if they had been rotated elsewhere: what a new prefill would have cached, for the price of one
    more rotation by the difference of the angles, which is taken in float64.

    Args:
        keys: (batch, kv_heads, n, width), as `encoding.rotate_keys` gave them.
        encoding: the rotation they are under.
        positions: where they are: (n,), (batch, n) or (batch, n, axes) numbers, or `Positions` with n keys.
        to: where they shall be; None leaves them there.
        into: the rotation they shall be under, of the same layout and width, e.g. `encoding.with_schedule("yarn", ..)`;
            its attention factor is taken over. None leaves it.
        layer: of the model, for encodings that differ per layer.
        inplace: overwrite keys.

    StreamingLLM drops tokens from the middle and closes the gap: keep the first four and the last thousand, and
    re-rotate the kept ones from where they were to 0 .. 1003. The values stay as they are, and so does what the layers
    before made of the dropped tokens.

    Raises:
        InputError: an encoding whose keys cannot be moved, with the reason; `into` of another kind; positions that do
            not fit.
    """
    check_tensor("keys", keys)
    target = encoding if into is None else into
    if not isinstance(target, Encoding):
        raise InputError(f"into={target!r}: pass an encoding, such as encoding.with_schedule('yarn', factor=4, ..)")
    here = _keys_at("positions", positions, keys)
    before = encoding.key_angles(here, layer)
    after = target.key_angles(here if to is None else _keys_at("to", to, keys), layer)
    if not isinstance(encoding, Turning) or not isinstance(target, Turning):
        raise InputError(f"{encoding}: re_rotate moves keys of Rotary, its kin with axes, and PoPE")
    if _kind(encoding) != _kind(target) or before.shape[1::2] != after.shape[1::2]:
        raise InputError(f"into={target}: keys under {encoding} need the same head_dim, layout and rotated channels")
    if keys.shape[-1] != _width(encoding):
        raise InputError(f"keys of width {keys.shape[-1]}: under {encoding} they are {_width(encoding)} wide")
    angles, factor = after - before, _factor(target) / _factor(encoding)
    dtype = torch.promote_types(keys.dtype, torch.float32)
    cos, sin = ((part * factor).to(keys.device, dtype) for part in (angles.cos(), angles.sin()))
    return target.turn(keys, cos, sin, inplace)


def _keys_at(name: str, where: Where, keys: Tensor) -> Positions:
    """The positions of keys, once found to fit."""
    if keys.dim() != 4:
        raise InputError(f"keys of shape {tuple(keys.shape)}: pass (batch, kv_heads, n, width)")
    if not isinstance(where, Positions):
        ids = as_numbers(name, where, keys.device)
        try:
            where = Positions.from_ids(ids)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    if where.k.is_meta:
        raise InputError(f"{name} is on meta, where tensors have no values: make them on the keys' device")
    if where.num_keys != keys.shape[2] or where.k.shape[0] not in (1, keys.shape[0]):
        raise InputError(
            f"{name} of shape {tuple(where.k.shape)} for keys {tuple(keys.shape)}: give one number per key, in one row or "
            f"{keys.shape[0]}"
        )
    return where


def _kind(encoding: Turning) -> tuple[object, ...]:
    if isinstance(encoding, PoPE):
        return "pope", encoding.head_dim
    return encoding.head_dim, encoding.layout, encoding.first_channel


def _width(encoding: Turning) -> int:
    return encoding.head_dim * (2 if isinstance(encoding, PoPE) else 1)


def _factor(encoding: Turning) -> float:
    return 1.0 if isinstance(encoding, PoPE) else encoding.attention_factor
