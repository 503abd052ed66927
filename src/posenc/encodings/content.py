# SPDX-License-Identifier: Apache-2.0
"""What encodings that weigh content against position have in common: their checks, and projections of position."""

import torch
from torch import Tensor, nn

from posenc.checks import check_sizes
from posenc.encoding import Encoding
from posenc.encodings.checks import check_head_dim, check_heads, check_std
from posenc.errors import InputError
from posenc.positions import Positions


class ContentBias(Encoding):
    """Base of the encodings whose bias depends on a query or key as well as on where it is."""

    num_heads: int
    head_dim: int
    bias_reads_keys = False

    def check_heads(self, q: Tensor) -> None:
        """Refuse queries of another number of heads, or of another width."""
        check_heads(self, q, self.num_heads)
        check_head_dim(self, q, self.head_dim)

    def check_integers(self, positions: Positions) -> None:
        """Refuse positions that have no row in a table: on a grid, or fractional."""
        user = type(self).__name__
        positions.require_one_axis(user)
        if positions.fractional:
            raise InputError(f"{user} has rows for integer positions only: round them, or use Rotary or ALiBi")


class HeadProjection(nn.Module):
    """A linear map of position vectors to every head, one per layer, starting normal with a bias of zero.

    weight is (num_layers, num_heads, head_dim, dim); bias, if there is one, (num_layers, num_heads, head_dim).
    """

    def __init__(
        self, dim: int, num_heads: int, head_dim: int, num_layers: int, init_std: float, bias: bool = True
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, num_heads=num_heads, head_dim=head_dim, num_layers=num_layers)
        check_std(init_std)
        self.weight: nn.Parameter = nn.Parameter(torch.empty(num_layers, num_heads, head_dim, dim))
        nn.init.normal_(self.weight, std=init_std)
        self.bias: nn.Parameter | None = nn.Parameter(torch.zeros(num_layers, num_heads, head_dim)) if bias else None

    def forward(self, x: Tensor, layer: int = 0) -> Tensor:
        """(..., n, dim) -> (..., num_heads, n, head_dim)"""
        y = x.unsqueeze(-3) @ self.weight[layer].to(x.dtype).mT
        return y if self.bias is None else y + self.bias[layer, :, None].to(x.dtype)
