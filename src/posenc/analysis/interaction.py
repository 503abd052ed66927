# SPDX-License-Identifier: Apache-2.0
"""The interaction p_m^T H p_n of two codes by their distance, under one H for all pairs."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from posenc.checks import checked
from posenc.errors import InputError

ROUNDING = 1e-20
"""Of squares, relative to their sum: variance below this is none."""


@dataclass(frozen=True, eq=False)
class Decay:
    """p_m^T H p_n, m <= n, by distance n - m, under an H, its diagonal, and the identity times its mean diagonal entry.

    full, diagonal, identity: (distances,) from distance 0, means over m. relative: of each, by name, the share of the
    variance of p_m^T H p_n that the distance explains: 1 where it is a function of n - m alone.
    """

    full: Tensor
    diagonal: Tensor
    identity: Tensor
    relative: dict[str, float]


def decay(codes: Tensor, matrix: Tensor) -> Decay:
    """The codes of positions 0, 1, .., (n, dim), under H, (dim, dim).

    Raises:
        InputError: a matrix that is not (dim, dim).
    """
    dim = codes.shape[1]
    if matrix.shape != (dim, dim):
        raise InputError(f"matrix of shape {tuple(matrix.shape)}: the codes need ({dim}, {dim})")
    of = {
        "full": codes @ matrix @ codes.T,
        "diagonal": codes * matrix.diagonal() @ codes.T,
        "identity": matrix.diagonal().mean() * codes @ codes.T,
    }
    curves = {name: by_distance(products) for name, products in of.items()}
    relative = {name: _explained(products, curves[name]) for name, products in of.items()}
    return Decay(**curves, relative=relative)


def by_distance(table: Tensor) -> Tensor:
    """The mean over m of entries (m, m + distance) of an (n, n) table: (n,)."""
    return torch.stack([table.diagonal(distance).mean() for distance in range(len(table))])


def _explained(table: Tensor, curve: Tensor) -> float:
    rest = sum(float((table.diagonal(d) - mean).square().sum()) for d, mean in enumerate(curve))
    seen = table[*torch.triu_indices(*table.shape)]
    whole = float((seen - seen.mean()).square().sum())
    return 1 - rest / whole if whole > ROUNDING * float(seen.square().sum()) else 1.0


@checked
def diagonal_parts(
    diagonal: Tensor,
    frequencies: Tensor,
    m: Tensor,
    n: Tensor,
    layout: Literal["interleaved", "concat"] = "interleaved",
) -> tuple[Tensor, Tensor]:
    """What a diagonal H makes of sinusoidal codes, exactly: a part of m - n and a part of m + n, whose sum is p_m^T H p_n.

    sum_c 1/2 (C_c + S_c) cos((m - n) theta_c) and sum_c 1/2 (C_c - S_c) cos((m + n) theta_c), S and C the entries of H
    at sines and at cosines: the second is the absolute position's, and it is gone where each pair's entries are equal.

    Args:
        diagonal: (dim,) of H. frequencies: (dim / 2,) theta. m, n: positions, of any shapes that broadcast.
        layout: of sines and cosines, as `Sinusoidal` has it.
    """
    pairs = diagonal.unflatten(-1, (-1, 2)).T if layout == "interleaved" else diagonal.unflatten(-1, (2, -1))
    sines, cosines = pairs
    m, n = m[..., None].to(frequencies), n[..., None].to(frequencies)
    relative = 0.5 * (cosines + sines) * ((m - n) * frequencies).cos()
    absolute = 0.5 * (cosines - sines) * ((m + n) * frequencies).cos()
    return relative.sum(-1), absolute.sum(-1)
