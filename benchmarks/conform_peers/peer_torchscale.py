"""torchscale: XPOS centres positions on the middle of the sequence; a sequence that extends both ways gives the
scale of every position."""

from functools import cache

import torch
from torchscale.component.xpos_relative_position import XPOS

PACKAGE = "torchscale"


_module = cache(XPOS)


def scale(positions, head_dim, scale_base):
    reach = int(positions.abs().max()) + 1
    pairs = torch.zeros(1, 2 * reach, head_dim)
    pairs[..., 0::2] = 1.0
    turned = _module(head_dim, scale_base)(pairs)[0]
    return torch.hypot(turned[:, 0::2], turned[:, 1::2])[positions + reach]


CHECKS = [("XPOS", scale, "xpos")]
