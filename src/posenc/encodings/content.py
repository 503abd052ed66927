"""What encodings that weigh content against position have in common: their checks, and projections of position."""

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding
from posenc.encodings.absolute import check_std
from posenc.errors import InputError, unknown
from posenc.positions import Positions


class ContentBias(Encoding):
    """Base of the encodings whose bias depends on a query or key as well as on where it is."""

    num_heads: int
    head_dim: int

    def check_heads(self, q: Tensor) -> None:
        """Refuse queries of another number of heads, or of another width."""
        if (q.shape[1], q.shape[3]) != (self.num_heads, self.head_dim):
            raise InputError(
                f"q with {q.shape[1]} heads of width {q.shape[3]}: this {type(self).__name__} was made with "
                f"num_heads={self.num_heads} and head_dim={self.head_dim}"
            )

    def check_integers(self, positions: Positions) -> None:
        """Refuse positions that have no row in a table: on a grid, or fractional."""
        user = type(self).__name__
        positions.require_one_axis(user)
        if positions.q.is_floating_point() or positions.k.is_floating_point():
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
        self.weight = nn.Parameter(torch.empty(num_layers, num_heads, head_dim, dim))
        nn.init.normal_(self.weight, std=init_std)
        self.bias = nn.Parameter(torch.zeros(num_layers, num_heads, head_dim)) if bias else None

    def forward(self, x: Tensor, layer: int = 0) -> Tensor:
        """(..., n, dim) -> (..., num_heads, n, head_dim)"""
        y = x.unsqueeze(-3) @ self.weight[layer].to(x.dtype).mT
        return y if self.bias is None else y + self.bias[layer, :, None].to(x.dtype)


def check_sizes(**sizes: int) -> None:
    """Refuse a count below one."""
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name}={size}: must be at least 1")


def check_terms(terms: str, known: tuple[str, ...]) -> frozenset[str]:
    """The words of a text like "c2p|p2c"; refuses unknown and repeated ones."""
    words = [word.strip() for word in terms.split("|")]
    for word in words:
        if word not in known:
            raise unknown("term", word, known)
    if len(set(words)) < len(words):
        raise InputError(f"terms={terms!r}: name each term once")
    return frozenset(words)
