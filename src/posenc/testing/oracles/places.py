# SPDX-License-Identifier: Apache-2.0
"""Positions of rows with text, images and videos."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby


def cell(n: int, t: int, h: int, w: int) -> tuple[int, int, int]:
    """Frame, row and column of token n of a grid: along the rows, frame by frame."""
    return n // (h * w), n // w % h, n % w


def m_rope_ids(
    token_types: Sequence[Sequence[int]], image_grids: Sequence[Sequence[int]], video_grids: Sequence[Sequence[int]],
    attention_mask: Sequence[Sequence[int]], merge: int, seconds_per_grid: Sequence[float] = (),
    tokens_per_second: float = 1.0, *, frames: bool = False, cell: Callable[..., tuple[int, int, int]] = cell,
    last: Callable[..., int] = max, spaced: Sequence[int] = (2,),
) -> list[list[list[int]]]:  # fmt: skip
    """Positions of text (0), image (1) and video tokens (2): (3, batch, seq) for time, height and width.

    A text token is at the same number on all axes. An image or video begins there on each axis and has a grid of
    frames, rows and columns, of merge x merge patches; what follows goes on after the largest number on any axis (Wang
    et al. 2024, section 2.1; get_rope_index in transformers). The frames of video n are seconds_per_grid[n] *
    tokens_per_second apart, rounded down (Qwen2.5-VL). frames: text separates the frames of a video, each of which is a
    grid of one frame (Qwen3-VL).

    Faults: cell changes where a token is; last is the number after which text goes on. spaced: the types of which
    seconds_per_grid counts the grids.
    """
    videos = [grid for t, h, w in video_grids for grid in ([(1, h, w)] * t if frames else [(t, h, w)])]
    grids, seconds = {1: iter(image_grids), 2: iter(videos)}, iter(seconds_per_grid)
    ids = [[[0] * len(row) for row in token_types] for _ in range(3)]
    for row, (types, mask) in enumerate(zip(token_types, attention_mask, strict=True)):
        begin = 0
        for kind, run in groupby((n for n, seen in enumerate(mask) if seen), key=types.__getitem__):
            tokens, places = list(run), []
            if kind:
                t, h, w = next(grids[kind])
                grid = t, h // merge, w // merge
                interval = next(seconds, 1.0) * tokens_per_second if kind in spaced else 1.0
                cells = [cell(n, *grid) for n in range(math.prod(grid))]
                places = [(begin + int(frame * interval), begin + y, begin + x) for frame, y, x in cells]
                begin = 1 + last(*map(max, zip(*places, strict=True)))
            rest = len(tokens) - len(places)  # tokens without a grid count as text
            places += [(begin + n, begin + n, begin + n) for n in range(rest)]
            begin += rest
            for n, place in zip(tokens, places, strict=True):
                for axis in range(3):
                    ids[axis][row][n] = place[axis]
    return ids


# -------------------------------------------------------------------- rows of parts

Row = Sequence[int | tuple[int, int, int]]
"""Its parts: a number of text tokens, or (frames, height, width) of an image or a video in tokens."""


def qwen2_vl(row: Row, steps: Sequence[float] = ()) -> list[tuple[int, ...]]:
    """`m_rope_ids` of a row: (time, height, width) of each token. steps: positions per frame of each image or video (Qwen2.5-VL); of
    Qwen3-VL, each frame is a part."""
    types: list[int] = []
    grids: dict[int, list[Sequence[int]]] = {1: [], 2: []}
    for part in row:
        if isinstance(part, int):
            types += [0] * part
        else:  # what follows an image or a video at once is of the other kind, so that it is no part of it
            kind = 2 if types and types[-1] == 1 else 1
            types += [kind] * math.prod(part)
            grids[kind].append(part)
    ids = m_rope_ids([types], grids[1], grids[2], [[1] * len(types)], 1, steps, spaced=(1, 2))
    return list(zip(*(axis[0] for axis in ids), strict=True))
