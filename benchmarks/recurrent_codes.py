# SPDX-License-Identifier: Apache-2.0
"""Codes that follow a recurrence, p_0 learned and p_(k+1) = GRU(p_k), for benchmarks/ablations.py.

The runs of an encoding in a file are known by the content of the file: a change here trains them again.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posenc import Positions
from posenc.encodings import Absolute
from posenc.errors import InputError


@dataclass(eq=False, repr=False)
class Recurrent(Absolute):
    """A gated recurrent unit without input (Cho et al. 2014) from position to position, added to the words.

    z, r = sigmoid of U_z p + b_z, U_r p + b_r; n = tanh(r (U_n p + b_n) + c); p' = (1 - z) n + z p. The matrices start
    orthogonal, the biases at 0, p_0 normal.
    """

    sequential = True

    dim: int
    merge: str = "add"

    def setup(self) -> None:
        super().setup()
        self.hidden: nn.Linear = nn.Linear(self.dim, 3 * self.dim)
        self.shift: nn.Parameter = nn.Parameter(torch.zeros(self.dim))
        self.first: nn.Parameter = nn.Parameter(torch.randn(self.dim))
        for block in self.hidden.weight.data.chunk(3):
            nn.init.orthogonal_(block)
        nn.init.zeros_(self.hidden.bias)

    def codes(self, positions: Positions) -> Tensor:
        if positions.fractional or bool((positions.q < 0).any()):
            raise InputError(
                "Recurrent has codes of the positions 0, 1, 2, ... alone: round them, or take sinusoidal codes"
            )
        states = [self.first]
        for _ in range(int(positions.q.max())):
            keep, reset, new = self.hidden(states[-1]).chunk(3)
            new = (reset.sigmoid() * new + self.shift).tanh()
            states.append(new + keep.sigmoid() * (states[-1] - new))
        return torch.stack(states)[positions.q]
