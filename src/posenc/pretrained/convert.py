# SPDX-License-Identifier: Apache-2.0
"""Convert between rotations: cached keys to other positions or another frequency schedule, and query and key weights from
one rotary layout to the other."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.encoding import Encoding
from posenc.encodings.pope import PoPE
from posenc.encodings.rotary import PairwiseRotary
from posenc.encodings.rotary_axes import AxesRotary
from posenc.encodings.shared import key_angles
from posenc.errors import InputError, as_numbers, check_integers, check_tensor, not_none
from posenc.functional import Layout, check_even, layout_permutation
from posenc.positions import Positions

KeyPositions = Positions | Tensor | Sequence[Any]
RotaryKind = PairwiseRotary | AxesRotary | PoPE


def re_rotate(
    keys: Tensor,
    encoding: Encoding,
    positions: KeyPositions,
    *,
    to: KeyPositions | None = None,
    into: Encoding | None = None,
    layer: int = 0,
) -> Tensor:
    """Rotated keys as if they had been rotated at other positions: what a new prefill would have cached, at the cost of one
    more rotation by the difference of the angles, which is computed in float64.

    Args:
        keys: (batch, kv_heads, n, width), as `encoding.rotate_keys` gave them.
        encoding: the rotation they are under.
        positions: their positions: (n,), (batch, n) or (batch, n, axes) numbers, or `Positions` with n keys.
        to: their new positions; None leaves them.
        into: the new rotation, of the same layout and width, e.g. `encoding.with_schedule("yarn", ..)`, with its attention
            factor. None leaves it.
        layer: of the model, for encodings that differ per layer.

    StreamingLLM drops tokens from the middle and closes the gap: keep the first four and the last thousand, and
    re-rotate these keys from their positions to 0 .. 1003. The values are unchanged, and so is what the layers
    before made of the dropped tokens.

    Raises:
        InputError: an encoding whose keys cannot be moved, with the reason; `into` of another kind; positions that do
            not fit.
    """
    check_tensor("keys", keys)
    check_integers(0, layer=layer)
    target = encoding if into is None else into
    before = key_angles(encoding, _keys_at("positions", positions, keys), layer)
    after = key_angles(
        target, _keys_at("positions", positions, keys) if to is None else _keys_at("to", to, keys), layer
    )
    if not isinstance(encoding, RotaryKind) or not isinstance(target, RotaryKind):
        raise InputError(
            f"{encoding}: re_rotate moves keys of Rotary, rotations with axes, and PoPE, and values of RoVE"
        )
    if _layout_of(encoding) != _layout_of(target) or before.shape[1::2] != after.shape[1::2]:
        raise InputError(f"keys under {encoding} need the same head_dim, layout and rotated channels", into=target)
    width = encoding.head_dim * (2 if isinstance(encoding, PoPE) else 1)
    if keys.shape[-1] != width:
        raise InputError(f"keys of width {keys.shape[-1]}: under {encoding} they are {width} wide")
    angles = after - before
    factor = getattr(target, "attention_factor", 1.0) / getattr(encoding, "attention_factor", 1.0)
    dtype = torch.promote_types(keys.dtype, torch.float32)
    cos, sin = ((part * factor).to(keys.device, dtype) for part in (angles.cos(), angles.sin()))
    return target.rope(keys, cos, sin)


def _keys_at(name: str, where: KeyPositions, keys: Tensor) -> Positions:
    """The positions of keys, after a check that they fit."""
    if keys.dim() != 4:
        raise InputError(f"keys of shape {tuple(keys.shape)}: pass (batch, kv_heads, n, width)")
    if not isinstance(where, Positions):
        where = Positions.from_ids(as_numbers(name, where, keys.device))
    if where.num_keys != keys.shape[2] or where.k.shape[0] not in (1, keys.shape[0]):
        raise InputError(
            f"{name} of shape {tuple(where.k.shape)} for keys {tuple(keys.shape)}: give one number per key, in one row or "
            f"{keys.shape[0]}"
        )
    return where


def _layout_of(encoding: RotaryKind) -> tuple[object, ...]:
    if isinstance(encoding, PoPE):
        return "pope", encoding.head_dim
    return encoding.head_dim, encoding.layout, encoding.first_channel


def convert_layout(
    weight: Tensor,
    head_dim: int,
    *,
    source: Layout,
    target: Layout,
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    axis: int = 0,
) -> Tensor:
    """Weights that make queries or keys, reordered so that rotating in the target layout gives the scores of the source.

    Models in transformers mostly rotate in "half"; GPT-J, Meta's own Llama weights and llama.cpp's files of Llama
    models are "interleaved". A weight run in the wrong one still loads, and the model talks nonsense. Only the order of
    channels within each head changes: round trips are bit-equal, and dtype, device and gradient stay.

    Args:
        weight: a tensor with the channels of all its heads along `axis`: a weight (heads * head_dim, dim), its bias
            (heads * head_dim,), keys with fewer heads (grouped-query), the weight of a norm of each head (head_dim,).
        head_dim: width of a head.
        source, target: "half" (channel c is paired with c + rotary_dim/2) or "interleaved" (2c with 2c + 1).
        rotary_dim: how many channels of each head are rotated, when not all are (partial rotary).
        rotary_start: the first rotated channel of a head; DeepSeek rotates the last ones.
        axis: 0 for weights of nn.Linear, -1 for activations, caches and matrices stored (dim, out).

    Split a fused query-key-value matrix first: values are not rotated. Of a LoRA adapter B is converted, whose rows are the
    channels, and A stays. Quantised weights share scales among channels or pack several into one number: convert before quantising.

    Raises:
        InputError: no tensor, a width that is no multiple of head_dim, a rotated part that is odd or exceeds the head, an unknown
            layout, axis 0 of a tensor with more than two axes, a quantised weight.
    """
    if not isinstance(weight, Tensor) or not weight.dim():
        raise InputError("convert the weights of queries and keys one by one, and not those of values", weight=weight)
    check_integers(1, head_dim=head_dim, **not_none(rotary_dim=rotary_dim))
    check_integers(rotary_start=rotary_start)
    check_integers(-weight.dim(), weight.dim() - 1, axis=axis)
    width = head_dim - rotary_start if rotary_dim is None else rotary_dim
    if rotary_dim is None:
        check_even("head_dim - rotary_start" if rotary_start else "head_dim", width)
    if rotary_start < 0 or rotary_start + width > head_dim:
        why = f"the rotated channels must lie within head_dim={head_dim}"
        raise InputError(why, rotary_dim=rotary_dim, rotary_start=rotary_start)
    of_head = torch.arange(head_dim, device="cpu")  # whatever the default device is
    of_head[rotary_start : rotary_start + width] = rotary_start + layout_permutation(
        width, source=source, target=target
    )
    shape = tuple(weight.shape)
    if not weight.is_floating_point():
        raise InputError(f"weight is {weight.dtype}, as quantised weights are: convert before quantising")
    if weight.dim() > 2 and axis % weight.dim() == 0:
        raise InputError(
            f"weight has shape {shape}: pass the axis of the channels, 1 of (heads, head_dim, dim), or flatten it "
            "to two axes",
            axis=axis,
        )
    width = weight.shape[axis]
    if width == 0 or width % head_dim:
        raise InputError(
            f"weight of shape {shape}: its {width} channels along axis {axis} are no multiple of head_dim={head_dim}"
        )
    first = torch.arange(0, width, head_dim, device="cpu")
    return weight.index_select(axis, (first[:, None] + of_head).flatten().to(weight.device))
