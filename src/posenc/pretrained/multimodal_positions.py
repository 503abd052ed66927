# SPDX-License-Identifier: Apache-2.0
"""Positions of text with images and videos in it, at (t, y, x), as Qwen2-VL's paper numbers them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.errors import LARGEST_SIZE, InputError, check_flags, check_sizes, is_integer, refuse_in_program, shown
from posenc.positions import Positions
from posenc.positions.ids import size_of


def multimodal(
    parts: Sequence[Any],
    num_queries: int | None = None,
    *,
    causal: bool = False,
    device: torch.device | str | None = None,
) -> Positions:
    """Positions of text with images and videos in it (Wang et al. 2024, "Qwen2-VL", arXiv 2409.12191, section 2.1).

    A text token is at the same number on all axes. An image's token is at (frame, row, column), counted from where a text token
    would be in its place, and text goes on after the largest number on any axis, as in vLLM and transformers 4; transformers 5
    leaves the frames out of that. For the rows of a processor, and for models with another rule, take what the model's own
    `get_rope_index` gives: `Positions.from_ids(ids.permute(1, 2, 0), causal=True)`.

    parts: in the order of the sequence, a number of text tokens, the (height, width) of an image or the (height, width, frames) of
    a video, in tokens. num_queries: with a cache, how many of the last tokens are the queries; parts are then all tokens.

    Raises:
        InputError: token ids, parts that are none, or num_queries that does not fit.
    """
    check_flags(causal=causal)
    refuse_in_program(
        "multimodal: the sizes of images give the positions", "pass them as (batch, n, axes): Positions.from_ids(ids)"
    )
    given: Any = parts
    if isinstance(given, Tensor):
        raise InputError(
            f"parts is a tensor of shape {tuple(given.shape)}: pass a list of numbers of text tokens and sizes of images; for token ids "
            "take the model's own get_rope_index, and Positions.from_ids(ids.permute(1, 2, 0), causal=True)"
        )
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        raise InputError("pass a list of numbers of text tokens and sizes of images", parts=parts)
    pieces, start = [], 0
    for part in parts:
        sizes = isinstance(part, tuple | list) and len(part) in (2, 3) and all(size is not None for size in part)
        if sizes:
            height, width = size_of(*part[:2])
            (frames,) = part[2:] or (1,)
            check_sizes(frames=frames)
        count = frames * height * width if sizes else part
        if not is_integer(count) or not 1 <= count <= LARGEST_SIZE:
            raise InputError(
                f"{shown(part)} is neither a number of text tokens, at least 1, nor (height, width) or (height, "
                f"width, frames) of an image, of at most {LARGEST_SIZE} tokens",
                parts=parts,
            )
        at = torch.arange(count, device=device)
        grid = torch.unravel_index(at, (frames, height, width)) if sizes else (at, at, at)
        pieces.append(torch.stack(grid, 1) + start)
        start += max(frames, height, width) if sizes else count
    return Positions.of_tokens(torch.cat(pieces)[None], num_queries, causal, None, None)
