# SPDX-License-Identifier: Apache-2.0
"""Tables of positions for another grid: how each source does it, as functions of tensors."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from posenc.encodings import GridSinusoidal
from posenc.positions import Positions

Grid = tuple[int, int]
"""Rows and columns."""

OF_PATCHES: dict[str, str] = {
    "bicubic": "ViT, CLIP, DINOv2 and their kin in transformers",
    "bicubic_antialias": "timm; DINOv2 with registers, by its authors and in transformers",
    "bicubic_offset": "DINOv2 without registers, by its authors: sampled for a grid that is 0.1 patches larger",
}
"""Methods for a learned vector per patch -> who uses it."""

OF_OFFSETS: dict[str, str] = {
    "bicubic": "Swin, by its authors",
    "bilinear": "BEiT in transformers, at every call",
    "geometric": "BEiT, by its authors; timm: old offsets lie in a geometric progression, linear between them",
}
"""Methods for a learned bias per offset -> who uses it."""

OFFSET = 0.1
"""Patches by which DINOv2's authors enlarge the grid they interpolate for (facebookresearch/dinov2, interpolate_offset)."""

PROGRESSION = (1.01, 1.5)
"""Between which timm and BEiT's authors look for the ratio of the progression."""


def pair(value: Any) -> Grid:
    """A size as models say it, one number for a square or two."""
    height, width = (value, value) if isinstance(value, int) else value
    return int(height), int(width)


def resample(rows: Tensor, old: Grid, new: Grid, method: str) -> Tensor:
    """Vectors of patches (old rows * columns, dim), row by row, for a grid of another size; computed in float32 or better.

    Corners are not aligned. method: in OF_PATCHES.
    """
    if old == new:
        return rows
    plane = _wide(rows).unflatten(0, old).permute(2, 0, 1)[None]
    how: dict[str, object] = {"size": new}
    if method == "bicubic_offset":
        how = {"scale_factor": tuple((n + OFFSET) / o for o, n in zip(old, new, strict=True))}
    found = interpolate(plane, mode="bicubic", align_corners=False, antialias=method == "bicubic_antialias", **how)  # type: ignore[arg-type]
    return found[0].flatten(1).T.to(rows.dtype)


def resample_offsets(rows: Tensor, old: Grid, new: Grid, method: str) -> Tensor:
    """Biases of offsets ((2 h - 1) (2 w - 1), heads) of a window of h x w patches, for a window of another size.

    method: in OF_OFFSETS. "geometric": the offsets of the old window are placed 1, 1 + q, 1 + q + q^2 .. from the middle,
    so that the last falls on the last of the new one; near patches keep their bias, and what is between is linear
    (microsoft/unilm, beit/run_class_finetuning.py; timm, layers/pos_embed_rel.py).
    """
    if old == new:
        return rows
    source, target = ((2 * h - 1, 2 * w - 1) for h, w in (old, new))
    plane = _wide(rows).unflatten(0, source).permute(2, 0, 1)
    if method == "geometric":
        down, across = (_between(o, n).to(plane) for o, n in zip(source, target, strict=True))
        found = down @ plane @ across.T
    else:
        found = interpolate(plane[None], size=target, mode=method, align_corners=False)[0]
    return found.flatten(1).T.to(rows.dtype)


def sinusoids(grid: Grid, dim: int, *, x_first: bool) -> Tensor:
    """The fixed table of MAE for a grid: (rows * columns, dim), float64."""
    codes = GridSinusoidal(dim, x_first=x_first).double().codes(Positions.grid(*grid))
    return codes[0].to(torch.float64)


def order_of_sinusoids(rows: Tensor, grid: Grid) -> bool | None:
    """Whether x comes first in a table (patches, dim) that is MAE's of its grid; None: it is another table."""
    if rows.shape[1] % 4 or rows.is_meta:
        return None
    tolerance = 4 * torch.finfo(rows.dtype).eps + 1e-5  # the authors' float32 phases
    for x_first in (True, False):
        made = sinusoids(grid, rows.shape[1], x_first=x_first).to(rows.device)
        if torch.allclose(rows.double(), made, rtol=0, atol=tolerance):
            return x_first
    return None


def _between(old: int, new: int) -> Tensor:
    """The matrix (new, old) that reads an axis of old offsets, placed in the progression, at the new ones."""
    places = _places(old // 2, new // 2)
    at = torch.arange(-(new // 2), new // 2 + 1, dtype=torch.float64)
    if old == 1:
        return torch.ones(new, 1, dtype=torch.float64)
    above = torch.searchsorted(places, at).clamp(1, old - 1)
    weight = ((at - places[above - 1]) / (places[above] - places[above - 1])).clamp(0, 1)
    found = torch.zeros(new, old, dtype=torch.float64)
    rows = torch.arange(new)
    found[rows, above - 1] = 1 - weight
    found[rows, above] = weight
    return found


def _places(steps: int, reach: int) -> Tensor:
    """Where the old offsets -steps .. steps lie, in patches of the new window."""
    low, high = PROGRESSION
    powers = torch.arange(steps, dtype=torch.float64)
    for _ in range(40):  # the sum grows with the ratio
        ratio = (low + high) / 2
        low, high = (low, ratio) if (ratio**powers).sum() > reach else (ratio, high)
    out = (low**powers).cumsum(0)
    return torch.cat((-out.flip(0), out.new_zeros(1), out))


def _wide(rows: Tensor) -> Tensor:
    return rows.detach().to(torch.promote_types(rows.dtype, torch.float32))
