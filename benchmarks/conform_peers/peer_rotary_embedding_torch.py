"""rotary-embedding-torch: rotate_queries_or_keys, its rescalings."""

from functools import cache

import torch
from rotary_embedding_torch import RotaryEmbedding
from shared import one_by_one

PACKAGE = "rotary-embedding-torch"


_module = cache(RotaryEmbedding)


def rotary(x, positions, base):
    module = _module(x.shape[-1], theta=base)
    return one_by_one(lambda rows, offset: module.rotate_queries_or_keys(rows, offset=offset), x, positions)


def ntk(head_dim, base, factor):
    return RotaryEmbedding(head_dim, theta=base, theta_rescale_factor=factor).freqs


def linear(head_dim, base, factor):
    module = RotaryEmbedding(head_dim, theta=base, interpolate_factor=factor)
    return module(module.get_seq_pos(2, device=torch.device("cpu"), dtype=torch.float32))[1, ::2]


CHECKS = [
    ("RotaryEmbedding.rotate_queries_or_keys", rotary, "rotary_interleaved"),
    ("RotaryEmbedding(theta_rescale_factor)", ntk, "ntk"),
    ("RotaryEmbedding(interpolate_factor)", linear, "linear"),
]
