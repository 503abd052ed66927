"""ibm-fms: fms.modules.positions."""

from functools import cache

import torch
from fms.modules import positions as fms
from shared import LONGEST, from_angles

PACKAGE = "ibm-fms"
CPU = torch.device("cpu")


@cache
def _module(dim, base):
    return fms.RotaryEmbedding(dim, ratio=base, max_seq_len=LONGEST)


def rotary(x, positions, base):
    rows = x.transpose(1, 2)
    module = _module(x.shape[-1], base)
    return module.adjusted_qk(rows, rows, positions.expand(len(x), -1))[0].transpose(1, 2)


def ntk(head_dim, base, factor):
    return fms.RopeNtkScalingImpl(head_dim, base).compute_scaled_freqs("cpu", factor)


def llama3(head_dim, base, factor, original_max_positions, low_freq_factor=1.0, high_freq_factor=4.0):
    options = {"factor": factor, "low_freq_factor": low_freq_factor, "high_freq_factor": high_freq_factor}
    options["original_max_position_embeddings"] = original_max_positions
    return fms.RopeLlama3ScalingImpl(head_dim, base, original_max_positions, options).compute_scaled_freqs("cpu", 1)


def yarn(head_dim, base, factor, original_max_positions, beta_fast=32.0, beta_slow=1.0):
    options = {"scaling_factor": factor, "ntk_beta": beta_fast, "ntk_alpha": beta_slow}
    scheme = fms.YarnRopeImpl(head_dim, base, original_max_positions, options)
    return scheme.compute_scaled_freqs("cpu", 1), scheme.concentration


def cached_yarn(head_dim, base, factor, original_max_positions, beta_fast=32.0, beta_slow=1.0):
    module = fms.CachedYarnRotaryEmbedding(
        head_dim, original_max_positions, base, factor, beta_fast=beta_fast, beta_slow=beta_slow
    )
    module.compute_freqs_cis(CPU, 2)
    turn = module.cached_freqs[None][1]
    return from_angles(turn[:, 0, 0], turn[:, 1, 0])


def slopes(num_heads):
    return fms.Alibi(num_heads).scales


CHECKS = [
    ("RotaryEmbedding.adjusted_qk", rotary, "rotary_interleaved"),
    ("RopeNtkScalingImpl, alpha = factor", ntk, "ntk"),
    ("RopeLlama3ScalingImpl", llama3, "llama3"),
    ("YarnRopeImpl", yarn, "yarn"),
    ("CachedYarnRotaryEmbedding", cached_yarn, "yarn"),
    ("Alibi", slopes, "alibi"),
]
