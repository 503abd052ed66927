# SPDX-License-Identifier: Apache-2.0
"""A class for each of the less common hooks of an encoding: your own term of the scores, functions of the scores and in place
of the softmax, sinks that depend on the query, rotated values. docs/guides/bring-your-own.md explains the hooks.
"""

import torch

import posenc


class Resemblance(posenc.bias.Score):
    """A term of the scores, computed for blocks of queries: how similar query and key are."""

    def __init__(self, q, k):
        self.q, self.k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
        self.batch, self.num_heads, self.num_queries, self.num_keys = *q.shape[:3], k.shape[2]

    def rows(self, device):
        return lambda first, end: self.q[:, :, first:end] @ self.k.mT


class Resembling(posenc.Encoding):
    def bias(self, q, k, positions, layer=0):
        return Resemblance(q, k)


class Capped(posenc.Encoding):
    """Scores stay below 50, as in Gemma 2. `posenc.bias.Modifier` takes any pointwise function."""

    def modify(self, positions, layer=0):
        return posenc.bias.SoftCap(50.0)


class Independent(posenc.Encoding):
    """In place of the softmax: each key gets sigmoid(score - 2), whatever the others score."""

    def modify(self, positions, layer=0):
        return posenc.bias.Weights(lambda score, batch, head, query, key: torch.sigmoid(score - 2))


class Nearby(posenc.Encoding):
    """Minus half the squared distance of query and key, in place of their product."""

    def scores(self, q, k, scale, positions, layer=0):
        return posenc.bias.Dense(-0.5 * scale * torch.cdist(q, k).square())


class Quiet(posenc.Encoding):
    """How much a query attends to nothing depends on the query."""

    def query_sink(self, q, positions, layer=0):
        return q.mean(-1)


class Flipped(posenc.Encoding):
    """Values at an odd distance from the query arrive with the opposite sign."""

    def rotate_values(self, v, positions, layer=0):
        return v * (1 - 2 * (positions.k % 2))[:, None, :, None]

    def turn_back(self, out, positions, layer=0):
        return out * (1 - 2 * (positions.q % 2))[:, None, :, None]


def main():
    """The difference that each makes to attention with RoPE."""
    q, k, v = torch.randn(3, 1, 8, 100, 64, generator=torch.Generator().manual_seed(0))
    positions = posenc.Positions.arange(100, causal=True)
    plain = posenc.attention(q, k, v, posenc.Rotary(64), positions)
    prefix = posenc.PrefixKV(8, head_dim=64, length=4)
    for made in (Resembling(), Capped(), Independent(), Nearby(), Quiet(), Flipped(), prefix):
        change = posenc.attention(q, k, v, posenc.Rotary(64) + made, positions) - plain
        print(f"{type(made).__name__:12}{change.square().mean().sqrt():.4f}")


if __name__ == "__main__":
    main()
