"""keras-hub: the RotaryEmbedding and AlibiBias layers, on Keras' torch backend."""

import os
from functools import cache

os.environ["KERAS_BACKEND"] = "torch"

import torch
from keras_hub.layers import AlibiBias, RotaryEmbedding, SinePositionEncoding
from shared import from_angles

PACKAGE = "keras-hub"


def _numbers(value):
    return value.detach().cpu() if isinstance(value, torch.Tensor) else torch.as_tensor(value)


@cache
def _module(dim, base, dtype):
    return RotaryEmbedding(max_wavelength=base, dtype=str(dtype).removeprefix("torch."))


def rotary(x, positions, base):
    return _module(x.shape[-1], base, x.dtype)(x.transpose(1, 2), positions=positions).transpose(1, 2)


def _schedule(head_dim, base, **options):
    layer = RotaryEmbedding(max_wavelength=base, **options)
    cos, sin = layer._compute_cos_sin_embedding(torch.zeros(1, 2, head_dim))
    return from_angles(_numbers(cos)[0, 1, : head_dim // 2], _numbers(sin)[0, 1, : head_dim // 2])


def linear(head_dim, base, factor):
    return _schedule(head_dim, base, rope_type="linear", scaling_factor=factor)


def dynamic(head_dim, base, factor):
    return _schedule(head_dim, base, rope_type="dynamic", scaling_factor=factor)


def yarn(head_dim, base, factor, original_max_positions, beta_fast=32.0, beta_slow=1.0, truncate=True):
    options = {"beta_fast": beta_fast, "beta_slow": beta_slow, "truncate": truncate}
    options["original_max_position_embeddings"] = original_max_positions
    return _schedule(head_dim, base, rope_type="yarn", scaling_factor=factor, **options)


def slopes(num_heads):
    return -_numbers(AlibiBias()(torch.zeros(1, num_heads, 2, 2)))[0, :, 1, 0]


def sinusoidal(positions, dim, base):
    layer = SinePositionEncoding(max_wavelength=base)
    return _numbers(layer(torch.zeros(1, int(positions.max()) + 1, dim)))[0, positions]


CHECKS = [
    ("RotaryEmbedding", rotary, "rotary"),
    ("RotaryEmbedding(rope_type='linear')", linear, "linear"),
    ("RotaryEmbedding(rope_type='dynamic')", dynamic, "ntk"),
    ("RotaryEmbedding(rope_type='yarn')", yarn, "yarn"),
    ("AlibiBias", slopes, "alibi"),
    ("SinePositionEncoding", sinusoidal, "sinusoidal"),
]
