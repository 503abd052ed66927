# SPDX-License-Identifier: Apache-2.0
"""The model types of transformers that posenc knows, and how each differs from Llama."""

from dataclasses import dataclass
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


_ENCODER = "it is an encoder, whose queries see keys on both sides"
_SPARSE = "an indexer chooses which keys its queries see"

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        (
            "llama", "mistral", "mixtral", "ministral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi", "phi3", "gemma",
            "gemma2", "gemma3_text", "smollm3", "stablelm", "starcoder2", "granite", "granitemoe", "seed_oss", "olmoe",
            "apertus", "arcee", "bitnet", "cwm", "dots1", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "glm4_moe",
            "granitemoeshared", "hy_v3", "hyperclovax", "jais2", "lfm2", "minimax_m2", "ministral3", "nemotron",
            "qwen3_next", "solar_open", "vaultgemma",
        ),
        Family(),
    ),
    **dict.fromkeys(("olmo", "olmo2", "olmo3", "olmo_hybrid", "flex_olmo"), Family(float_table=True)),
    **dict.fromkeys(("exaone4", "exaone_moe", "afmoe"), Family(full_rotates=False)),
    **dict.fromkeys(("glm", "glm4", "helium"), Family(layout="interleaved")),
    **dict.fromkeys(("ernie4_5", "ernie4_5_moe"), Family(layout="interleaved", float_table=True)),
    **dict.fromkeys(("deepseek_v3", "mistral4", "glm4_moe_lite", "youtu", "minicpm3"), Family(latent=True)),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), Family(latent=True, schedules_only=_SPARSE)),
    **dict.fromkeys(
        ("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_5_text", "qwen3_5_moe_text"),
        Family(table="sections"),
    ),
    "cohere": Family(layout="interleaved", table="repeated"),
    "cohere2": Family(layout="interleaved", table="repeated", full_rotates=False),
    "deepseek_v2": Family(layout="interleaved", table="complex", latent=True),
    "gpt_neox": Family(attention="attention"),
    "gpt_oss": Family(table="pairs"),
    "modernbert": Family(attention="attn", schedules_only=_ENCODER, encoder=True),
    "modernbert-decoder": Family(attention="attn"),
    **dict.fromkeys(("eurobert", "nomic_bert"), Family(schedules_only=_ENCODER, encoder=True)),
}  # fmt: skip
"""Supported config.model_type, of the decoder where a model has several parts -> how it differs from Llama. For a type whose
module rotary_emb has the interface of one of these: FAMILIES["its type"] = FAMILIES["llama"]."""

REFUSED: dict[str, str] = {
    **dict.fromkeys(("codegen", "gptj", "roformer"), "it rotates by a table that no configuration stretches"),
    **dict.fromkeys(("bloom", "mpt"), "its positions are biases of the distance, ALiBi's, which end nowhere"),
    **dict.fromkeys(("inkling_text", "inkling2_text"), "its positions are biases of the distance, which it has learned"),
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "longt5", "switch_transformers", "pop2piano", "udop"),
        "its positions are biases of the distance, T5's, which no length limits: it reads longer inputs as it is",
    ),
    "esm": "its rotation takes another base alone: load it with rope_theta=",
    **dict.fromkeys(("deberta", "deberta-v2"), "its positions are relative, by a learned table of distances"),
    "xlnet": "its positions are relative, by sinusoids of the distance, which no length limits",
    **dict.fromkeys(("jamba", "kimi_linear", "nemotron_h"), "none of its layers rotates"),
    **dict.fromkeys(
        ("hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text"),
        "its rotary module reads alpha, which no schedule states",
    ),
    **dict.fromkeys(
        (
            "granite_swa", "granitemoe_swa", "muse_glimmer_text", "muse_spark_text", "cohere_compass_text", "cohere2_moe", "flint",
            "kolibri1",
        ),
        "posenc does not read which of its layers rotate, and by which base",
    ),
    "phimoe": "its rotary module adds numbers (short_mscale, long_mscale), which no schedule states",
    "recurrent_gemma": "its rotary modules refuse every rope_type but default",
}  # fmt: skip
"""Model types without a rotation that a configuration could change, or whose rotation posenc does not read -> why."""

UNREAD: dict[str, str] = {
    "deepseek_v4": "its queries see compressed keys and not tokens",
    "falcon": "its attention is not called as those of other types are",
    "llama4_text": "its layers with positions attend within chunks, and the others have a temperature",
    "nanochat": "it rotates the other way round",
}
"""Model types that posenc neither extends nor examines -> why. Of a configuration alone, programs are compared nevertheless."""

TABLES: dict[str, str] = {
    **dict.fromkeys(
        ("albert", "bert", "camembert", "distilbert", "electra", "esm", "mpnet", "roberta", "xlm-roberta"),
        "embeddings.position_embeddings",
    ),
    "biogpt": "embed_positions",
    "gpt2": "wpe",
    "opt": "decoder.embed_positions",
}
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
