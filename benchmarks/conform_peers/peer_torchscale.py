"""torchscale: XPOS centres positions on the middle of the sequence; a sequence that extends both ways gives the
scale of every position."""

from functools import cache

import torch
from torchscale.component.relative_position_bias import RelativePositionBias
from torchscale.component.xpos_relative_position import XPOS

PACKAGE = "torchscale"


_module = cache(XPOS)


def scale(positions, head_dim, scale_base):
    reach = int(positions.abs().max()) + 1
    pairs = torch.zeros(1, 2 * reach, head_dim)
    pairs[..., 0::2] = 1.0
    turned = _module(head_dim, scale_base)(pairs)[0]
    return torch.hypot(turned[:, 0::2], turned[:, 1::2])[positions + reach]


def bias(table, num_queries, num_keys, bidirectional, max_distance):
    module = RelativePositionBias(bidirectional, len(table), max_distance, table.shape[1])
    module.relative_attention_bias.weight.data = table
    return module(1, num_queries, num_keys, num_keys - num_queries)


CHECKS = [("XPOS", scale, "xpos"), ("RelativePositionBias(step)", bias, "t5_bias")]
