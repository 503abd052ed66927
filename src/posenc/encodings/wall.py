# SPDX-License-Identifier: Apache-2.0
"""Wall attention: each channel of a query forgets at a separate rate, which the tokens set."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid, pad

from posenc.bias import Score
from posenc.bias.carried import Carried, stream
from posenc.encoding import Encoding, Size
from posenc.encodings.shared import check_input, check_queries, normal_parameter
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class Wall(Encoding):
    """Each channel n of q . k decays by the product of gates f_tn, between 0 and 1, over the tokens t after the key, up to the query.

    dim: width of the layer's input x, of which the gates are made. num_heads, head_dim: of the model. num_layers: layers with
    separate gates; 1: shared by all. init_bias: of the gates' logits; 8: the authors', near attention without position.

    The authors' optional gate per head is the sum `wall+fox`. Scores are computed by chunks of 64 tokens, from decays that are at most 1,
    so that none overflows, in the memory of a block of queries.
    Raises InputError for positions that are not causal, or another width or number of heads.
    Source: Averbuch and Pai 2026, "Wall Attention"; fla-org/flash-linear-attention, fla/layers/wall_attn.py.
    """

    name = "wall"
    title = "decay by channel"
    papers: ClassVar[tuple[str, ...]] = ("averbuch2026wall",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{1}{\sqrt{d}} \sum_n q_{in} k_{jn} \prod_{t=j+1}^{i} f_{tn}",
        r"f_t = \sigma(W x_t + b)",
    )
    scores_by_channel = True
    shift_invariant = True
    extrapolates = "yes: far keys have decayed"
    use_when = (
        "Take it in a causal model for inputs much longer than in training; `fox` has a gate for each head in place "
        "of each channel."
    )
    equal_to = "the authors' expression"
    causal_only = True

    dim: Size
    _: KW_ONLY
    num_heads: Size
    head_dim: Size
    num_layers: Size = 1
    init_bias: float = 8.0

    def setup(self) -> None:
        width = self.num_heads * self.head_dim
        self.weight: nn.Parameter = normal_parameter(self.num_layers, width, self.dim, init_std=self.dim**-0.5)
        self.bias_in: nn.Parameter = nn.Parameter(torch.full((self.num_layers, width), float(self.init_bias)))

    def gates(self, x: Tensor, layer: int = 0) -> Tensor:
        """The logarithm of each channel's gate, (batch, num_heads, seq, head_dim), float32 or better."""
        x, at = check_input(self, x, self.dim), self.own_layer(layer)
        return (
            logsigmoid(linear(x, self.weight[at].to(x), self.bias_in[at].to(x)))
            .unflatten(-1, (self.num_heads, -1))
            .transpose(1, 2)
        )

    def scores(self, q: Tensor, k: Tensor, scale: float, positions: Positions, layer: int = 0) -> Score:
        check_queries(self, q)
        order = stream(positions)
        gate = positions.gate(self.known_as, self.num_heads, self.head_dim)
        return Decayed(scale * q, order.of(k), order.of(gate), positions, order)


class Decayed(Carried):
    """Wall's scores. Tokens are logarithms of gates, at most 0."""

    def tables(self, k: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        sums = tokens.double().cumsum(-2) / math.log(2)  # double, so that a strong gate does not round its neighbours'
        total = sums[..., -1:, :]
        return sums, k * _decay(total - sums, k), _decay(total, k)

    def inside(self, q: Tensor, k: Tensor, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        sums = tables[0]
        if torch.compiler.is_compiling():
            between = (sums[..., :, None, :] - sums[..., None, :, :]).clamp(max=0)
            return (q[..., :, None, :] * k[..., None, :, :] * _decay(between, q)).sum(-1), q
        return _within(q, k, sums), q * _decay(sums, q)

    def step(self, q: Tensor, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        _, keys, total = tables
        return q @ keys.mT, q * total


def _decay(sums: Tensor, like: Tensor) -> Tensor:
    return sums.to(like.dtype).exp2()  # exp is slow on CPUs where it underflows


def _within(q: Tensor, k: Tensor, sums: Tensor) -> Tensor:
    """Scores (.., n, n) among n tokens (.., n, width), n a power of 2, with zeros for later keys. The second half of the queries
    meets the first half of the keys at the last of these: neither factor exceeds 1."""
    n = q.shape[-2]
    if n == 1:
        return (q * k).sum(-1, keepdim=True)
    q, k, sums = (x.unflatten(-2, (2, n // 2)) for x in (q, k, sums))
    first, second = _within(q, k, sums).unbind(-3)
    (before, after), (keys, queries) = sums.unbind(-3), (k.select(-3, 0), q.select(-3, 1))
    middle = before[..., -1:, :]
    far = (queries * _decay(after - middle, q)) @ (keys * _decay(middle - before, k)).mT
    return torch.cat((pad(first, (0, n // 2)), torch.cat((far, second), -1)), -2)
