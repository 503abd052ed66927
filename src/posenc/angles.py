"""Cosines and sines of positions in a row, by adding angles: the tables that `posenc.rotation` turns by."""

import torch
from torch import Tensor

from posenc.rotation import blocks

FINE = 256
"""Tokens between the positions whose angles `contiguous_tables` takes exactly."""


def added_angles(first: int | None, count: int, dtype: torch.dtype) -> bool:
    """Whether `contiguous_tables` serves and pays: many positions known to be first, first + 1, .., in float32."""
    return not torch.compiler.is_compiling() and first is not None and count >= 2 * FINE and dtype == torch.float32


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
