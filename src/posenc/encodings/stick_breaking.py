# SPDX-License-Identifier: Apache-2.0
"""Stick-breaking: each key, from the nearest on, takes its share of what nearer keys have left."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from posenc.bias import Weights
from posenc.encoding import Encoding
from posenc.positions import Positions
from posenc.positions.visibility import rowwise


@dataclass(eq=False, repr=False)
class StickBreaking(Encoding):
    """Weights without a softmax: from the nearest key to the farthest, each takes sigmoid(s_ij) of what is left.

    attend_current: whether a query sees the key of its token (the authors' default is that it does not). What no key takes goes to nothing.

    Positions act through the keys' order alone: the more keys are nearer, the less is left.
    A sum may bias the scores or rotate queries and keys. Weights are computed from scores by blocks of queries.
    Raises InputError for positions that are not causal, a sink, or learned keys.
    Source: Tan et al. 2025, "Scaling Stick-Breaking Attention"; shawntan/stickbreaking-attention, sb_ref.py.
    """

    name = "stick_breaking"
    title = "stick-breaking attention"
    papers: ClassVar[tuple[str, ...]] = ("tan2025scaling",)
    formula: ClassVar[tuple[str, ...]] = (
        r"p_{ij} = \beta_{ij} \prod_{t=j+1}^{i-1} (1 - \beta_{it}), \quad \beta_{ij} = \sigma\left( \frac{q_i \cdot k_j}{\sqrt{d}} \right)",
        r"o_i = \sum_{j<i} p_{ij} v_j",
    )
    shift_invariant = True
    extrapolates = "yes: nearer keys take their share first"
    use_when = (
        "Take it in a causal model in place of the softmax and of other encodings; `fox` forgets and has the softmax."
    )
    equal_to = "the authors' expression"
    causal_only = True

    attend_current: bool = False

    def modify(self, positions: Positions, layer: int = 0) -> Weights:
        of_query, of_key = rowwise(positions.q_order), rowwise(positions.k_order)

        def weights(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if not self.attend_current:
                score = score.masked_fill(of_key(b, j) == of_query(b, i), -torch.inf)
            left = logsigmoid(-score)  # of a hidden key 0
            if positions.diagonal is None:  # keys lie in any order
                nearest = of_key(b, j).argsort(-1, descending=True).expand_as(score)
                sums = left.gather(-1, nearest).cumsum(-1)
                before = torch.empty_like(left).scatter(-1, nearest, pad(sums, (1, -1)))
            else:
                before = pad(left.flip(-1).cumsum(-1), (1, -1)).flip(-1)
            return score.sigmoid() * (before / math.log(2)).exp2()  # exp is slow on CPUs where it underflows

        return Weights(weights)
