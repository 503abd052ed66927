"""transformers: rotary, schedules, slopes, buckets, sinusoidal codes."""

from functools import cache

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

PACKAGE = "transformers"


def _config(kind, head_dim, base, **options):
    shape = {
        "hidden_size": 2 * head_dim,
        "num_attention_heads": 2,
        "head_dim": head_dim,
        "max_position_embeddings": 2**20,
    }
    return LlamaConfig(**shape, rope_parameters={"rope_type": kind, "rope_theta": base, **options})


@cache
def _llama(dim, base, dtype=torch.float32):
    return llama.LlamaRotaryEmbedding(_config("default", dim, base)).to(dtype)


def llama_rotary(x, positions, base):
    cos, sin = _llama(x.shape[-1], base)(x, positions[None])
    return llama.apply_rotary_pos_emb(x, x, cos, sin)[0]


def llama_rotary_cast(x, positions, base):
    module = _llama(x.shape[-1], base, x.dtype)
    return llama.apply_rotary_pos_emb(x, x, *module(x, positions[None]))[0]


def gptj_rotary(x, positions, base):
    if base != 10000:
        raise NotImplementedError
    table = gptj.create_sinusoidal_positions(int(positions.max()) + 1, x.shape[-1])[positions][None]
    sin, cos = table.chunk(2, -1)
    return gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin.to(x.dtype), cos.to(x.dtype)).transpose(1, 2)


@cache
def _neox(dim, base, rotary_dim):
    return neox.GPTNeoXRotaryEmbedding(_config("default", dim, base, partial_rotary_factor=rotary_dim / dim))


def neox_rotary(x, positions, base, rotary_dim):
    cos, sin = _neox(x.shape[-1], base, rotary_dim)(x, positions[None])
    return neox.apply_rotary_pos_emb(x, x, cos, sin)[0]


def _schedule(kind, head_dim, base, **options):
    return ROPE_INIT_FUNCTIONS[kind](_config(kind, head_dim, base, **options), torch.device("cpu"))


def linear(head_dim, base, factor):
    return _schedule("linear", head_dim, base, factor=factor)


def yarn(head_dim, base, factor, original_max_positions, beta_fast=32, beta_slow=1, truncate=True):
    options = {"beta_fast": beta_fast, "beta_slow": beta_slow, "truncate": truncate}
    return _schedule(
        "yarn", head_dim, base, factor=factor, original_max_position_embeddings=original_max_positions, **options
    )


def yarn_per_layer(head_dim, base, factor, original_max_positions, truncate=True):
    options = {"rope_type": "yarn", "rope_theta": base, "factor": factor, "truncate": truncate}
    options["original_max_position_embeddings"] = original_max_positions
    config = _config("default", head_dim, base)
    config.layer_types, config.rope_parameters = ["full_attention"], {"full_attention": options}
    return ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"), layer_type="full_attention")


def llama3(head_dim, base, factor, original_max_positions, low_freq_factor=1.0, high_freq_factor=4.0):
    options = {"low_freq_factor": low_freq_factor, "high_freq_factor": high_freq_factor}
    return _schedule(
        "llama3", head_dim, base, factor=factor, original_max_position_embeddings=original_max_positions, **options
    )


def proportional(head_dim, base, fraction):
    return _schedule("proportional", head_dim, base, partial_rotary_factor=fraction)


def bloom_slopes(num_heads):
    return build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[:, 0, 1]


def mpt_slopes(num_heads):
    return -build_mpt_alibi_tensor(num_heads, 2)[:, 0, 0]


CHECKS = [
    ("LlamaRotaryEmbedding, apply_rotary_pos_emb", llama_rotary, "rotary"),
    ("LlamaRotaryEmbedding cast to x's dtype, as model.to does", llama_rotary_cast, "rotary"),
    ("GPT-J create_sinusoidal_positions, apply_rotary_pos_emb", gptj_rotary, "rotary_interleaved"),
    ("GPTNeoXRotaryEmbedding, apply_rotary_pos_emb", neox_rotary, "rotary_partial"),
    ("ROPE_INIT_FUNCTIONS['linear']", linear, "linear"),
    ("ROPE_INIT_FUNCTIONS['yarn']", yarn, "yarn"),
    ("ROPE_INIT_FUNCTIONS['yarn'], parameters per layer type", yarn_per_layer, "yarn"),
    ("ROPE_INIT_FUNCTIONS['llama3']", llama3, "llama3"),
    ("ROPE_INIT_FUNCTIONS['proportional']", proportional, "proportional"),
    ("BLOOM build_alibi_tensor", bloom_slopes, "alibi"),
    ("MPT build_mpt_alibi_tensor", mpt_slopes, "alibi"),
    ("T5Attention._relative_position_bucket", T5Attention._relative_position_bucket, "t5"),
    ("DeBERTa-v2 make_log_bucket_position", make_log_bucket_position, "deberta"),
]
