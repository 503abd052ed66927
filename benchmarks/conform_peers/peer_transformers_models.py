"""transformers: rotations and positions of single models; those that a release lacks are left out."""

from functools import cache, partial
from importlib import import_module
from inspect import signature
from types import SimpleNamespace

import torch
from transformers import DataCollatorWithFlattening, LlamaConfig
from transformers.models.llama import modeling_llama as llama

PACKAGE = "transformers"


def _load(name):
    """The modeling and the configuration module of a model, or None."""
    try:
        folder = f"transformers.models.{name}"
        return import_module(f"{folder}.modeling_{name}"), import_module(f"{folder}.configuration_{name}")
    except ModuleNotFoundError:
        return None


# -------------------------------------------------------------------- a row of documents, a padded batch


@cache
def _llama(dim, base):
    parameters = {"rope_type": "default", "rope_theta": base}
    config = LlamaConfig(
        hidden_size=2 * dim, num_attention_heads=2, head_dim=dim, rope_theta=base, rope_parameters=parameters
    )
    return llama.LlamaRotaryEmbedding(config)


def _at(x, positions, base):
    return llama.apply_rotary_pos_emb(x, x, *_llama(x.shape[-1], base)(x, positions))[0]


def collated(x, cu_seqlens, base):
    documents = [{"input_ids": [5] * int(n)} for n in cu_seqlens.diff()]
    batch = DataCollatorWithFlattening(return_tensors="pt")(documents)
    return _at(x, batch["position_ids"], base)


def position_ids(x, offsets, base):
    return _at(x, offsets[:, None] + torch.arange(x.shape[2]), base)


# -------------------------------------------------------------------- M-RoPE

TEXT, IMAGE, VIDEO, BEGIN = 9, 1, 2, 3


def rope_index(model, token_types, image_grids, video_grids, attention_mask, merge, **timing):
    """model.get_rope_index, of an object that has only its configuration."""
    vision = SimpleNamespace(spatial_merge_size=merge, tokens_per_second=timing.get("tokens_per_second", 1))
    ids = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": BEGIN}
    stub = type(
        "Stub", (model,), {"__init__": lambda self: None, "config": SimpleNamespace(vision_config=vision, **ids)}
    )
    tokens = torch.where(token_types == 0, TEXT, token_types)
    begins = (token_types[:, :-1] == 0) & (token_types[:, 1:] > 0)
    tokens[:, :-1][begins] = BEGIN
    given = {
        "input_ids": tokens, "mm_token_type_ids": token_types, "attention_mask": attention_mask,
        "image_grid_thw": image_grids if len(image_grids) else None,
        "video_grid_thw": video_grids.clone() if len(video_grids) else None,
        "second_per_grid_ts": timing.get("seconds_per_grid"),
    }  # fmt: skip
    named = signature(model.get_rope_index).parameters
    return stub.get_rope_index(object.__new__(stub), **{k: v for k, v in given.items() if k in named})[0]


def untimed(model):
    def ids(token_types, image_grids, video_grids, attention_mask, merge):
        return rope_index(model, token_types, image_grids, video_grids, attention_mask, merge)

    return ids


def timed(model):
    def ids(token_types, image_grids, video_grids, attention_mask, merge, seconds_per_grid=None, tokens_per_second=1):
        timing = {"seconds_per_grid": seconds_per_grid, "tokens_per_second": tokens_per_second}
        return rope_index(model, token_types, image_grids, video_grids, attention_mask, merge, **timing)

    return ids


def m_rope(modules, rotary, config, x, positions, base, sections):
    modeling, configuration = modules
    parameters = {
        "rope_type": "default",
        "type": "default",
        "rope_theta": base,
        "mrope_section": sections,
        "partial_rotary_factor": 1.0,
    }
    shape = {"hidden_size": 2 * x.shape[-1], "num_attention_heads": 2, "head_dim": x.shape[-1]}
    given = {**shape, "rope_theta": base, "rope_parameters": parameters, "rope_scaling": dict(parameters)}
    module = getattr(modeling, rotary)(getattr(configuration, config)(**given))
    cos, sin = module(x, positions[:, None])
    if hasattr(modeling, "apply_multimodal_rotary_pos_emb"):
        return modeling.apply_multimodal_rotary_pos_emb(x, x, cos, sin, sections)[0]
    return modeling.apply_rotary_pos_emb(x, x, cos, sin)[0]


# -------------------------------------------------------------------- parts of the channels


def deepseek_v4(modules, x, positions, base, rotary_dim):
    modeling, configuration = modules
    config = configuration.DeepseekV4Config(
        head_dim=x.shape[-1], partial_rotary_factor=rotary_dim / x.shape[-1], rope_theta=base, num_hidden_layers=2
    )
    cos, sin = modeling.DeepseekV4RotaryEmbedding(config)(x, positions[None], layer_type="main")
    return modeling.apply_rotary_pos_emb(x, cos, sin)


def gemma4(modules, x, positions, base, fraction):
    modeling, configuration = modules
    kind = {"rope_type": "proportional", "rope_theta": base, "partial_rotary_factor": fraction}
    types = ["sliding_attention", "full_attention"]
    config = configuration.Gemma4TextConfig(
        head_dim=x.shape[-1], global_head_dim=x.shape[-1], num_hidden_layers=2, layer_types=types,
        rope_parameters={types[0]: {"rope_type": "default", "rope_theta": 1e4}, types[1]: kind},
    )  # fmt: skip
    cos, sin = modeling.Gemma4TextRotaryEmbedding(config)(x, positions[None], types[1])
    return modeling.apply_rotary_pos_emb(x, cos, sin)


# -------------------------------------------------------------------- latent attention


def scaling(modules, attention, config, head_dim, factor, mscale, mscale_all_dim):
    modeling, configuration = modules
    parameters = {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": factor, "original_max_position_embeddings": 4096,
        "mscale": mscale, "mscale_all_dim": mscale_all_dim, "beta_fast": 32, "beta_slow": 1,
        "llama_4_scaling_beta": 0.1, "max_position_embeddings": 4096,
    }  # fmt: skip
    shape = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
    }
    heads = {"qk_rope_head_dim": head_dim // 2, "qk_nope_head_dim": head_dim // 2, "v_head_dim": 16, "head_dim": 16}
    made = getattr(configuration, config)(
        **shape, **heads, rope_parameters=parameters, rope_scaling={k: v for k, v in parameters.items() if k != "rope_theta"}
    )  # fmt: skip
    return getattr(modeling, attention)(made, 0).scaling


CHECKS = [
    ("DataCollatorWithFlattening, LlamaRotaryEmbedding", collated, "rotary_packed"),
    ("LlamaRotaryEmbedding of position_ids", position_ids, "rotary_ragged"),
]
for name, model, kind, how in (
    ("qwen2_vl", "Qwen2VLModel", "m_rope_ids", untimed),
    ("qwen2_5_vl", "Qwen2_5_VLModel", "m_rope_ids", timed),
    ("glm4v", "Glm4vModel", "m_rope_ids_frames", untimed),
    ("qwen3_vl", "Qwen3VLModel", "m_rope_ids_frames", untimed),
    ("qwen3_5", "Qwen3_5Model", "m_rope_ids_frames", untimed),
):
    if (found := _load(name)) and (
        name != "glm4v" or "mm_token_type_ids" in signature(found[0].Glm4vModel.get_rope_index).parameters
    ):
        CHECKS.append((f"{model}.get_rope_index", how(getattr(found[0], model)), kind))
for name, rotary, config, kind in (
    ("qwen2_vl", "Qwen2VLRotaryEmbedding", "Qwen2VLTextConfig", "m_rope"),
    ("qwen2_5_vl", "Qwen2_5_VLRotaryEmbedding", "Qwen2_5_VLTextConfig", "m_rope"),
    ("qwen3_vl", "Qwen3VLTextRotaryEmbedding", "Qwen3VLTextConfig", "m_rope_interleaved"),
    ("qwen3_5", "Qwen3_5TextRotaryEmbedding", "Qwen3_5TextConfig", "m_rope_interleaved"),
):
    if found := _load(name):
        CHECKS.append((f"{rotary}, apply_rotary_pos_emb", partial(m_rope, found, rotary, config), kind))
if found := _load("deepseek_v4"):
    CHECKS.append(("DeepseekV4RotaryEmbedding, apply_rotary_pos_emb", partial(deepseek_v4, found), "rotary_trailing"))
if found := _load("gemma4"):
    CHECKS.append(("Gemma4TextRotaryEmbedding, apply_rotary_pos_emb", partial(gemma4, found), "rotary_proportional"))
for name, prefix in (("deepseek_v2", "DeepseekV2"), ("deepseek_v3", "DeepseekV3"), ("mistral4", "Mistral4")):
    if found := _load(name):
        compute = partial(scaling, found, f"{prefix}Attention", f"{prefix}Config")
        CHECKS.append((f"{prefix}Attention.scaling", compute, "softmax_scale"))
