# SPDX-License-Identifier: Apache-2.0
"""The codes inside a model: its learned table, its rotation, its learned bias of the distance."""

from typing import Any

import torch
from torch import nn

from posenc.analysis.of_encoding import of_encoding
from posenc.analysis.reading import Codes, of_table
from posenc.encoding import Encoding
from posenc.encodings import T5, Rotary
from posenc.errors import InputError
from posenc.pretrained.attach import RotaryModule, attached
from posenc.pretrained.learned_table import TABLES, has_learned_table, rows_of_table
from posenc.pretrained.models import FAMILIES, model_structure, unwrap
from posenc.transformer import Transformer

BUCKETED = ("t5", "mt5", "umt5", "longt5")
"""Model types with T5's bias."""


def of_model(model: nn.Module, name: str | None, layer: int, site: str | None, head: int) -> Codes:
    """The codes of a model, see `codes_of`.

    Raises:
        InputError: a model type that is not known.
    """
    if isinstance(model, Transformer):
        own = model.encoding
        return of_encoding(own, layer, name or own.known_as, site, head)
    inner = unwrap(model)
    model_type = str(inner.config.model_type)
    name = name or model_type
    if has_learned_table(model):
        return of_table(name, rows_of_table(model), inner)
    if model_type in BUCKETED:
        return of_encoding(_bucketed(inner, layer), 0, name, site, head)
    if model_type in FAMILIES:
        return of_encoding(_rotation(model, layer), 0, name, site, head)
    known = sorted({*TABLES, *BUCKETED, *FAMILIES})
    raise InputError(
        f"model of type {model_type!r}: it is not known where its positions are (known: {', '.join(known)}); pass its "
        "table, or a function that gives its codes"
    )


def _rotation(model: nn.Module, layer: int) -> Encoding:
    """What turns queries and keys in a layer as the model is now, extended or not."""
    found = model_structure(model)
    if not 0 <= layer < len(found.layers):
        raise InputError(f"layer={layer}: the model has layers 0 .. {len(found.layers) - 1}")
    own = found.layers[layer]
    if not own.rotates:
        raise InputError(f"layer={layer}: this layer has no positions; pass another")
    record = attached(found.model)
    rotary = getattr(found.decoder, "rotary_emb", None)
    if record is not None and isinstance(rotary, RotaryModule):
        kind = own.layer_type if own.layer_type in rotary.rotations else next(iter(rotary.rotations))
        inside = record.design.encodings[layer] if kind in rotary.identity_layers else rotary.rotations[kind]
        assert isinstance(inside, Encoding)
        return inside
    rope = found.ropes.get(own.layer_type, found.rope)
    return Rotary(found.head_dim, rope.rope_theta, found.layout, rope.rotary_dim, rope.schedule)


def _bucketed(inner: Any, layer: int) -> T5:
    """The bias of the encoder, or of the only stack there is; one for all layers, or one each (umt5)."""
    stack = getattr(inner, "encoder", None) or inner.decoder
    tables = [m for m in stack.modules() if hasattr(m, "relative_attention_bias")]
    attention = [m.relative_attention_bias for m in tables if getattr(m, "has_relative_attention_bias", True)]
    table = attention[layer if len(attention) > 1 else 0].weight
    config = inner.config
    buckets = config.relative_attention_num_buckets, config.relative_attention_max_distance
    ours = T5(table.shape[1], not stack.is_decoder, *buckets)
    with torch.no_grad():
        ours.table.copy_(table.T.float())
    return ours.to(table.device).eval()
