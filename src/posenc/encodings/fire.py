# SPDX-License-Identifier: Apache-2.0
"""FIRE: a learned function of the distance, as a share of how far back a query can look."""

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.bias import Positional
from posenc.encoding import Encoding, Size
from posenc.encodings.shared import HeadPerceptron, check_heads
from posenc.errors import Positive, check_positive
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class FIRE(Encoding):
    """Functional interpolation: b = MLP(psi(distance) / psi(max(L, i))) for a query at i, psi(x) = log(|c x| + 1).

    num_heads: heads of the model. num_layers: layers with separate functions; 1: shared by all. hidden: width of the
    MLP, 1 -> hidden -> num_heads with ReLU and biases. threshold: what L starts at; None: a quarter of train_length, or
    512 if that is not given either. eps: added to the divisor, against 0 / 0. init_c: what c starts at. c and L, as a
    multiple of threshold, are learned and enter by their absolute value.

    Queries up to position L share one function of the distance; later ones stretch it over all they can see, so that
    for the keys before a query an input of the MLP stays between 0 and 1 at any length. The source is causal; keys
    after the query, here, count by their distance, without that bound. Source: Li et al. 2024 and the listing of its appendix.
    """

    name = "fire"
    family = "bias"
    title = "FIRE, a learned function of distance"
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + f_h\left( \frac{\psi(i - j)}{\psi(\max(L', i))} \right)",
        r"\psi(t) = \ln(|c t| + 1)",
    )
    papers: ClassVar[tuple[str, ...]] = ("li2024functional",)
    extrapolates = "yes: any length is mapped to one interval"
    use_when = (
        "Take it where the function of the distance is to be learned and inputs grow; `kerple` depends on the "
        "distance alone and costs less memory."
    )
    constant = True

    num_heads: Size
    _: KW_ONLY
    num_layers: Size = 1
    hidden: Size = 32
    threshold: float | None = None
    train_length: Size | None = None
    init_c: float = 0.1
    eps: Positive = 1e-6

    def setup(self) -> None:
        if self.threshold is None:
            self.threshold = 512.0 if self.train_length is None else self.train_length / 4
        check_positive(threshold=self.threshold)
        self.mlp: HeadPerceptron = HeadPerceptron(1, self.hidden, self.num_heads, self.num_layers, last_bias=True)
        self.c: nn.Parameter = nn.Parameter(torch.full((self.num_layers,), float(self.init_c)))
        self.multiple: nn.Parameter = nn.Parameter(torch.ones(self.num_layers))

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> Positional:
        check_heads(self, q, self.num_heads)
        positions.require_one_axis("FIRE")
        dtype = torch.promote_types(q.dtype, torch.float32)
        function = partial(self.of_positions, layer=self.own_layer(layer), dtype=dtype)
        return Positional(function, self.num_heads, positions)

    def of_positions(self, head: Tensor, i: Tensor, j: Tensor, layer: int, dtype: torch.dtype) -> Tensor:
        """A layer's bias of broadcastable heads, query positions and key positions, in dtype."""
        assert self.threshold is not None
        c = self.c[layer].to(dtype)
        furthest = torch.maximum(i.to(dtype), (self.multiple[layer].to(dtype) * self.threshold).abs())
        share = _psi(c, (i - j).to(dtype)) / (_psi(c, furthest) + self.eps)
        return self.mlp(share[..., None], head, layer)


def _psi(c: Tensor, x: Tensor) -> Tensor:
    return torch.log1p((c * x).abs())
