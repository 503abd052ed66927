# SPDX-License-Identifier: Apache-2.0
"""A diffusion transformer, as FLUX and Qwen-Image are: text and patches in one attention, modulated by the noise's share.

Patches are at (t, y, x), text has no place. Images of several sizes, each after its text, fit into one row, with the velocities
that each has alone.
"""

import torch
from torch import Tensor, nn

import posenc
from posenc import Positions


class DiffusionTransformer(nn.Module):
    """Text embeddings and noisy patches, one image after the other, (batch, tokens, dim), and the noise's share of each token
    (batch, tokens, 1) -> velocities (batch, tokens, dim); those of text are not used."""

    def __init__(self, dim: int, heads: int, encoding: posenc.Encoding, layers: int = 2) -> None:
        super().__init__()
        self.encoding, self.split = encoding, nn.Unflatten(-1, (3, heads, dim // heads))
        self.norm, self.last = nn.LayerNorm(dim, elementwise_affine=False), nn.Linear(dim, dim)
        self.modulation = nn.ModuleList(nn.Linear(1, 6 * dim) for _ in range(layers))
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(layers))
        perceptron = lambda: nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))  # noqa: E731
        self.mlp = nn.ModuleList(perceptron() for _ in range(layers))

    def forward(self, x: Tensor, share: Tensor, positions: Positions) -> Tensor:
        here = self.encoding.at(positions)
        for modulation, qkv, mlp in zip(self.modulation, self.qkv, self.mlp, strict=True):
            scale, shift, weight, scale2, shift2, weight2 = modulation(share).chunk(6, -1)
            q, k, v = self.split(qkv(self.norm(x) * (1 + scale) + shift)).permute(2, 0, 3, 1, 4)
            x = x + weight * here.attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + weight2 * mlp(self.norm(x) * (1 + scale2) + shift2)
        return self.last(self.norm(x))


def main() -> float:
    torch.manual_seed(0)
    flux = posenc.AxialRotary(128, sections=(8, 28, 28), rope_theta=10000, x_first=False)
    model, sizes, text = DiffusionTransformer(256, 2, flux), [(4, 6), (8, 3)], 5
    lengths = [text + height * width for height, width in sizes]
    x, share = torch.randn(1, sum(lengths), 256), torch.rand(1, sum(lengths), 1)
    together = model(x, share, Positions.grids(sizes, prefix=text))  # one row; text comes before each image
    alone = [
        model(*parts, Positions.grid(*size, prefix=text))
        for *parts, size in zip(x.split(lengths, 1), share.split(lengths, 1), sizes, strict=True)
    ]
    difference = (together - torch.cat(alone, 1)).abs().max().item()
    print(f"velocities {tuple(together.shape)}; together and alone differ by {difference:.0e}")
    return difference


if __name__ == "__main__":
    main()
