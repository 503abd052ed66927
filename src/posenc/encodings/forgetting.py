# SPDX-License-Identifier: Apache-2.0
"""The Forgetting Transformer: scores fall by the forget gates of the tokens in between."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from posenc.bias import RunningSum
from posenc.encoding import Encoding, Size
from posenc.encodings.shared import check_heads, check_input, normal_parameter
from posenc.errors import check_numbers
from posenc.positions import Positions


@dataclass(eq=False, repr=False)
class FoX(Encoding):
    """Forget gates: the score of a key is lowered by -log f of every token after it up to the query, f = sigmoid(w_h x + b_h).

    num_heads: query heads, each with a gate. dim: width of a layer's input x. num_layers: layers with separate gates; 1: shared
    by all. init_bias: b at the start (the authors' 0 halves a weight with every token; larger ones forget more slowly).
    init_std: standard deviation of w at the start.

    Sums of log f are float64, and padding and other documents do not count. On the CPU, keys that are forgotten to below e^-40 of
    the query's own key are not visited (the authors' Adaptive Computation Pruning, whose bound is e^-10 of the row's sum).
    Cable (Veisi et al. 2025, arXiv 2503.08067) is this with w and b negated, and scale=1 in `posenc.attention`.
    Raises InputError for positions that are not causal. Source: Lin et al. 2025, section 3; Lin et al. 2025b, section 3.
    """

    name = "fox"
    title = "forget gates (FoX)"
    papers: ClassVar[tuple[str, ...]] = ("lin2025forgetting", "lin2025adaptive")
    formula: ClassVar[tuple[str, ...]] = (
        r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + \sum_{t=j+1}^{i} \log f_t",
        r"f_t = \sigma(w_h \cdot x_t + b_h)",
    )
    shift_invariant = True
    extrapolates = "yes: far keys are forgotten"
    use_when = (
        "Take it in a causal model, with `rope` or alone, where tokens should say what is forgotten; `alibi` forgets "
        "at a fixed rate."
    )
    equal_to = "x-transformers"
    causal_only = True
    bias_reads_keys = False

    num_heads: Size
    _: KW_ONLY
    dim: Size
    num_layers: Size = 1
    init_bias: float = 0.0
    init_std: float = 0.02

    def setup(self) -> None:
        check_numbers(-100, 100, init_bias=self.init_bias)
        self.weight: nn.Parameter = normal_parameter(self.num_layers, self.num_heads, self.dim, init_std=self.init_std)
        self.logit: nn.Parameter = nn.Parameter(torch.full((self.num_layers, self.num_heads), float(self.init_bias)))

    def gates(self, x: Tensor, layer: int = 0) -> Tensor:
        x, number = check_input(self, x, self.dim), self.own_layer(layer)
        return logsigmoid(linear(x, self.weight[number].to(x), self.logit[number].to(x))).mT[..., None]

    def bias(self, q: Tensor, k: Tensor, positions: Positions, layer: int = 0) -> RunningSum:
        check_heads(self, q, self.num_heads)
        return RunningSum(positions.gate(self.known_as, self.num_heads, 1)[..., 0], positions.with_gates(()))
