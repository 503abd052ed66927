# SPDX-License-Identifier: Apache-2.0
"""Positions of rows with text, images and videos."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby


def cell(n: int, t: int, h: int, w: int) -> tuple[int, int, int]:
    """Frame, row and column of token n of a grid: along the rows, frame by frame."""
    return n // (h * w), n // w % h, n % w


def frame_time(frame: int, begin: int, interval: float) -> int:
    return begin + int(frame * interval)


def m_rope_ids(
    token_types: Sequence[Sequence[int]], image_grids: Sequence[Sequence[int]], video_grids: Sequence[Sequence[int]],
    attention_mask: Sequence[Sequence[int]], merge: int, seconds_per_grid: Sequence[float] = (),
    tokens_per_second: float = 1.0, *, frames: bool = False, cell: Callable[..., tuple[int, int, int]] = cell,
    time: Callable[[int, int, float], int] = frame_time, last: Callable[..., int] = max, spaced: Sequence[int] = (2,),
) -> list[list[list[int]]]:  # fmt: skip
    """Positions of text (0), image (1) and video tokens (2): (3, batch, seq) for time, height and width.

    A text token is at the same number on all axes. An image or video begins there on each axis and has a grid of
    frames, rows and columns, of merge x merge patches; what follows goes on after the largest number on any axis (Wang
    et al. 2024, section 2.1; get_rope_index in transformers). The frames of video n are seconds_per_grid[n] *
    tokens_per_second apart, rounded down (Qwen2.5-VL). frames: text separates the frames of a video, each of which is a
    grid of one frame (Qwen3-VL).

    Faults: cell and time change where a token and a frame are; last is the number after which text goes on; spaced are
    the types of which seconds_per_grid counts the grids.
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
                places = [(time(frame, begin, interval), begin + y, begin + x) for frame, y, x in cells]
                begin = 1 + last(*map(max, zip(*places, strict=True)))
            rest = len(tokens) - len(places)  # tokens without a grid count as text
            places += [(begin + n, begin + n, begin + n) for n in range(rest)]
            begin += rest
            for n, place in zip(tokens, places, strict=True):
                for axis in range(3):
                    ids[axis][row][n] = place[axis]
    return ids
