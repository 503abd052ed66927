# SPDX-License-Identifier: Apache-2.0
"""The parts of a vision model that depend on patch positions: tables, functions of offsets, rotations; and tables resampled
for another grid, as each model's authors do it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from posenc.encodings import GridSinusoidal
from posenc.errors import InputError, check_word
from posenc.positions import Positions

Grid = tuple[int, int]
"""Rows and columns."""

OF_PATCHES: dict[str, str] = {
    "bicubic": "ViT, CLIP, DINOv2 and similar models in transformers",
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


LEARNED, SINUSOIDS, OFFSETS = "learned table", "sinusoidal table", "table of offsets"
FUNCTION, ROTATION = "function of offsets", "rotation"

TABLES = {
    "position_embeddings": LEARNED,
    "position_embedding.weight": LEARNED,
    "positional_embedding_vlm": LEARNED,
    "pos_embed": LEARNED,
    "decoder_pos_embed": LEARNED,
    "relative_position_bias_table": OFFSETS,
}
"""Names of parameters in transformers and timm with rows for patches or for their offsets."""

LAST = ("positional_embedding_vlm",)
"""Tables whose rows of tokens without a position come after those of the patches (Llama 4)."""

FUNCTIONS = ("continuous_position_bias_mlp", "cpb_mlp", "meta_mlp", "rel_coords_log")
"""Attributes of modules that compute the bias of an offset by a formula, which fits any grid (Swin v2; timm's too, and its
RelPosMlp)."""


@dataclass(frozen=True)
class Part:
    """A part of a model that depends on patch positions.

    where: its name in the model. kind: one of the five above. prefix: its rows, or its biases, of tokens without a position.
    old, new: its grid (or, for offsets, window) in patches. method: how the new one was made, "": it is as it was.
    """

    where: str
    kind: str
    prefix: int
    old: Grid
    new: Grid
    method: str = ""


def pair(value: Any) -> Grid:
    """(height, width) from one number for a square, or from two."""
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
    resampled = interpolate(plane, mode="bicubic", align_corners=False, antialias=method == "bicubic_antialias", **how)  # type: ignore[arg-type]
    return resampled[0].flatten(1).T.to(rows.dtype)


def resample_offsets(rows: Tensor, old: Grid, new: Grid, method: str) -> Tensor:
    """Biases of offsets ((2 h - 1) (2 w - 1), heads) of a window of h x w patches, for a window of another size.

    method: in OF_OFFSETS. "geometric": the offsets of the old window lie at 1, 1 + q, 1 + q + q^2 .. from the middle,
    so that the last falls on the last of the new one; near patches keep their bias, with linear interpolation between them
    (microsoft/unilm, beit/run_class_finetuning.py; timm, layers/pos_embed_rel.py).
    """
    if old == new:
        return rows
    source, target = ((2 * h - 1, 2 * w - 1) for h, w in (old, new))
    plane = _wide(rows).unflatten(0, source).permute(2, 0, 1)
    if method == "geometric":
        down, across = (_between(o, n).to(plane) for o, n in zip(source, target, strict=True))
        resampled = down @ plane @ across.T
    else:
        resampled = interpolate(plane[None], size=target, mode=method, align_corners=False)[0]
    return resampled.flatten(1).T.to(rows.dtype)


def sinusoids(grid: Grid, dim: int, *, x_first: bool) -> Tensor:
    """The fixed table of MAE for a grid: (rows * columns, dim), float64."""
    codes = GridSinusoidal(dim, x_first=x_first).double().codes(Positions.grid(*grid))
    return codes[0].to(torch.float64)


def sinusoid_order(rows: Tensor, grid: Grid) -> bool | None:
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
    """The matrix (new, old) that interpolates an axis of old offsets, in the progression, at the new ones."""
    old_at = _progression(old // 2, new // 2)
    at = torch.arange(-(new // 2), new // 2 + 1, dtype=torch.float64)
    if old == 1:
        return torch.ones(new, 1, dtype=torch.float64)
    above = torch.searchsorted(old_at, at).clamp(1, old - 1)
    weight = ((at - old_at[above - 1]) / (old_at[above] - old_at[above - 1])).clamp(0, 1)
    matrix = torch.zeros(new, old, dtype=torch.float64)
    rows = torch.arange(new)
    matrix[rows, above - 1] = 1 - weight
    matrix[rows, above] = weight
    return matrix


def _progression(steps: int, reach: int) -> Tensor:
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


def fixed_parts(before: nn.Module, after: nn.Module, prefix: str, old: Grid, new: Grid) -> list[Part]:
    """The parts that compute positions by a formula, which fits any grid. before, after: the model for both sizes."""
    parts = []
    for (name, module), twin in zip(before.named_modules(prefix=prefix), after.modules(), strict=True):
        kind = type(module).__name__.lower()
        if any(hasattr(module, each) for each in FUNCTIONS):
            parts.append(Part(name, FUNCTION, 0, window_of(module) or old, window_of(twin) or new))
        elif ("rope" in kind or "rotary" in kind) and not any(module.children()):
            parts.append(Part(name, ROTATION, 0, old, new))
    return parts


def table_kind(name: str) -> str | None:
    """The kind of a parameter by its name, None: not a table of positions."""
    return next((kind for end, kind in TABLES.items() if f".{name}".endswith(f".{end}")), None)


def window_of(module: nn.Module) -> Grid | None:
    """Patches of the window of a module's attention."""
    window = getattr(module, "window_size", None)
    return None if window is None else pair(window)


def resampled_table(
    name: str, weight: Tensor, count: int, old: Grid, new: Grid, method: str | None, default: str
) -> tuple[Part, Tensor]:
    """A table for another grid or window, in the model's shape.

    count: rows it must have. method: in OF_PATCHES or OF_OFFSETS, None: `default`, that of the model's authors; a table that is
    MAE's of its grid is computed anew.

    Raises:
        InputError: a table with unexplained rows, or a method for another kind.
    """
    kind = table_kind(name)
    rows = weight.detach().reshape(-1, weight.shape[-1]) if kind else weight.detach()
    first, second = ((2 * h - 1) * (2 * w - 1) if kind == OFFSETS else h * w for h, w in (old, new))
    prefix = len(rows) - first
    if kind is None or prefix < 0 or count - second != prefix:
        raise InputError(
            f"{name} of shape {tuple(weight.shape)} depends on the image size, and is not a known table of positions: resize "
            "this model with its own library"
        )
    last = _last(name)
    apart, patches = (rows[first:], rows[:first]) if last else (rows[:prefix], rows[prefix:])
    x_first = sinusoid_order(patches, old) if kind == LEARNED else None
    if x_first is not None and method is None:
        kind, method = SINUSOIDS, "computed anew"
        patches = sinusoids(new, rows.shape[1], x_first=x_first).to(patches)
    else:
        method = method or default
        check_word("method for this table", method, OF_PATCHES if kind == LEARNED else OF_OFFSETS)
        patches = (resample if kind == LEARNED else resample_offsets)(patches, old, new, method)
    made = torch.cat((patches, apart) if last else (apart, patches))
    part = Part(name, kind, prefix, old, new, method if old != new else "")
    return part, made.reshape(*weight.shape[:-2], *made.shape)


def rows_of_patches(part: Part, weight: Tensor) -> Tensor:
    """The rows of a table for patches or offsets, (rows, dim)."""
    rows = weight.detach().reshape(-1, weight.shape[-1])
    return rows[: len(rows) - part.prefix] if _last(part.where) else rows[part.prefix :]


def _last(name: str) -> bool:
    return table_kind(name) == OFFSETS or name.split(".")[-1] in LAST
