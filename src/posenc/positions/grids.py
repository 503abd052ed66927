# SPDX-License-Identifier: Apache-2.0
"""Images and videos as tokens: where their patches are, alone, together, or between text."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.checks import is_whole, shown
from posenc.errors import InputError

MOST_PATCHES = 2**26
"""Of all images together: the places of more take gigabytes."""


def size_of(height: int, width: int, frames: int | None = None) -> tuple[int, ...]:
    """Of an image in the order of its axes: (height, width) or (frames, height, width).

    Raises:
        InputError: a size below 1, or too many patches.
    """
    size = (height, width) if frames is None else (frames, height, width)
    if not all(is_whole(n) for n in size) or min(size) < 1 or math.prod(size) > MOST_PATCHES:
        raise InputError(
            f"grid of height={shown(height)}, width={shown(width)}, frames={shown(frames)}: each must be an integer, at "
            f"least 1, and all patches at most {MOST_PATCHES}"
        )
    return size


def sizes_of(sizes: Any) -> list[tuple[int, ...]]:
    """`size_of` of several images, (height, width) or (height, width, frames) each.

    Raises:
        InputError: none, another number of sizes, or images next to videos.
    """
    if isinstance(sizes, Tensor):
        sizes = sizes.tolist()
    listed = isinstance(sizes, (tuple, list)) and all(isinstance(size, (tuple, list)) for size in sizes)
    if not listed or not sizes or not all(len(size) in (2, 3) for size in sizes):
        raise InputError(f"sizes={shown(sizes)}: pass (height, width) or (height, width, frames) of each image")
    found = [size_of(*size) for size in sizes]
    if len({len(size) for size in found}) > 1 or sum(map(math.prod, found)) > MOST_PATCHES:
        raise InputError(
            f"sizes={shown(sizes)}: pass images or videos, not both, of at most {MOST_PATCHES} patches in all"
        )
    return found


def check_prefix(prefix: int) -> None:
    """Refuse a number of tokens before the patches that cannot be.

    Raises:
        InputError: names it.
    """
    if not is_whole(prefix) or not 0 <= prefix <= MOST_PATCHES:
        raise InputError(f"prefix={prefix}: the tokens before the patches are at least 0, at most {MOST_PATCHES}")


def cells(size: Sequence[int], prefix: int, device: torch.device | str | None) -> Tensor:
    """The coordinates of an image's tokens: (prefix + patches, axes), those before the patches at -1 on every axis."""
    axes = torch.meshgrid(*(torch.arange(n, device=device) for n in size), indexing="ij")
    patches = torch.stack(axes, -1).flatten(0, -2)
    return torch.cat((patches.new_full((prefix, len(size)), -1), patches))


def between_text(parts: Sequence[Any], device: torch.device | str | None) -> Tensor:
    """(t, y, x) of each token of text and images, see `Positions.mixed`: (n, 3).

    Raises:
        InputError: a part that is neither a number of tokens nor the size of an image.
    """
    if isinstance(parts, (str, Tensor)) or not parts:
        raise InputError(f"parts={shown(parts)}: pass a list of numbers of text tokens and sizes of images")
    found, start = [], 0
    for part in parts:
        if isinstance(part, (tuple, list)) and len(part) in (2, 3):
            size = size_of(*part[:2], *(part[2:] or (1,)))
            place, taken = cells(size, 0, device), max(size)
        elif is_whole(part) and 1 <= part <= MOST_PATCHES:
            place, taken = torch.arange(part, device=device)[:, None].expand(-1, 3), part
        else:
            raise InputError(
                f"parts={shown(parts)}: {shown(part)} is neither a number of text tokens, at least 1, nor (height, width) "
                "or (height, width, frames) of an image"
            )
        found.append(place + start)
        start += taken
    return torch.cat(found)
