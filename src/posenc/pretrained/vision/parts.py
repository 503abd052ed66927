# SPDX-License-Identifier: Apache-2.0
"""What in a vision model knows places: tables, functions of offsets, rotations; and each one made for another grid."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posenc.errors import InputError, unknown
from posenc.pretrained.vision.tables import (
    OF_OFFSETS,
    OF_PATCHES,
    Grid,
    order_of_sinusoids,
    pair,
    resample,
    resample_offsets,
    sinusoids,
)

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
"""How the parameters are called, in transformers and timm, that have rows for patches or for their offsets."""

LAST = ("positional_embedding_vlm",)
"""Tables whose rows of tokens without a place come after those of the patches (Llama 4)."""

FUNCTIONS = ("continuous_position_bias_mlp", "cpb_mlp", "meta_mlp", "rel_coords_log")
"""What a module has that makes the bias of an offset by a formula, which fits any grid (Swin v2; timm's too, and its
RelPosMlp)."""


@dataclass(frozen=True)
class Part:
    """One thing that knows places.

    where: its name in the model. kind: one of the five above. prefix: its rows, or its biases, of tokens without a place.
    old, new: the grid (or, for offsets, the window) that it is for, in patches. method: how the new one was made, "" where
    it is as it was.
    """

    where: str
    kind: str
    prefix: int
    old: Grid
    new: Grid
    method: str = ""


def fixed_parts(before: nn.Module, after: nn.Module, prefix: str, old: Grid, new: Grid) -> list[Part]:
    """What knows places by a formula, so that any grid is alike to it. before, after: the same model for both."""
    found = []
    for (name, module), twin in zip(before.named_modules(prefix=prefix), after.modules(), strict=True):
        kind = type(module).__name__.lower()
        if any(hasattr(module, each) for each in FUNCTIONS):
            found.append(Part(name, FUNCTION, 0, window_of(module) or old, window_of(twin) or new))
        elif ("rope" in kind or "rotary" in kind) and not any(module.children()):
            found.append(Part(name, ROTATION, 0, old, new))
    return found


def scales_offsets(module: nn.Module) -> bool:
    """Whether a formula of offsets counts them in the window as it is, not in the one that was trained."""
    trained = getattr(module, "pretrained_window_size", None)
    return trained is not None and max(trained) == 0 and getattr(module, "mode", "swin") == "swin"


def table_kind(name: str) -> str | None:
    """What a parameter of this name is, None: no table of positions."""
    return next((kind for end, kind in TABLES.items() if f".{name}".endswith(f".{end}")), None)


def window_of(module: nn.Module) -> Grid | None:
    """Patches of the window that a module attends in."""
    found = getattr(module, "window_size", None)
    return None if found is None else pair(found)


def remade(
    name: str, weight: Tensor, count: int, old: Grid, new: Grid, method: str | None, usual: str
) -> tuple[Part, Tensor]:
    """A table for another grid or window, as the model holds it.

    count: rows it must have. method: in OF_PATCHES or OF_OFFSETS, None: `usual`, that of the model's source; a table that is
    MAE's of its grid is computed anew.

    Raises:
        InputError: a table that has rows posenc cannot explain, or a method for another kind.
    """
    kind = table_kind(name)
    rows = weight.detach().reshape(-1, weight.shape[-1]) if kind else weight.detach()
    first, second = (_rows(kind, grid) for grid in (old, new))
    prefix = len(rows) - first
    if kind is None or prefix < 0 or count - second != prefix:
        raise InputError(
            f"{name} of shape {tuple(weight.shape)} depends on the image size, and is no table that posenc knows: resize "
            "this model with its own library"
        )
    last = _last(name)
    apart, patches = (rows[first:], rows[:first]) if last else (rows[:prefix], rows[prefix:])
    x_first = order_of_sinusoids(patches, old) if kind == LEARNED else None
    if x_first is not None and method is None:
        kind, method = SINUSOIDS, "computed anew"
        patches = sinusoids(new, rows.shape[1], x_first=x_first).to(patches)
    elif kind == LEARNED:
        method = _checked(method or usual, OF_PATCHES)
        patches = resample(patches, old, new, method)
    else:
        method = _checked(method or usual, OF_OFFSETS)
        patches = resample_offsets(patches, old, new, method)
    made = torch.cat((patches, apart) if last else (apart, patches))
    return Part(name, kind, prefix, old, new, method if old != new else ""), made.reshape(
        *weight.shape[:-2], *made.shape
    )


def rows_of_patches(part: Part, weight: Tensor) -> Tensor:
    """The rows of a table that are patches' or offsets', (rows, dim)."""
    rows = weight.detach().reshape(-1, weight.shape[-1])
    return rows[: len(rows) - part.prefix] if _last(part.where) else rows[part.prefix :]


def _last(name: str) -> bool:
    return table_kind(name) == OFFSETS or name.split(".")[-1] in LAST


def _rows(kind: str | None, grid: Grid) -> int:
    """Of a table for a grid or a window, without those of tokens without a place."""
    height, width = grid
    return (2 * height - 1) * (2 * width - 1) if kind == OFFSETS else height * width


def _checked(method: str, known: dict[str, str]) -> str:
    if method not in known:
        raise unknown("method for this table", method, known)
    return method
