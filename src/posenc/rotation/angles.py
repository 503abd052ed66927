# SPDX-License-Identifier: Apache-2.0
"""Angles of positions, and their cosines and sines: the tables that `posenc.rotation` turns by."""

import torch
from torch import Tensor

from posenc.rotation import blocks

FINE = 256
"""Tokens between the positions whose angles `contiguous_tables` takes exactly."""


def angles_at(ids: Tensor, inv_freq: Tensor) -> Tensor:
    """(batch or 1, n) positions times (pairs,) frequencies -> (batch or 1, 1, n, pairs), as exact as the frequencies."""
    return ids.to(inv_freq)[:, None, :, None] * inv_freq


def cos_sin(
    ids: Tensor, inv_freq: Tensor, dtype: torch.dtype, first: int | None = None, amplitude: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """cos and sin of `angles_at`, times amplitude, in dtype: two (batch or 1, 1, n, pairs) tables on the device of ids.

    first: the positions are known to be first, first + 1, ..; where they are many, and amplitude is a number, angles
    are added rather than computed, see `contiguous_tables`. None: they may be any.
    """
    if first is not None and not isinstance(amplitude, Tensor) and not torch.compiler.is_compiling():
        count = ids.shape[1]
        if count >= 2 * FINE and dtype == torch.float32:
            cos, sin = contiguous_tables(first, count, inv_freq, amplitude)
            return cos.to(ids.device)[None, None], sin.to(ids.device)[None, None]
    angles = angles_at(ids, inv_freq)
    return (angles.cos() * amplitude).to(ids.device, dtype), (angles.sin() * amplitude).to(ids.device, dtype)


def contiguous_tables(first: int, count: int, inv_freq: Tensor, amplitude: float = 1.0) -> tuple[Tensor, Tensor]:
    """cos and sin of (first + t) * inv_freq, t = 0 .. count - 1, times amplitude: two (count, pairs) float32 tables.

    inv_freq: (pairs,) float64. Angles are taken in float64 at every 256th position and for the 256 steps from there,
    and added: cos(a + b) = cos a cos b - sin a sin b. Off by at most 2e-7 however far out, and a tenth of the time of
    a cosine for each entry.
    """
    coarse = first + torch.arange(0, count, FINE, dtype=torch.float64, device=inv_freq.device)
    fine = torch.arange(FINE, dtype=torch.float64, device=inv_freq.device)
    (far_cos, far_sin), (near_cos, near_sin) = (
        ((angles.cos() * factor).float(), (angles.sin() * factor).float())
        for angles, factor in ((coarse[:, None, None] * inv_freq, amplitude), (fine[:, None] * inv_freq, 1.0))
    )
    cos, sin = (near_cos.new_empty(len(coarse), FINE, len(inv_freq)) for _ in range(2))
    for rows in blocks(cos.flatten(-2), torch.float32):
        torch.mul(far_cos[rows], near_cos, out=cos[rows]).addcmul_(far_sin[rows], near_sin, value=-1)
        torch.mul(far_sin[rows], near_cos, out=sin[rows]).addcmul_(far_cos[rows], near_sin)
    return cos.flatten(0, 1)[:count], sin.flatten(0, 1)[:count]
