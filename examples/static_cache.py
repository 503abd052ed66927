# SPDX-License-Identifier: Apache-2.0
"""Decoding with a static cache, as ExecuTorch and CUDA graphs need it: one exported program for every step, in which the key
of position p lies in slot p, and a token sees the slots up to its own whatever the later ones hold."""

import torch
from torch import Tensor, nn

import posenc
from posenc import Positions


class Layer(nn.Module):
    """Attention with a cache of so many slots, (1, heads, slots, head_dim)."""

    def __init__(self, dim: int, heads: int, slots: int) -> None:
        super().__init__()
        self.encoding, self.heads, self.slots = posenc.Rotary(dim // heads), heads, slots
        self.project = nn.Linear(dim, 3 * dim)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.full((1, heads, slots, dim // heads), torch.inf))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """x: (1, n, dim), the next tokens; ids: (n,), their positions."""
        q, k, v = self.project(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        for cache, new in ((self.keys, k), (self.values, v)):
            cache.index_copy_(2, ids, new)
        positions = Positions.in_slots(ids, self.slots)
        return posenc.attention(q, self.keys, self.values, self.encoding, positions)


@torch.no_grad()
def main() -> float:
    torch.manual_seed(0)
    layer, x = Layer(32, 4, slots=16), torch.randn(1, 10, 32)
    step = torch.export.export(layer, (x[:, :1], torch.tensor([0]))).module()
    out = torch.cat([step(x[:, at : at + 1], torch.tensor([at])) for at in range(10)], 2)
    q, k, v = layer.project(x).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
    error = (out - posenc.attention(q, k, v, layer.encoding, causal=True)).abs().max().item()
    print(f"ten steps of the program and one pass differ by {error:.0e}")
    return error


if __name__ == "__main__":
    main()
