"""Random transformers models of every supported type, small enough for a test: trained to 64 tokens on paper."""

from typing import Any

import torch

VOCABULARY = 97
TRAINED = 64

_SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": TRAINED, "initializer_range": 0.3,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
_WINDOW = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
_OWN: dict[str, dict[str, Any]] = {
        "ministral": _WINDOW,
    "mixtral": {"num_local_experts": 2},
    "qwen2": _WINDOW | {"use_sliding_window": True},
    "qwen2_moe": _EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_moe": _EXPERTS,
    "granitemoe": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "olmoe": {"num_experts": 2, "num_experts_per_tok": 1},
    "gemma2": _WINDOW,
    "gemma3_text": _WINDOW,
    "smollm3": {"num_hidden_layers": 4, "no_rope_layer_interval": 2},
    "gpt_neox": {"head_dim": None, "num_key_value_heads": None},  # which it derives
    "gpt_oss": _WINDOW
    | {"num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
}  # fmt: skip


def small_model(model_type: str, seed: int = 0, **settings: Any) -> Any:
    """A model in evaluation mode; settings go to its configuration."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    given = {k: v for k, v in (_SHAPE | _OWN.get(model_type, {})).items() if v is not None} | settings
    if model_type == "mistral":
        given.setdefault("sliding_window", None)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **given)).eval()


def tokens(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    """Random tokens that are none of the special ones."""
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
