# SPDX-License-Identifier: Apache-2.0
"""How far a token like the query is preferred to a random one: the sum of all cosines, and where it turns negative."""

import torch
from torch import Tensor


def first_negative(inv_freq: Tensor, limit: int = 1 << 20, block: int = 1 << 13) -> int | None:
    """The first distance m at which sum_c cos(m theta_c) < 0, the longest context that the frequencies serve in that
    sense. None where there is none below `limit`.

    Source: Men et al. 2024, "Base of RoPE Bounds Context Length" (2405.14591), theorem 1; kexue.fm/archives/10122.
    """
    theta = inv_freq.double().cpu()
    for start in range(0, limit, block):
        distances = torch.arange(start, min(start + block, limit), dtype=torch.float64)
        below = (distances[:, None] * theta).cos().sum(-1) < 0
        if below.any():
            return start + int(below.int().argmax())
    return None
