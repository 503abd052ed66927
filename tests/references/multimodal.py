# SPDX-License-Identifier: Apache-2.0
"""Positions of rows with images and videos, token by token: as the papers and the authors' programs have them.

A row is a list of parts: a number of text tokens, or (frames, height, width) in tokens.
"""

import math
from collections.abc import Sequence
from typing import Any

Part = int | tuple[int, int, int]


def tokens_of(part: tuple[int, int, int]):
    """(frame, row, column) of each token, in order."""
    frames, height, width = part
    return ((t, y, x) for t in range(frames) for y in range(height) for x in range(width))


def qwen2_vl(row: Sequence[Part], steps: Sequence[float] = (), count_frames: bool = True) -> list[tuple[float, ...]]:
    """Qwen2-VL, section 2.1, and Qwen2.5-VL where `steps` are positions per frame of each image or video; Qwen3-VL where
    each frame is a part."""
    places: list[tuple[float, ...]] = []
    start, steps = 0, list(steps)
    for part in row:
        if isinstance(part, int):
            places += [(start + n,) * 3 for n in range(part)]
            start += part
            continue
        step = steps.pop(0) if steps else 1
        image = [(start + math.floor(t * step), start + y, start + x) for t, y, x in tokens_of(part)]
        places += image
        start = max(max(place if count_frames else place[1:]) for place in image) + 1
    return places


def videorope(row: Sequence[Part], spacing: float = 2.0) -> list[tuple[float, ...]]:
    """Wiselnn570/VideoRoPE 7712ca3, videorope-transformer/modeling_videorope.py:1507: rows and columns are counted from
    the middle one, rounded down, and from the frame's time; after it, text goes on after the last frame's time."""
    places: list[tuple[float, ...]] = []
    for part in row:
        start = places[-1][0] + 1 if places else 0
        if isinstance(part, int):
            places += [(start + n,) * 3 for n in range(part)]
            continue
        _, height, width = part
        for t, y, x in tokens_of(part):
            time = start + spacing * t
            places.append((time, time + y - (height - 1) // 2, time + x - (width - 1) // 2))
    return places


def v2pe(row: Sequence[Part], delta: float) -> list[tuple[float, ...]]:
    """OpenGVLab/V2PE f96f189, internvl/model/internvl_chat/modeling_internvl_chat.py:637: a visual token is delta after
    the token before it; after an image, the position is rounded up; a text token is 1 after the token before it."""
    places: list[tuple[float, ...]] = []
    last = -1.0
    for part in row:
        for _ in range(part if isinstance(part, int) else math.prod(part)):
            last += 1 if isinstance(part, int) else delta
            places.append((last,))
        last = math.ceil(last)
    return places


def circle_rope(row: Sequence[Part], radius: Any = 10.0, alpha: float = 0.5) -> list[tuple[float, ...]]:
    """lose4578/CircleRoPE 063fb2c, code/circle_rope.py, with move_to_origin: the plane is spanned by u and v = n x u, where
    n = (1, 1, 1) / sqrt(3) in (x, y, t)."""
    places: list[tuple[float, ...]] = []
    start = 0.0
    for part in row:
        if isinstance(part, int):
            places += [(start + n,) * 3 for n in range(part)]
            start += part
            continue
        _, height, width = part
        centred = [(x - (width - 1) / 2, y - (height - 1) / 2) for _, y, x in tokens_of(part)]
        directions = [math.atan2(y, x) for x, y in centred]
        least, most = min(directions), max(directions)
        r = max(max(place) for place in centred) if radius is None else radius
        u = [-1 / math.sqrt(2), 1 / math.sqrt(2), 0]
        v = [-1 / math.sqrt(6), -1 / math.sqrt(6), 2 / math.sqrt(6)]
        image = []
        for index, direction in enumerate(directions):
            spread = (direction - least) / (most - least) * 2 * math.pi if most > least else direction
            angle = alpha * spread + (1 - alpha) * index / (height * width) * 2 * math.pi
            x, y, t = (start + r * math.cos(angle) * u[a] + r * math.sin(angle) * v[a] for a in range(3))
            image.append((t, y, x))
        places += image
        start = max(max(place) for place in image) + 1
    return places


def low_frequency_time(sections: tuple[int, int, int]) -> str:
    """The axis that each pair of channels reads under VideoRoPE, the fastest first (modeling_videorope.py:258)."""
    times, *sides = sections
    return "".join("hw"[pair % 2] for pair in range(sum(sides))) + "t" * times
