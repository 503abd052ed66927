# SPDX-License-Identifier: Apache-2.0
"""Learned tables of a grid, read at another size."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from posenc.checks import check_word


def check_beyond_grid(beyond: str) -> None:
    """Refuse an unknown answer to images of another size than a table."""
    check_word("beyond", beyond, ("resize", "error", "clamp"))


def bicubic(planes: Tensor, height: int, width: int) -> Tensor:
    """(planes, h, w) -> (planes, height, width), as ViT, DINOv2 and Swin do it: corners not aligned, no smoothing, in float32
    or better. The same size is left as it is."""
    if planes.shape[-2:] == (height, width):
        return planes
    precise = planes.to(torch.promote_types(planes.dtype, torch.float32))
    return interpolate(precise[None], (height, width), mode="bicubic", align_corners=False)[0].to(planes.dtype)
