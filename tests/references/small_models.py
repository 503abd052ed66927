"""Random transformers models of every supported type, small enough for a test: trained to 64 tokens on paper."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from posenc.pretrained.families import FAMILIES

ENCODERS = {kind for kind, family in FAMILIES.items() if family.encoder}
DECODERS = [kind for kind in FAMILIES if kind not in ENCODERS]
VOCABULARY = 97
TRAINED = 64
METHODS = (
    "linear", "ntk", "ntk_fixed", "abf:new_base=500000", "yarn", "yarn:truncate=false", "llama3", "ntk_mixed", "yarn_paper",
    "yarn:beta_fast=4:beta_slow=0.1", "yarn:original_max_positions=32", "llama3:high_freq_factor=8",
)  # fmt: skip
"""Of each form in which a checkpoint states frequencies, one or more."""

_SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": TRAINED, "initializer_range": 0.3,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
_ROUTED = {
    "n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 32, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_WINDOW = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
_LATENT = {
    "head_dim": None, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 24, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 12,
}  # fmt: skip
_SPARSE = (
    _LATENT | _ROUTED | {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 512}
)  # all keys: which of equal ones are taken depends on the length
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
_PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
_GEMMA4 = _WINDOW | {
    "global_head_dim": 32, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCABULARY,
}  # fmt: skip
_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
_DEALT = {
    "rope_parameters": _SECTIONS["rope_parameters"] | {"mrope_section": [4, 2, 2]}
}  # dealt in turn, a third each at most
_OWN: dict[str, dict[str, Any]] = {
    "ministral": _WINDOW,
    "mixtral": {"num_local_experts": 2},
    "qwen2": _WINDOW | {"use_sliding_window": True},
    "qwen2_moe": _EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_moe": _EXPERTS,
    "granitemoe": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "granitemoeshared": {"num_local_experts": 2, "num_experts_per_tok": 1, "shared_intermediate_size": 32},
    "olmoe": {"num_experts": 2, "num_experts_per_tok": 1},
    "flex_olmo": {"num_experts": 2, "num_experts_per_tok": 1},
    "gemma2": _WINDOW,
    "vaultgemma": _WINDOW,
    "gemma3_text": _WINDOW,
    "gemma3n_text": _WINDOW | {
        "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "num_kv_shared_layers": 1, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY,
        "laurel_rank": 4, "activation_sparsity_pattern": [0.0, 0.0, 0.0],
    },
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4,
    "modernbert": _WINDOW | {"head_dim": None, "num_key_value_heads": None, "local_attention": 48},
    "modernbert-decoder": _WINDOW | {"head_dim": None, "num_key_value_heads": None, "local_attention": 48},
    "cohere2": _WINDOW,
    "olmo3": _WINDOW,
    "exaone4": _WINDOW,
    "exaone_moe": _WINDOW | _EXPERTS | {"num_shared_experts": 1, "first_k_dense_replace": 1, "is_moe_layer": [False, True]},
    "afmoe": _WINDOW | _EXPERTS | {"num_dense_layers": 1},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layer_interval": 2},
    "gpt_neox": {"head_dim": None, "num_key_value_heads": None},  # which it derives
    "gpt_oss": _WINDOW | {"num_local_experts": 2, "num_experts_per_tok": 1} | _PLAIN,
    "apertus": _PLAIN,
    "cwm": _PLAIN | _WINDOW,
    "dots1": _ROUTED,
    "glm4_moe": _ROUTED,
    "solar_open": _ROUTED,
    "hy_v3": _EXPERTS | {"num_shared_experts": 1},
    "minimax_m2": {"num_local_experts": 2, "num_experts_per_tok": 1, "rotary_dim": 8},
    "ernie4_5_moe": {"moe_num_experts": 2, "moe_k": 1, "moe_num_shared_experts": 1, "moe_intermediate_size": 32},
    "lfm2": {"layer_types": ["conv", "full_attention"], "head_dim": None},
    "nemotron": {"head_dim": 16},
    "olmo_hybrid": _LINEAR | {"head_dim": None},
    "qwen3_next": _LINEAR | _EXPERTS | {"shared_expert_intermediate_size": 32},
    "ministral3": {"rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": TRAINED,
    }},
    "mistral4": _LATENT | _ROUTED | {"rope_parameters": {  # "default" would turn all channels
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 1.0, "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": TRAINED, "mscale": 1.0, "mscale_all_dim": 1.0,
    }},
    "deepseek_v2": _LATENT | _ROUTED,
    "deepseek_v3": _LATENT | _ROUTED,
    "deepseek_v32": _SPARSE,
    "glm_moe_dsa": _SPARSE,
    "glm4_moe_lite": _LATENT | _ROUTED,
    "youtu": _LATENT,
    "minicpm3": _LATENT,
    "qwen3_5_text": _LINEAR,
    "qwen3_5_moe_text": _LINEAR | _EXPERTS | {"shared_expert_intermediate_size": 32},
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"), _SECTIONS),
    "qwen3_vl_text": _DEALT,
    "qwen3_vl_moe_text": _DEALT | _EXPERTS,
}  # fmt: skip
_SEEING = {
    "qwen2_vl_text": {"embed_dim": 16, "hidden_size": 64},
    "qwen2_5_vl_text": {"hidden_size": 16, "out_hidden_size": 64, "intermediate_size": 16, "fullatt_block_indexes": [0]},
    "qwen3_vl_text": {"hidden_size": 16, "out_hidden_size": 64, "intermediate_size": 16, "deepstack_visual_indexes": [0]},
}  # fmt: skip
"""Vision parts of the types that transformers carries only beside one."""
_SEEING["qwen3_vl_moe_text"] = _SEEING["qwen3_vl_text"]


HEALTHY = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi", "phi3", "gemma", "gemma2", "gemma3_text", "gemma4_text",
    "smollm3", "starcoder2", "granite", "olmo", "olmo2", "olmo3", "exaone4", "glm", "glm4", "cohere2", "ernie4_5", "deepseek_v2",
    "deepseek_v3", "minicpm3", "gpt_neox",
)  # fmt: skip
"""Twenty-seven types without any finding; of the others one or two are true of some, under some versions of transformers."""


def one_in_three(names: Iterable[Any]) -> list[Any]:
    """For parametrize: the fast tests take every third."""
    return [pytest.param(name, marks=pytest.mark.slow if at % 3 else ()) for at, name in enumerate(names)]


def settings_of(model_type: str) -> dict[str, Any]:
    """What a type's small configuration has beside the common shape."""
    return _OWN.get(model_type, {})


def small_model(model_type: str, seed: int = 0, **settings: Any) -> Any:
    """A model in evaluation mode; settings go to its configuration."""
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    torch.manual_seed(seed)
    given = {k: v for k, v in (_SHAPE | _OWN.get(model_type, {})).items() if v is not None} | settings
    if model_type == "mistral":
        given.setdefault("sliding_window", None)
    if model_type in _SEEING:
        vision = _SEEING[model_type] | {"depth": 1, "num_heads": 2, "patch_size": 4}
        parts = {"text_config": given, "vision_config": vision, "image_token_id": 94, "video_token_id": 95}
        config = AutoConfig.for_model(model_type.removesuffix("_text"), **parts)
        model: Any = transformers.AutoModelForImageTextToText.from_config(config)
    elif model_type == "mistral4":  # which no Auto class has
        model = transformers.Mistral4ForCausalLM(AutoConfig.for_model(model_type, **given))
    else:
        config = AutoConfig.for_model(model_type, **given)
        kind = AutoModelForMaskedLM if model_type in ENCODERS else AutoModelForCausalLM
        model = kind.from_config(config)
    return model.eval()


def edit(folder: Path, remove: Iterable[str] = (), **changes: Any) -> None:
    """Change fields of the config.json in a folder, after some are removed."""
    path = folder / "config.json"
    fields = {key: value for key, value in json.loads(path.read_text()).items() if key not in remove}
    path.write_text(json.dumps(fields | changes))


def close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-4) -> None:
    """As far apart at most as a share of the largest number wanted."""
    torch.testing.assert_close(found, wanted, atol=tolerance * float(wanted.abs().max().clamp(min=1)), rtol=0)


def stepwise(model: Any, x: torch.Tensor, steps: Iterable[int], cache: Any = None) -> torch.Tensor:
    """Logits of tokens in several calls with a cache, of so many each."""
    from transformers import DynamicCache

    logits, at = [], 0
    cache = DynamicCache(config=model.config) if cache is None else cache
    for step in steps:
        logits.append(model(x[:, at : at + step], past_key_values=cache, use_cache=True).logits)
        at += step
    return torch.cat(logits, 1)


def tokens(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    """Random tokens that are none of the special ones."""
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
