# SPDX-License-Identifier: Apache-2.0
"""Codes that are added to the input of a model."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from posenc.testing.oracles.rotations import OfTensor, by_layout, unchanged


def sinusoidal(
    positions: Sequence[float] | Tensor, dim: int, base: float, *, layout: str = "interleaved", endpoint: bool = False,
    frequency: OfTensor = unchanged, angle: OfTensor = unchanged,
) -> Tensor:  # fmt: skip
    """sin and cos of position * frequency_c, (seq, dim) (Vaswani et al. 2017, section 3.5).

    layout "interleaved" alternates them (the paper), "concat" has all sines first (Transformer-XL, Marian). With
    endpoint the frequencies are base^(-c/(dim/2 - 1)), so the last one is 1/base (tensor2tensor's get_timing_signal_1d,
    fairseq, Whisper).

    Faults: frequency and angle change the frequencies and the angles.
    """
    pairs = dim // 2
    exponents = [c / (pairs - 1) if endpoint else 2 * c / dim for c in range(pairs)]
    frequencies = frequency(torch.tensor([base**-exponent for exponent in exponents], dtype=torch.float64))
    positions = torch.as_tensor(positions, dtype=torch.float64)
    angles = angle(positions[:, None] * frequencies.to(positions.device))
    return by_layout(layout, angles.sin(), angles.cos())


def sinusoidal_2d(
    height: int, width: int, dim: int, base: float, *, order: str = "sin x cos x sin y cos y", down: bool = False,
    endpoint: bool = False, interleaved: bool = False, scale: Callable[[int, int], float] = lambda n, size: n,
) -> Tensor:  # fmt: skip
    """Codes of a grid, (height * width, dim), row by row: sin and cos of column * frequency_c, then of row * frequency_c, with
    frequency_c = base^(-c / (dim/4)), a quarter of the channels each (get_2d_sincos_pos_embed in
    facebookresearch/mae, util/pos_embed.py).

    Faults: order is that of the quarters; down numbers the tokens down the columns; endpoint: exponents c / (dim/4 - 1);
    interleaved alternates sines and cosines within an axis's half; scale changes the n-th place of an axis of that size.
    """
    pairs = dim // 4
    frequencies = [base ** (-c / (pairs - 1 if endpoint else pairs)) for c in range(pairs)]
    cells = (
        [(y, x) for x in range(width) for y in range(height)]
        if down
        else [divmod(n, width) for n in range(height * width)]
    )
    rows = []
    for y, x in cells:
        at = {"x": scale(x, width), "y": scale(y, height)}
        words = order.split()
        parts = [
            [getattr(math, f)(at[axis] * w) for w in frequencies]
            for f, axis in zip(words[::2], words[1::2], strict=True)
        ]
        if interleaved:
            parts = [[v for pair in zip(*parts[n : n + 2], strict=True) for v in pair] for n in (0, 2)]
        rows.append([value for part in parts for value in part])
    return torch.tensor(rows, dtype=torch.float64)


Table = Sequence[Sequence[float]]


def hierarchical(table: Table, position: int, alpha: float) -> list[float]:
    """Su 2020, kexue.fm/archives/7947, with positions from 0: q = alpha u_i + (1 - alpha) u_j at i n + j."""
    i, j = divmod(position, len(table))
    u = [[(p - alpha * first) / (1 - alpha) for p, first in zip(row, table[0], strict=True)] for row in table]
    return [alpha * coarse + (1 - alpha) * fine for coarse, fine in zip(u[i], u[j], strict=True)]


def axial(first: Table, second: Table, position: int) -> list[float]:
    """Kitaev et al. 2020: a row of either table, side by side."""
    return [*first[position // len(second)], *second[position % len(second)]]


def slope(
    t: float, p: Sequence[float], weight1: Table, bias1: Sequence[float], weight2: Table, bias2: Sequence[float]
) -> list[float]:
    """FLOATER's h in the authors' modules/flow_funcs.py: Linear, ReLU, Linear, time appended before each."""
    hidden = [max(0.0, _dot(row, [*p, t]) + b) for row, b in zip(weight1, bias1, strict=True)]
    return [_dot(row, [*hidden, t]) + b for row, b in zip(weight2, bias2, strict=True)]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
