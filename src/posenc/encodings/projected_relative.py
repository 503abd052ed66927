# SPDX-License-Identifier: Apache-2.0
"""Inkling's relative bias: each token mixes learned functions of the distance."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from posenc.bias import QueryRelative
from posenc.encoding import Encoding, Size
from posenc.encodings.shared import HeadProjection, check_heads, check_input, normal_parameter
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class ProjectedRelative(Encoding):
    """Learned functions of the distance, mixed by weights that each query's token makes of the layer's input.

    b = r_i . P[i - j] for 0 <= i - j < extent, and 0 for keys further back and after the query, with r_i = W_r x_i, one vector
    for each head, and a table P that all heads of a layer share.

    dim, num_heads: of the model. num_layers: layers with separate W_r and P; 1: shared by all. profiles: functions of the
    distance, the width of r (16 in Inkling). extent: distances that have a bias (1024 in Inkling's global layers, the
    window's 512 in its local ones). init_std: of both matrices.

    Inkling's norms, scale and temperatures are left to the model.
    Sequences may be longer than extent. Raises InputError for fractional positions, and where `attention` is not given gates.
    Source: transformers' Inkling (modeling_inkling.py); x-transformers' RelativeProjPositionalBias, whose W_r has a bias.
    """

    name = "projected_relative"
    title = "projected relative bias"
    papers: ClassVar[tuple[str, ...]] = ("thinkingmachines2026inkling",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + \begin{cases} (W_r x_i) \cdot P_{i-j} & \quad 0 \le i - j < E \\ 0 & \quad \text{otherwise} \end{cases}",
    )
    shift_invariant = True
    bias_reads_keys = False
    extrapolates = "yes: far keys have no bias"
    use_when = "Take it in a causal model without RoPE, as Inkling does; the bias of `t5` does not depend on the token."
    equal_to = "transformers' Inkling, x-transformers"

    dim: Size
    _: KW_ONLY
    num_heads: Size
    num_layers: Size = 1
    profiles: Size = 16
    extent: Size = 1024
    init_std: float = 0.02

    def setup(self) -> None:
        shape = self.dim, self.num_heads, self.profiles, self.num_layers, self.init_std
        self.projection: HeadProjection = HeadProjection(*shape, bias=False)
        self.table: nn.Parameter = normal_parameter(self.num_layers, self.extent, self.profiles, init_std=self.init_std)

    def gates(self, x: Tensor, layer: int = 0) -> Tensor:
        return self.projection(check_input(self, x, self.dim), self.own_layer(layer))

    def row(self, distance: Tensor) -> Tensor:
        """The row of a distance in the table with a row of zeros before it, for keys after the query, and after it."""
        return distance.clamp(-1, self.extent) + 1

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> QueryRelative:
        check_heads(self, q, self.num_heads)
        positions.require_one_axis("ProjectedRelative")
        positions.require_integers("ProjectedRelative")
        dtype = torch.promote_types(q.dtype, torch.float32)
        weights = positions.of_queries(positions.gate(self.known_as, self.num_heads, self.profiles))
        table = pad(self.table[self.own_layer(layer)], (0, 0, 1, 1))
        return QueryRelative(weights.to(dtype), table.to(dtype)[None], self.row, positions)
