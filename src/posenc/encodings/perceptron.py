# SPDX-License-Identifier: Apache-2.0
"""The perceptron that FIRE and Swin v2 make a bias with."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class HeadPerceptron(nn.Module):
    """linear -> ReLU -> linear to one number per head, with parameters of its own for each of num_layers layers.

    inputs, hidden: widths. last_bias: whether the second linear map has a bias; the first has. Both start as
    torch.nn.Linear does.
    """

    def __init__(self, inputs: int, hidden: int, num_heads: int, num_layers: int, last_bias: bool) -> None:
        super().__init__()
        self.weight_in: nn.Parameter = _uniform(num_layers, hidden, inputs, fan_in=inputs)
        self.bias_in: nn.Parameter = _uniform(num_layers, hidden, fan_in=inputs)
        self.weight_out: nn.Parameter = _uniform(num_layers, num_heads, hidden, fan_in=hidden)
        self.bias_out: nn.Parameter | None = _uniform(num_layers, num_heads, fan_in=hidden) if last_bias else None

    def forward(self, x: Tensor, head: Tensor, layer: int) -> Tensor:
        """The numbers of broadcastable (..., inputs) x and (...) heads, in x's dtype."""
        hidden = linear(x, self.weight_in[layer].to(x), self.bias_in[layer].to(x)).relu_()  # one buffer, not three
        # einsum keeps axes that one side alone has apart: hidden units of a grid are not repeated for every head
        out = torch.einsum("...w,...w->...", hidden, self.weight_out[layer].to(x)[head])
        return out if self.bias_out is None else out + self.bias_out[layer].to(x)[head]


def _uniform(*shape: int, fan_in: int) -> nn.Parameter:
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
