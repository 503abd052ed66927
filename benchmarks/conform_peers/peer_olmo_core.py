"""OLMo-core: olmo_core.nn.rope."""

from functools import cache

import torch
from olmo_core.nn import rope
from shared import one_by_one

PACKAGE = "ai2-olmo-core"
CPU = torch.device("cpu")


_module = cache(rope.RotaryEmbedding)
_complex_module = cache(rope.ComplexRotaryEmbedding)


def rotary(x, positions, base):
    module = _module(head_size=x.shape[-1], theta=base)
    return one_by_one(lambda rows, start: module(rows, rows, start_pos=start)[0], x, positions)


def complex_rotary(x, positions, base):
    module = _complex_module(head_size=x.shape[-1], theta=base)
    return one_by_one(lambda rows, start: module(rows, rows, start_pos=start)[0], x, positions)


def linear(head_dim, base, factor):
    return rope.PIRoPEScalingConfig(factor=factor).compute_scaled_inv_freq(base, head_dim, CPU)


def yarn(head_dim, base, factor, original_max_positions, beta_fast=32, beta_slow=1):
    config = rope.YaRNRoPEScalingConfig(
        factor=factor, beta_fast=beta_fast, beta_slow=beta_slow, old_context_len=original_max_positions
    )
    return config.compute_scaled_inv_freq(base, head_dim, CPU)


def llama3(head_dim, base, factor, original_max_positions, low_freq_factor=1.0, high_freq_factor=4.0):
    config = rope.StepwiseRoPEScalingConfig(
        factor=factor,
        low_freq_proportion=1 - 1 / low_freq_factor,
        high_freq_proportion=1 / high_freq_factor,
        old_context_len=original_max_positions,
    )
    return config.compute_scaled_inv_freq(base, head_dim, CPU)


CHECKS = [
    ("RotaryEmbedding", rotary, "rotary"),
    ("ComplexRotaryEmbedding", complex_rotary, "rotary_interleaved"),
    ("PIRoPEScalingConfig", linear, "linear"),
    ("YaRNRoPEScalingConfig", yarn, "yarn"),
    ("StepwiseRoPEScalingConfig", llama3, "llama3"),
]
