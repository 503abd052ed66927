# SPDX-License-Identifier: Apache-2.0
"""An encoding that reads the layer's input: a forget gate in 40 lines, in attention and in a model that decodes from a cache.

    python examples/forget_gate.py

Scores fall by the sum of -log sigmoid(w x + 4) over the tokens from the key to the query (Lin et al. 2025, arXiv 2503.02130).
"""

import torch

import posenc


class Forget(posenc.Encoding):
    """A gate for each head and token, made of the layer's input by one matrix."""

    name = "forget"
    shift_invariant = True
    bias_reads_keys = False

    def __init__(self, num_heads, dim):
        super().__init__()
        self.num_heads, self.dim = num_heads, dim
        self.weight = torch.nn.Parameter(torch.randn(num_heads, dim) * dim**-0.5)

    def gates(self, x, layer=0):
        """Of x (batch, seq, dim): (batch, heads, seq, 1)."""
        logits = torch.einsum("bnd,hd->bhn", x, self.weight.to(x)) + 4
        return torch.nn.functional.logsigmoid(logits)[..., None]

    def bias(self, q, k, positions, layer=0):
        """The sum of the gates between key and query."""
        return posenc.bias.RunningSum(positions.gate("forget")[..., 0], positions)


def main() -> None:
    """Its outputs in attention, and two tokens generated from a cache."""
    x, forget = torch.randn(2, 100, 512), Forget(8, 512)
    q, k, v = torch.randn(3, 2, 8, 100, 64)
    gates = posenc.encoding.gates_of(forget, x)
    print(posenc.attention(q, k, v, posenc.Rotary(64) + forget, causal=True, gates=gates).shape)
    model = posenc.Transformer(posenc.TransformerConfig(256, dim=512, num_heads=8), posenc.Rotary(64) + Forget(8, 512))
    print(model.generate(torch.tensor([[1, 2, 3]]), 2).shape)


if __name__ == "__main__":
    main()
