"""x-transformers: rotary, xPos, ALiBi, T5."""

from functools import cache

import torch
from x_transformers.x_transformers import (
    AlibiPositionalBias,
    RelativePositionBias,
    RotaryEmbedding,
    apply_rotary_pos_emb,
)

PACKAGE = "x-transformers"


_module = cache(RotaryEmbedding)


def rotary(x, positions, base):
    freqs, scale = _module(x.shape[-1], base=base)(positions)
    return apply_rotary_pos_emb(x, freqs, scale)


def ntk(head_dim, base, factor):
    return RotaryEmbedding(head_dim, base=base, base_rescale_factor=factor).inv_freq


def linear(head_dim, base, factor):
    freqs, _ = RotaryEmbedding(head_dim, base=base, interpolation_factor=factor)(torch.ones(1))
    return freqs[0, 0, ::2]


def slopes(num_heads):
    return AlibiPositionalBias(num_heads).slopes


def bucket(relative_position, bidirectional, num_buckets, max_distance):
    return RelativePositionBias._relative_position_bucket(
        relative_position, causal=not bidirectional, num_buckets=num_buckets, max_distance=max_distance
    )


def alibi_bias(num_heads, num_queries, num_keys):
    return AlibiPositionalBias(num_heads)(num_queries, num_keys)


def t5_bias(table, num_queries, num_keys, bidirectional, max_distance):
    options = {"num_buckets": len(table), "max_distance": max_distance, "heads": table.shape[1]}
    module = RelativePositionBias(1.0, causal=not bidirectional, **options)
    module.relative_attention_bias.weight.data = table
    return module(num_queries, num_keys)


CHECKS = [
    ("AlibiPositionalBias.forward", alibi_bias, "alibi_bias"),
    ("RelativePositionBias.forward", t5_bias, "t5_bias"),
    ("RotaryEmbedding, apply_rotary_pos_emb", rotary, "rotary_interleaved"),
    ("RotaryEmbedding(base_rescale_factor)", ntk, "ntk"),
    ("RotaryEmbedding(interpolation_factor)", linear, "linear"),
    ("AlibiPositionalBias", slopes, "alibi"),
    ("RelativePositionBias", bucket, "t5"),
]
