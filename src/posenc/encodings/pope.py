# SPDX-License-Identifier: Apache-2.0
"""Polar codes: magnitudes depend on content, phases on position."""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from posenc.encoding import Encoding, Size, require_fit
from posenc.encodings.shared import check_head_dim, check_queries
from posenc.functional import angles_at, frequency_curve, rotary
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class PoPE(Encoding):
    """PoPE: content gives each channel a magnitude, position a phase, so content and position do not mix.

    The score of a query at m and a key at n is the sum over channels of
    softplus(q_c) softplus(k_c) cos((n - m) theta_c + delta_c), with theta_c = rope_theta^(-c / head_dim).

    head_dim: width of a head; queries and keys come out twice as wide, the scale stays head_dim^-1/2.
    num_heads, num_layers: of the model; each head of each layer learns its delta, clamped to -2 pi .. 0.
    init: delta starts "uniform" there, or at "zero". Queries take the negative of delta, which is a phase of the keys in
    the paper: the score is the same, and grouped queries share a key without sharing delta.
    Raises InputError for other widths or heads than these. Source: Gopalakrishnan et al. 2025.
    """

    name = "pope"
    title = "PoPE, polar coordinates"
    papers: ClassVar[tuple[str, ...]] = ("gopalakrishnan2025decoupling",)
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{1}{\sqrt{d}} \sum_{c} \mu(q_{i,c})\, \mu(k_{j,c}) \cos((j - i) \theta_c + \delta_{h,c})",
        r"\mu(t) = \ln(1 + e^t), \quad \theta_c = b^{-c/d}, \quad -2\pi \le \delta_{h,c} \le 0",
    )
    shift_invariant = True
    extrapolates = "yes: trained short, tested long"
    use_when = (
        "Take it in a decoder where content and position should not mix; queries and keys become twice as wide, as "
        "those of `rope` do not."
    )
    equal_to = "x-transformers"

    head_dim: Size
    _: KW_ONLY
    num_heads: Size
    num_layers: Size = 1
    rope_theta: float = 10000.0
    init: Literal["uniform", "zero"] = "uniform"
    inv_freq: Tensor = field(init=False)

    def setup(self) -> None:
        self.delta: nn.Parameter = nn.Parameter(torch.zeros(self.num_layers, self.num_heads, self.head_dim))
        if self.init == "uniform":
            nn.init.uniform_(self.delta, -2 * math.pi, 0.0)

    def tables(self) -> dict[str, Tensor]:
        return {"inv_freq": frequency_curve(2 * self.head_dim, base=self.rope_theta)}

    def angles(self, ids: Tensor) -> Tensor:
        """(batch or 1, n) positions -> (batch or 1, 1, n, head_dim), float64 where the device has it."""
        return angles_at(ids, self.inv_freq)

    def rotate_queries(self, q: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, q=q)
        check_queries(self, q)
        positions.require_one_axis("PoPE")
        delta = self.delta[self.own_layer(layer)].clamp(-2 * math.pi, 0.0).to(self.inv_freq)
        return polar(q, self.remember(positions, "q", lambda: self.angles(positions.q)) - delta[:, None, :])

    def rotate_keys(self, k: Tensor, positions: Positions, layer: int = 0) -> Tensor:
        require_fit(positions, k=k)
        check_head_dim(self, k, self.head_dim)
        return polar(k, self.remember(positions, "k", lambda: self.key_angles(positions)))

    def key_angles(self, positions: Positions, layer: int = 0) -> Tensor:
        positions.require_one_axis("PoPE")
        return self.angles(positions.k)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Keys (batch, heads, n, 2 * head_dim) that are complex numbers already, turned further by an angle."""
        return rotary(x, cos, sin)


def polar(x: Tensor, angles: Tensor) -> Tensor:
    """Complex numbers of magnitude softplus(x) at the given angles, real parts before imaginary ones: twice x's width."""
    precise = torch.promote_types(x.dtype, torch.float32)
    magnitude = softplus(x.to(precise))
    parts = (magnitude * turn.to(x.device, precise) for turn in (angles.cos(), angles.sin()))
    return torch.cat([part.to(x.dtype) for part in parts], -1)
