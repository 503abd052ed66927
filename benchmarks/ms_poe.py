# SPDX-License-Identifier: Apache-2.0
"""Ms-PoE: each head scales positions, by how much of a text its attention singles out.

scales = head_scales(model, ids)                  # measured on a text
extend(model, scales)                             # position / scale, head by head; posenc.restore(model) undoes it
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc.encoding import Encoding
from posenc.encodings.learned_rotary import HeadRotary
from posenc.errors import InputError, check_numbers, check_positive
from posenc.frequencies import stretch
from posenc.positions import Positions
from posenc.pretrained.attach import Attachment, Design, attached, check_attention
from posenc.pretrained.inference import check_tokens, evaluating
from posenc.pretrained.models import Layer, ModelStructure, model_structure, unwrap

OUTLIER = 3.0
"""A key is an outlier if its weight is over three times the mean."""


def head_rotation(structure: ModelStructure, layer: Layer, scales: Sequence[float]) -> HeadRotary:
    """The model's rotation with positions divided by one scale per key head.

    Raises:
        InputError: a model that rotates a part of each head.
    """
    rope = structure.ropes[layer.layer_type]
    dim = rope.head_dim
    if rope.rotary_dim != dim:
        raise InputError(
            f"{structure.model_type} rotates {rope.rotary_dim} of {dim} channels; it takes all", method="ms_poe"
        )
    loaded = rope.frequencies()
    divisors = stretch(loaded, dim, base=rope.rope_theta)
    schedules = [
        {"name": "explicit", "stretch": (divisors * scale).tolist(), "attention_factor": loaded.attention_factor}
        for scale in scales
    ]
    return HeadRotary(
        dim,
        num_heads=structure.num_heads,
        num_kv_heads=structure.num_kv_heads,
        rope_theta=rope.rope_theta,
        layout=structure.layout,
        schedules=schedules,
    )


def outlier_shares(q: Tensor, k: Tensor) -> Tensor:
    """For each key head, the share of keys that the last query gives more than three times the mean weight, without
    positions and averaged over the query heads of its group: (batch, heads, n, d), (batch, kv_heads, n, d) -> (kv_heads,).

    Source: MsPoELlamaAttention._calculate_outlier of the authors' code, which has one key head for each query head.
    """
    last = q[:, :, -1:].unflatten(1, (k.shape[1], -1)).double()
    weights = (last @ k.double().mT[:, :, None] * q.shape[-1] ** -0.5).softmax(-1)
    return (weights > OUTLIER / k.shape[2]).double().mean((0, 2, 3, 4))


def ranked_scales(shares: Tensor, least: float, most: float) -> list[float]:
    """`least` for the head of the most outliers, and in equal steps up to, not including, `most`."""
    order = (-shares).argsort(stable=True).tolist()
    return [least + (most - least) * order.index(head) / len(order) for head in range(len(order))]


@torch.no_grad()
def head_scales(model: Any, ids: Tensor, *, least: float = 1.2, most: float = 1.8, skip: int = 2) -> list[float]:
    """The scales of Ms-PoE for `extend`, measured in one pass over a text: heads whose last
    query gives many keys more than three times the mean weight, which depend on position most, get the smallest.

    Args:
        model: of a type that `extend` knows, not extended.
        ids: (batch, n) tokens; the last is the query, and shares are means over the batch. The authors take the prompt.
        least, most: the range of the scales.
        skip: layers at the start that keep their positions.

    Returns:
        One scale for each key head of each layer, layer by layer; 1 where nothing changes. With several query heads to a
        key head, the scale is the key head's, and its share the mean of theirs. Layers with a sliding window keep theirs.

    Raises:
        InputError: an extended model, scales out of range, or tokens that the model does not have.

    Source: Zhang et al. 2024, section 4. The authors' code takes for head h the ratio whose number is the h-th head in
    the order of outliers, which is the inverse of the order that the paper describes and that this takes.
    """
    check_numbers(1, least=least, most=most)
    inner = unwrap(model)
    if attached(inner) is not None:
        raise InputError("model is extended: its scales are measured on it as it was; call posenc.restore(model) first")
    if ids.dim() != 2 or ids.shape[1] < 2:
        raise InputError("pass tokens (batch, n) of at least two", ids=ids)
    check_tokens(inner, ids)
    structure = model_structure(inner)
    heads = structure.num_kv_heads
    scales = [1.0] * heads * len(structure.layers)

    def rotated(number: int, layer: Layer, q: Tensor, k: Tensor) -> Encoding:
        own = slice(number * heads, (number + 1) * heads)
        if number >= skip and layer.window is None and most > 1:
            scales[own] = ranked_scales(outlier_shares(q, k), least, most)
        return head_rotation(structure, layer, scales[own])

    read_through(structure, rotated, ids)
    return scales


def extend(model: Any, scales: Sequence[float]) -> None:
    """Divide the positions of each key head by its scale, layer by layer, where a layer rotates and has no window."""
    structure = model_structure(unwrap(model))
    check_attention(structure)
    heads, wanted = structure.num_kv_heads, structure.num_kv_heads * len(structure.layers)
    if len(scales) != wanted:
        raise InputError(f"{len(scales)} of them, which must be {wanted}, of {heads} heads a layer", argument="scales")
    check_positive(scales=min(scales))
    still = {kind: rope.rotation(rope.at(structure.loaded_length)) for kind, rope in structure.ropes.items()}
    encodings: list[Encoding | None] = []
    for number, layer in enumerate(structure.layers):
        own = scales[number * heads : (number + 1) * heads]
        rotation = still.get(layer.layer_type) if layer.window else head_rotation(structure, layer, own)
        encodings.append(rotation if layer.rotates else None)
    Attachment(structure, Design(still, frozenset(still), tuple(encodings), {}), None).attach()


Rotated = Callable[[int, Layer, Tensor, Tensor], Encoding]
"""The number of a layer, the layer, its queries and keys before they rotate -> its rotation."""


class _Seeing(Encoding):
    """A layer's rotation, chosen as it sees queries and keys."""

    sees_order = True
    shift_invariant = True

    def __init__(self, rotation: Callable[[Tensor, Tensor], Encoding]) -> None:
        super().__init__()
        self.rotation = rotation

    def rotate(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> tuple[Tensor, Tensor]:
        return self.rotation(q, k).to(q.device).rotate(q, k, positions)


@torch.no_grad()
def read_through(structure: ModelStructure, rotated: Rotated, ids: Tensor) -> None:
    """One pass over (batch, n) tokens with other rotations in the layers that rotate. The model is then as it was."""
    check_attention(structure)
    encodings = [
        _Seeing(partial(rotated, number, layer)) if layer.rotates else None
        for number, layer in enumerate(structure.layers)
    ]
    loaded = structure.loaded_length
    still = {kind: rope.rotation(rope.at(loaded)) for kind, rope in structure.ropes.items()}
    attachment = Attachment(structure, Design(still, frozenset(still), tuple(encodings), {}), None)
    attachment.attach()
    try:
        with evaluating(structure.model):
            structure.model(ids.to(next(structure.model.parameters()).device), use_cache=False)
    finally:
        attachment.detach()
