# SPDX-License-Identifier: Apache-2.0
"""What a layer's input adds to scores, or turns."""

from typing import Any

import torch
from torch import Tensor

from posenc.testing.oracles.rotations import OfTensor, unchanged


def forget_gates(log_gates: Any, *, begin: int = 1, end: int = 0, gates: OfTensor = unchanged) -> Tensor:
    """FoX's bias of log forget gates (batch, heads, seq), (batch, heads, seq, seq): of query i and key j <= i, the sum of those
    of tokens j + 1 .. i; any above the diagonal (Lin et al. 2025, Forgetting Transformer, eq. 5 and 6).

    Faults: the sum is over j + begin .. i + end; gates are changed before they are summed.
    """
    gates_ = gates(torch.as_tensor(log_gates, dtype=torch.float64))
    total = torch.cat((torch.zeros_like(gates_[..., :1]), gates_.cumsum(-1)), -1)  # of tokens before each
    seq = gates_.shape[-1]
    i, j = torch.arange(seq)[:, None], torch.arange(seq)[None]
    return total[..., (i + 1 + end).clamp(0, seq)] - total[..., (j + begin).clamp(0, seq)]
