# SPDX-License-Identifier: Apache-2.0
"""The model types of transformers that posenc knows, by model_types.toml, and how each differs from Llama."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posenc.errors import InputError, unknown
from posenc.functional import Layout

Table = Literal["halves", "repeated", "pairs", "complex", "sections"]
"""Layout of a model's cos and sin: (c, c) side by side, each pair's value twice in a row, once per pair, cos + i sin once per
pair, or the sections of M-RoPE, which the model's module puts together from one table for each axis of the positions."""


@dataclass(frozen=True)
class Family:
    """How a model type differs from Llama."""

    layout: Layout = "half"
    """Which channels its attention pairs"""
    table: Table = "halves"
    """Layout of cos and sin"""
    float_table: bool = False
    """cos and sin stay float32 whatever the dtype of the hidden states"""
    attention: str = "self_attn"
    """Name of the attention module in a decoder layer"""
    latent: bool = False
    """The last channels of a head rotate, the cache has latents, and YaRN's temperature is in the softmax factor (DeepSeek)"""
    full_rotates: bool = True
    """False where layers with full attention have no positions beside those with a window"""
    schedules_only: str = ""
    """Why nothing but frequencies can be changed; empty: everything can"""
    encoder: bool = False
    """Its attention is not causal"""


KNOWN = tomllib.loads(Path(__file__).with_name("model_types.toml").read_text(encoding="utf-8"))


def _by_type(section: str, key: str) -> dict[str, str]:
    return {kind: group[key] for group in KNOWN[section] for kind in group["types"]}


FAMILIES: dict[str, Family] = {
    kind: Family(**{key: value for key, value in group.items() if key != "types"})
    for group in KNOWN["families"]
    for kind in group["types"]
}
"""Supported config.model_type, of the decoder where a model has several parts -> how it differs from Llama. For a type whose
module rotary_emb has the interface of one of these: FAMILIES["its type"] = FAMILIES["llama"]."""

REFUSED = _by_type("refused", "why")
"""Model types without a rotation that a configuration could change, or whose rotation posenc does not read -> why."""

UNREAD = _by_type("unread", "why")
"""Model types that posenc neither extends nor examines -> why. Of a configuration alone, programs are compared nevertheless."""

TABLES = _by_type("tables", "path")
"""config.model_type -> path of its learned table of positions in the base model."""

ENCODED = "posenc_"
"""How the model type begins of a model with an encoding in place of its rotation, see hf.py."""


def without_positions(config: Any) -> str:
    """Why no layer of transformers' model of a configuration rotates, where others of its type do; empty: some do."""
    match config.model_type:  # other types read none of these fields
        case "granitemoehybrid" if config.position_embedding_type != "rope":
            return f"its layers do not rotate: position_embedding_type={config.position_embedding_type!r}"
        case "falcon" if config.alibi:
            return "its layers do not rotate: alibi=true, so its positions are biases of the distance, ALiBi's, which end nowhere"
        case "zamba2" if not config.use_mem_rope:
            return "its layers do not rotate: use_mem_rope=false"
    return ""


def family_of(model_type: str, config: Any = None) -> Family:
    """What is known of a model type. config: of its language model, where there is one.

    Raises:
        InputError: nothing is; why not, where that is known, or how to go on.
    """
    learned = dict.fromkeys(
        TABLES, "its positions are a learned table: posenc.extend takes hierarchical or interpolate"
    )
    if why := (without_positions(config) if config is not None else "") or (learned | REFUSED | UNREAD).get(model_type):
        raise InputError(f"model type {model_type!r} is not supported: {why}")
    if model_type not in FAMILIES:
        raise InputError(
            str(unknown("model type", model_type, FAMILIES, 0.7)),
            "if its rotary module and its attention are those of one that is known, say so before: "
            f"posenc.pretrained.families.FAMILIES[{model_type!r}] = posenc.pretrained.families.FAMILIES['llama']",
        )
    return FAMILIES[model_type]
