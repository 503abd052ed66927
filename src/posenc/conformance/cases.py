# SPDX-License-Identifier: Apache-2.0
"""The arguments of the golden vectors: for each kind, cases in which wrong implementations differ from right ones."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import torch


@cache
def content(batch: int, heads: int, rows: int, dim: int) -> list[list[list[list[float]]]]:
    """Numbers without a pattern in [-2, 2], multiples of 1/8 and so exact in every dtype: (batch, heads, rows, dim)."""
    numbers = torch.tensor([(37 * n * n + 11 * n + n // 33) % 33 / 8 - 2 for n in range(batch * heads * rows * dim)])
    return numbers.view(batch, heads, rows, dim).tolist()


def _inexact(x: Any) -> Any:
    """Numbers that float32 represents and half precision rounds: channels that are not rotated must come back unchanged."""
    return [_inexact(value) for value in x] if isinstance(x, list) else x + 2**-12


NEAR, FAR = [0, 1, 2, 17, 255, 257], [3, 511, 2048, 4097, 32768, 131071]
"""Positions that anyone tries first, and those past the usual training lengths."""
PACKED = [4, 5, 0, 1, 2, 0, 1]
"""Positions of documents that share a row: they repeat and go back."""
JUMPY = [0, 3, 70000, 3, 77, 257]
"""As many positions as NEAR has, with the same first and last one."""
NEXT = [1000]
"""A single token, as in generation."""


def _rotary_cases(*shapes: tuple[Any, ...], more: str = "") -> list[dict[str, Any]]:
    cases = []
    for (batch, heads), dim, base, positions, *value in shapes:
        rows = len(positions[0]) if isinstance(positions[0], list) else len(positions)
        x = content(batch, heads, rows, dim)
        x = _inexact(x) if more in ("rotary_dim", "fraction", "cosines") else x
        case = {"x": x, "positions": positions, "base": base}
        cases.append({**case, more: value[0]} if more else case)
    return cases


def _fope_cases(*shapes: tuple[Any, ...]) -> list[dict[str, Any]]:
    cases = _rotary_cases(*(shape[:4] for shape in shapes))
    for case, ((_, heads), _, _, _, frequencies, pairs) in zip(cases, shapes, strict=True):
        cosines, sines = (
            [[[((7 * h + 5 * m + 3 * c + k) % 11) / 8 - 0.5 for c in range(pairs)] for m in range(frequencies)] for h in range(heads)]
            for k in (0, 4)
        )  # fmt: skip
        case |= {"x": _inexact(case["x"]), "cosines": cosines, "sines": sines}
    return cases


def _prompt(*parts: Any, merge: int = 2, frames: bool = False) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """The tokens of a prompt: numbers of text tokens, ("image", t, h, w) and ("video", t, h, w) in merged patches."""
    types: list[int] = []
    grids: dict[str, list[list[int]]] = {"image": [], "video": []}
    for part in parts:
        if isinstance(part, int):
            types += [0] * part
            continue
        kind, t, h, w = part
        grids[kind].append([t, merge * h, merge * w])
        if kind == "video" and frames:  # <timestamp> <begin> frame <end>
            types += ([0, 0, 0] + [2] * h * w + [0]) * t
        else:
            types += [1 if kind == "image" else 2] * (t * h * w)
    return types, grids["image"], grids["video"]


def _ids_cases(frames: bool) -> list[dict[str, Any]]:
    """Batches of prompts padded on the left (False) or on the right (True)."""
    image, oblong, video, longer = ("image", 1, 2, 2), ("image", 1, 2, 5), ("video", 2, 3, 2), ("video", 9, 2, 3)
    prompts: list[tuple[list[tuple[Any, ...]], int, bool]] = [
        ([(3, image, 4)], 2, False),
        ([(2, oblong, 3, image, 2)], 2, False),
        ([(5, video, 3)], 1, False),
        ([(4, longer, 6)], 2, False),
        ([(3, video, 2, oblong, 3, longer, 2)], 2, False),
        ([(7,), (2, oblong, 3)], 2, False),
        ([(2, image, 2), (1, video, 4, image, 2)], 3, True),
    ]
    cases = []
    for batch, merge, right in prompts:
        rows = [_prompt(*parts, merge=merge, frames=frames) for parts in batch]
        length = max(len(types) for types, _, _ in rows)
        fill = [length - len(types) for types, _, _ in rows]
        cases.append({
            "token_types": [[0] * (n * (not right)) + row[0] + [0] * (n * right) for n, row in zip(fill, rows, strict=True)],
            "image_grids": [grid for row in rows for grid in row[1]],
            "video_grids": [grid for row in rows for grid in row[2]],
            "attention_mask": [
                [0] * (n * (not right)) + [1] * len(row[0]) + [0] * (n * right) for n, row in zip(fill, rows, strict=True)
            ],
            "merge": merge,
        })  # fmt: skip
    if not frames:
        timed = [(2, [0.5, 1.0]), (4, [1.5, 2.0]), (25, [1.0, 3.0])]
        cases += [{**cases[4], "tokens_per_second": rate, "seconds_per_grid": seconds} for rate, seconds in timed]
    return cases


def _grid(names: Sequence[str], *values: Iterable[Any]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in product(*values)]


ROTARY = _rotary_cases(
    ((2, 3), 8, 1e4, NEAR), ((2, 3), 8, 1e4, FAR), ((1, 2), 8, 5e5, FAR), ((2, 3), 8, 1e4, JUMPY), ((2, 3), 8, 1e4, PACKED),
    ((2, 3), 8, 1e4, NEXT), ((1, 4), 20, 1e4, NEAR), ((1, 1), 48, 1e4, PACKED), ((2, 2), 64, 1e4, FAR[:3]),
    ((2, 3), 64, 1e4, NEXT), ((1, 1), 80, 1e4, JUMPY), ((1, 1), 96, 1e6, FAR[:3]), ((1, 1), 128, 1e6, FAR[3:]),
    ((1, 2), 256, 1e4, FAR[1:3]),
)  # fmt: skip
PARTIAL = _rotary_cases(
    ((2, 3), 16, 1e4, NEAR, 4), ((1, 2), 16, 1e4, FAR, 8), ((1, 2), 16, 5e5, FAR, 8), ((2, 3), 16, 1e4, PACKED, 12),
    ((2, 2), 16, 1e4, NEXT, 16), ((1, 2), 80, 1e4, FAR[:3], 32), ((1, 1), 96, 1e4, JUMPY, 24), ((1, 1), 128, 1e6, NEXT, 64),
    more="rotary_dim",
)  # fmt: skip
PROPORTIONAL = _rotary_cases(
    ((2, 3), 16, 1e4, NEAR, 0.25), ((1, 2), 16, 1e6, FAR, 0.5), ((1, 2), 8, 1e4, PACKED, 0.75), ((2, 2), 16, 1e4, NEXT, 1.0),
    ((1, 1), 64, 1e6, FAR[:3], 0.25), ((1, 1), 128, 1e6, NEXT, 0.25),
    more="fraction",
)  # fmt: skip
PICTURE = [[0, 1, 2, 2, 2, 2, 5, 6], [0, 1, 2, 2, 3, 3, 5, 6], [0, 1, 2, 3, 2, 3, 5, 6]]
"""Two words, four patches, two words, at time, height and width."""
FILM = [[40, 40, 90, 90, 40000], [40, 41, 40, 41, 40000], [40, 47, 40, 49, 40000]]
AXES = _rotary_cases(
    ((2, 3), 16, 1e4, PICTURE, [3, 3, 2]), ((1, 2), 16, 1e6, FILM, [4, 2, 2]), ((1, 1), 32, 1e6, FILM, [6, 5, 5]),
    ((2, 1), 24, 1e4, [[1000], [900], [950]], [4, 4, 4]), ((1, 1), 128, 1e6, [row[3:] for row in FILM], [24, 20, 20]),
    more="sections",
)  # fmt: skip
RAGGED = [
    {"x": content(len(offsets), heads, rows, dim), "offsets": offsets, "base": base}
    for heads, rows, dim, base, offsets in [
        (2, 1, 8, 1e4, [7, 7, 7]), (2, 1, 8, 1e4, [0, 300, 5, 40000]), (2, 4, 8, 1e4, [-2, 0]),
        (1, 5, 16, 1e4, [1000, -3, 2]), (1, 3, 16, 1e6, [20, 20]), (2, 6, 8, 1e4, [-5, -1, 0, 3]),
        (1, 2, 64, 5e5, [511, 4096]), (1, 1, 128, 1e6, [17, 0]),
    ]
]  # fmt: skip
PACKS = [
    {"x": content(1, heads, ends[-1], dim), "cu_seqlens": ends, "base": base}
    for heads, dim, base, ends in [
        (2, 8, 1e4, [0, 4, 8]), (2, 8, 1e4, [0, 1, 7, 10]), (1, 16, 1e6, [0, 9]), (1, 64, 1e4, [0, 2, 3, 6]),
        (1, 8, 5e5, [0, 5, 6]),
    ]
]  # fmt: skip
ELSEWHERE = {"starts": [3, 1000]}
"""Documents that go on from an earlier row."""
SHARDS: list[dict[str, Any]] = [
    {**PACKS[0], **ELSEWHERE},
    *(
        {"x": content(1, 2, 8, 8), "cu_seqlens": [0, 4, 16], "base": 1e4, **more, "ranks": 2, "rank": rank}
        for rank in (0, 1)
        for more in ({}, ELSEWHERE)
    ),
]
FOURIER = _fope_cases(
    ((2, 3), 16, 1e4, NEAR, 6, 6), ((1, 2), 16, 1e4, FAR, 4, 4), ((1, 2), 16, 5e5, PACKED, 5, 3), ((1, 1), 32, 1e4, NEXT, 9, 8),
    ((1, 2), 8, 1e4, NEAR, 4, 4), ((1, 1), 64, 1e6, NEXT, 20, 20),
)  # fmt: skip
AXIAL = _rotary_cases(
    ((2, 3), 16, 1e4, PICTURE, [4, 6, 6]), ((1, 2), 16, 256.0, FILM, [4, 6, 6]), ((1, 1), 44, 1e4, PICTURE[1:], [24, 20]),
    ((2, 1), 24, 1e4, [[1000], [900], [950]], [8, 8, 8]), ((1, 1), 128, 1e4, [row[2:] for row in FILM], [16, 56, 56]),
    more="widths",
)  # fmt: skip
SIZES = [(1, 1), (2, 2), (2, 3), (4, 2), (1, 5)]
"""Height and width of grids."""
WINDOWS = [{"height": h, "width": w} for h, w in [*SIZES, (7, 7), (3, 5)]]


def _scores_cases(columns: Callable[[int, int], int]) -> list[dict[str, Any]]:
    shapes = [(2, 2, 5, 5), (1, 1, 1, 1), (1, 3, 4, 4), (2, 1, 2, 7), (1, 2, 3, 5), (1, 1, 1, 6)]
    return [{"scores": content(b, h, queries, columns(queries, keys))} for b, h, queries, keys in shapes]


def _relative_cases(*shapes: tuple[int, int, int, int, int]) -> list[dict[str, Any]]:
    """Heads, queries, keys, head_dim and the farthest distance of the table."""
    return [
        {"q": content(2, heads, queries, dim), "table": content(1, 1, 2 * far + 1, dim)[0][0], "num_keys": keys}
        for heads, queries, keys, dim, far in shapes
    ]


MASKS = [(1, 1), (5, 5), (8, 8), (1, 7), (3, 10)]
"""Queries and keys of masks."""
SINUSOIDAL: list[dict[str, Any]] = [
    *_grid(("positions", "dim", "base"), (NEAR, FAR), (4, 64), (10000.0, 500.0)),
    *_grid(("positions", "dim", "base"), (NEAR,), (30, 128), (10000.0,)),
    *_grid(("positions", "dim", "base"), (PACKED, NEXT, JUMPY), (4,), (10000.0,)),
    *_grid(("positions", "dim", "base"), (FAR[:2],), (512, 768), (10000.0,)),
    {"positions": FAR[:3], "dim": 128, "base": 500.0},
]
SHAPES = [(64, 1e4), (128, 1e4), (128, 5e5), (96, 1e6), (24, 1e4), (256, 1e4)]
"""head_dim and base of the schedules' cases."""
SCALES = [
    (2.0, 4096), (4.0, 2048), (8.0, 8192), (16.0, 4096), (4.0, 131072), (32.0, 512), (1.5, 5000), (3.0, 3000), (5.0, 128),
]  # fmt: skip
"""factor and original_max_positions of the schedules' cases."""
SCALED: list[dict[str, Any]] = [
    {"head_dim": dim, "base": base, "factor": factor, "original_max_positions": length}
    for (dim, base), (factor, length) in product(SHAPES, SCALES)
]
SOME: list[dict[str, Any]] = SCALED[: len(SCALES)] + SCALED[len(SCALES) + 1 :: 5]
"""All scales of the first shape, and every shape once more."""
DISTANCES = [
    *range(-48, 49),
    *(sign * d for sign in (-1, 1) for d in (59, 63, 64, 90, 91, 112, 113, 127, 128, 129, 150, 181, 182, 215, 255, 256, 257, 300, 500, 5000)),
]  # fmt: skip
TURNS = {"beta_fast": 16.0, "beta_slow": 2.0}
PLAIN = _grid(("head_dim", "base", "factor"), (20, 30, 64, 128, 256), (1e4, 5e5), (1.0, 1.5, 3.0, 4.0, 8.0))


def _longrope_cases() -> Iterator[dict[str, Any]]:
    for (dim, base), (factor, original) in zip(SHAPES[1:5], SCALES, strict=False):
        for length in (100, original, original + 1, int(factor * original)):
            yield {
                "head_dim": dim, "base": base, "factor": factor, "original_max_positions": original, "length": length,
                "short_factor": [1 + c / dim for c in range(dim // 2)],
                "long_factor": [1 + (factor - 1) * 2 * c / dim for c in range(dim // 2)],
            }  # fmt: skip


CASES: dict[str, list[dict[str, Any]]] = {
    "rotary": ROTARY,
    "rotary_interleaved": ROTARY,
    "rotary_partial": PARTIAL,
    "rotary_trailing": PARTIAL[:5] + PARTIAL[7:],
    "rotary_proportional": PROPORTIONAL,
    "rotary_ragged": RAGGED,
    "rotary_packed": [*PACKS, *SHARDS],
    "m_rope": AXES,
    "m_rope_interleaved": AXES,
    "m_rope_ids": _ids_cases(frames=False),
    "m_rope_ids_frames": _ids_cases(frames=True),
    "fope": FOURIER,
    "rotary_axial": AXIAL,
    "rotary_axial_half": AXIAL,
    "softmax_scale": _grid(
        ("head_dim", "factor", "mscale", "mscale_all_dim"), (64, 192), (0.5, 1.0, 4.0, 40.0), (1.0, 0.707), (0.0, 0.707, 1.0),
    ),
    "sinusoidal": SINUSOIDAL,
    "sinusoidal_concat": SINUSOIDAL,
    "sinusoidal_endpoint": SINUSOIDAL,
    "sinusoidal_2d": [
        {"height": h, "width": w, "dim": dim, "base": base}
        for (h, w), dim, base in [*product(SIZES, (8, 16), (1e4,)), ((3, 2), 64, 1e4), ((3, 4), 24, 100.0)]
    ],
    "relative": _relative_cases(
        (2, 5, 5, 4, 4), (1, 4, 4, 6, 2), (3, 6, 6, 4, 8), (2, 1, 6, 4, 5), (2, 3, 7, 4, 6), (1, 3, 7, 8, 2),
        (1, 1, 1, 4, 0), (2, 2, 9, 4, 3),
    ),
    "relative_shift": _scores_cases(lambda queries, keys: queries + keys - 1),
    "relative_shift_causal": _scores_cases(lambda queries, keys: keys),
    "relative_index": WINDOWS,
    "relative_index_class": WINDOWS,
    "alibi_bias": [
        {"num_heads": heads, "num_queries": q, "num_keys": k}
        for heads, (q, k) in [*product((4, 6), MASKS), (1, (5, 5)), (12, (3, 7)), (2, (2, 40))]
    ],
    "t5_bias": [
        {"table": content(1, 1, buckets, heads)[0][0], "num_queries": q, "num_keys": k, "bidirectional": both, "max_distance": far}
        for (q, k), both, (heads, buckets, far) in [
            *product(((4, 4), (3, 7), (1, 9)), (True, False), ((2, 8, 16),)), ((2, 150), True, (1, 32, 128)),
            ((2, 150), False, (3, 32, 64)), ((20, 20), True, (2, 8, 12)),
        ]
    ],
    "swin_bias": [
        {"table": content(1, 1, (2 * h - 1) * (2 * w - 1), heads)[0][0], "height": h, "width": w}
        for (h, w), heads in product(SIZES, (1, 3))
    ],
    "forget_gates": [
        {"log_gates": [[[-abs(g) / 4 - 1 / 16 for g in row] for row in rows[0]] for rows in content(batch, 1, heads, seq)]}
        for batch, heads, seq in [(1, 1, 1), (1, 2, 4), (2, 3, 9), (1, 1, 16)]
    ],
    "mask_document": [
        {"document_ids": ids} for ids in ([0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 2, 2, 3], [5, 5, 7, 7, 7], [1, 1, 1, 1])
    ],
    "mask_window": [{"num_queries": q, "num_keys": k, "window": w} for (q, k), w in product(MASKS, (1, 3, 4, 20))],
    "mask_chunk": [{"num_queries": q, "num_keys": k, "chunk": c} for (q, k), c in product(MASKS, (1, 3, 4, 20))],
    "mask_streaming": [
        {"size": n, "chunk": c, "left_chunks": left} for n, c, left in product((1, 5, 9, 12), (1, 2, 4), (0, 1, 2))
    ],
    "default": _grid(("head_dim", "base"), (2, 20, 64, 80, 128, 256), (1e4, 5e5)),
    "linear": PLAIN,
    "ntk": PLAIN,
    "ntk_mixed": [
        *_grid(("head_dim", "base", "factor"), (20, 64, 128), (1e4, 5e5), (1.0, 1.5, 4.0, 8.0)),
        *_grid(("head_dim", "base", "factor", "exponent"), (20, 64), (1e4,), (4.0, 12.0), (0.0, 0.75, 1.0)),
    ],
    "dynamic": _grid(
        ("head_dim", "base", "factor", "original_max_positions", "length"),
        (20, 64), (1e4, 5e5), (1.0, 2.0, 4.0), (2048, 2200), (1900, 2048, 2201, 10000),
    ),
    "longrope": list(_longrope_cases()),
    "yarn": [
        *SCALED, *({**case, **TURNS} for case in SOME), *({**case, "truncate": False} for case in SOME),
        *({**case, **TURNS, "truncate": False} for case in SOME[::3]),
    ],
    "yarn_revised": [
        *SOME, *({**case, **TURNS} for case in SOME[::3]), *({**case, "truncate": False} for case in SOME[::3]),
    ],
    "yarn_paper": [*SCALED, *({**case, **TURNS} for case in SOME)],
    "llama3": [*SCALED, *({**case, "low_freq_factor": 2.0, "high_freq_factor": 8.0} for case in SOME)],
    "proportional": _grid(("head_dim", "base", "fraction"), (16, 20, 128), (1e4, 1e6), (0.25, 0.5, 0.75, 1.0)),
    "alibi": _grid(("num_heads",), (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 25, 32, 40, 48, 64, 71, 96, 112, 128)),
    "t5": [
        {"relative_position": DISTANCES, "bidirectional": two, "num_buckets": buckets, "max_distance": far}
        for (buckets, far), two in product([(32, 128), (64, 256), (8, 20), (10, 50)], (True, False))
    ],
    "deberta": [
        {"relative_position": [r for r in DISTANCES if abs(r) < far], "buckets": buckets, "max_position": far}
        for buckets, far in [(256, 512), (32, 128), (8, 32), (10, 100)]
    ],
    "xpos": _grid(("positions", "head_dim", "scale_base"), ([-2000, -3, 0, 1, 511, 4096],), (8, 64, 128), (512, 100)),
}  # fmt: skip
