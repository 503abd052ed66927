# SPDX-License-Identifier: Apache-2.0
"""Stick-breaking: each key, from the nearest on, takes its share of what nearer keys have left."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad

from posenc.bias import Weights
from posenc.encoding import Encoding, Size
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.positions.visibility import rowwise


@dataclass(eq=False, repr=False)
class StickBreaking(Encoding):
    """Weights without a softmax: from the nearest key to the farthest, each takes sigmoid(s_ij) of what is left.

    attend_current: whether a query sees the key of its token (the authors' default is that it does not). remainder: what no key takes goes
    to a learned value per head, which starts at zero, as in IBM/dolomite-engine; False: it goes to nothing. num_heads,
    head_dim: of the values, for remainder alone. num_layers: layers with separate values; 1: shared by all.

    Positions act through the keys' order alone: the more keys are nearer, the less is left.
    A sum may bias the scores or rotate queries and keys. Weights are computed from scores by blocks of queries.
    Raises InputError for positions that are not causal, a sink, learned keys, or remainder without num_heads and head_dim.
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
    _: KW_ONLY
    remainder: bool = False
    num_heads: Size | None = None
    head_dim: Size | None = None
    num_layers: Size = 1

    def setup(self) -> None:
        self.rest: nn.Parameter | None = None
        if self.remainder:
            if self.num_heads is None or self.head_dim is None:
                raise InputError(
                    "give num_heads and head_dim, the sizes of its values",
                    remainder=True,
                    num_heads=self.num_heads,
                    head_dim=self.head_dim,
                )
            self.rest = nn.Parameter(torch.zeros(self.num_layers, self.num_heads, self.head_dim))

    def modify(self, positions: Positions, layer: int = 0) -> Weights:
        if positions.sees_future:
            raise InputError(
                "StickBreaking goes back from a query to its first key: pass causal positions (causal=True)"
            )
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

        return Weights(weights, None if self.rest is None else self.rest[self.own_layer(layer)])
