# SPDX-License-Identifier: Apache-2.0
"""Any encoding in your own attention, on a batch padded on the left: the padded text gets the same output as alone.

The last column shows the error if the padding is ignored.
"""

import torch
from torch import Tensor, nn

import posenc
from posenc import Positions


class Attention(nn.Module):
    """(batch, seq, dim) -> the same shape. `embed` is for encodings that act on the input; all others act in attention."""

    def __init__(self, dim: int, num_heads: int, encoding: str) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.out = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.encoding = posenc.create(encoding, dim=dim, num_heads=num_heads, max_positions=512, causal=True)

    def forward(self, x: Tensor, positions: Positions) -> Tensor:
        here = self.encoding.at(positions)  # in a model of several layers: once, and given to them
        x = here.embed(x)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        y = here.attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(-2))


def main(seed: int = 0) -> dict[str, tuple[float, float]]:
    torch.manual_seed(seed)
    mask = torch.tensor([[1] * 12, [0] * 5 + [1] * 7])
    x, errors = torch.randn(2, 12, 64), {}
    for name in ("sinusoidal", "learned", "rope", "alibi", "t5", "rope+alibi"):
        model = Attention(64, 4, name).eval()
        alone = model(x[1:, 5:], Positions.arange(7, causal=True))
        answers = (model(x, p) for p in (Positions.from_mask(mask, causal=True), Positions.arange(12, causal=True)))
        errors[name] = tuple((answer[1:, 5:] - alone).abs().max().item() for answer in answers)
        print("{:12} padded and alone differ by {:.0e}; with padding forgotten, by {:.1f}".format(name, *errors[name]))
    return errors


if __name__ == "__main__":
    main()
