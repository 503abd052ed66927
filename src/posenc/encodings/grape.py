# SPDX-License-Identifier: Apache-2.0
"""GRAPE's additive form: a penalty that grows with the distance by a slope that each key sets."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from posenc.bias import KeySlope
from posenc.encoding import Size
from posenc.encodings.shared import ContentBias, normal_parameter
from posenc.errors import Positive
from posenc.functional import alibi_slopes
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class GRAPEA(ContentBias):
    """Key-gated additive GRAPE: ALiBi whose slope is multiplied by a number that each key makes of its content.

    b = -|i - j| m_h softplus(omega_h) softplus(u_h . k_j / sqrt(head_dim)), m_h ALiBi's slopes, u_h divided by its norm.
    Keys are those of the projection, before any rotation; heads that share a key have separate u.

    num_heads, head_dim: of the model. num_layers: layers with separate omega and u (the authors: all of them); 1: shared.
    unit: divide u by its norm (the authors' default). omega: what softplus(omega_h) starts at. init_std: of u before it is
    divided; None: head_dim^-1/2.

    Keys after the query, which the authors' models hide, count by their distance. Their path-integral form, GRAPE-AP, is
    not offered. Source: Zhang et al. 2025, "key-gated"; model-architectures/GRAPE, model/llama-mha-grape-a-keygated.py.
    """

    name = "grape_a"
    family = "content"
    title = "GRAPE, ALiBi gated by keys"
    papers: ClassVar[tuple[str, ...]] = ("zhang2025group",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} - |i - j|\, m_h\, \zeta(\omega_h)\, \zeta\left( \frac{u_h \cdot k_j}{\sqrt{d}} \right)",
        r"\zeta(x) = \ln(1 + e^x), \quad \lVert u_h \rVert = 1",
    )
    shift_invariant = True
    bias_reads_keys = True
    extrapolates = "yes: a penalty that grows with the distance"
    use_when = (
        "Take it in place of `alibi` where each key should set how fast it fades; `fox` counts the tokens in between."
    )
    equal_to = "the authors' code"

    num_heads: Size
    _: KW_ONLY
    head_dim: Size
    num_layers: Size = 1
    unit: bool = True
    omega: Positive = 1.0
    init_std: float | None = None

    def setup(self) -> None:
        std = self.head_dim**-0.5 if self.init_std is None else self.init_std
        self.direction: nn.Parameter = normal_parameter(self.num_layers, self.num_heads, self.head_dim, init_std=std)
        # softplus(start) = omega, also for a large one, whose exponential overflows
        start = self.omega + math.log(-math.expm1(-self.omega))
        self.strength: nn.Parameter = nn.Parameter(torch.full((self.num_layers, self.num_heads), start))

    def tables(self) -> dict[str, Tensor]:
        return {"slopes": alibi_slopes(self.num_heads)}

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> KeySlope:
        self.check_heads(q)
        positions.require_one_axis("GRAPEA")
        dtype, layer = torch.promote_types(q.dtype, torch.float32), self.own_layer(layer)
        u = self.direction[layer].to(dtype)
        u = (normalize(u, dim=-1, eps=1e-6) if self.unit else u).unflatten(0, (k.shape[1], -1))
        gates = softplus(torch.einsum("bknd,kgd->bkgn", k.to(dtype), u) * self.head_dim**-0.5).flatten(1, 2)
        strength = softplus(self.strength[layer].to(dtype)) * self.get_buffer("slopes").to(k.device, dtype)
        return KeySlope(gates * strength[:, None], positions)
