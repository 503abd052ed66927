# SPDX-License-Identifier: Apache-2.0
"""A GlobalPointer (Su et al. 2022, arXiv 2208.03054): every span of a text gets a score per type, q_start . k_end.

Spans of two types, which may overlap, lie between an opening and a closing token of their type. Which of them belong
together depends on distance: without rotation, an opening token is paired with every later closing one of its type, or
with none. Pairing with all of them gives an F1 of 0.73.
"""

import torch
from torch import Tensor, nn

import posenc


def texts(count: int) -> tuple[Tensor, Tensor]:
    """Tokens (count, 24), of which 0 and 1 open spans and 2 and 3 close them; the spans, (count, type, start, end)."""
    tokens, spans = torch.randint(4, 20, (count, 24)), torch.zeros(count, 2, 24, 24, dtype=torch.bool)
    for slot in (0, 1, 8, 9, 16, 17):  # in three texts of four, a span of 3 or 5 tokens starts here or 2 tokens on
        kind, row = slot % 8, (torch.rand(count) < 0.75).nonzero()[:, 0]
        start, size = slot + 2 * torch.randint(2, row.shape), 2 * torch.randint(1, 3, row.shape)
        tokens[row, start], tokens[row, start + size], spans[row, kind, start, start + size] = kind, kind + 2, True
    return tokens, spans


class GlobalPointer(nn.Module):
    """Features (batch, seq, dim) -> scores (batch, types, start, end); those above 0 are spans."""

    def __init__(self, dim: int, types: int, head_dim: int, encoding: posenc.Encoding) -> None:
        super().__init__()
        self.encoding, self.scale = encoding, head_dim**-0.5
        self.project = nn.Sequential(nn.Linear(dim, 2 * types * head_dim), nn.Unflatten(-1, (2, types, head_dim)))

    def forward(self, x: Tensor) -> Tensor:
        positions = posenc.Positions.arange(x.shape[1], causal=True)
        q, k = self.encoding.rotate(*self.project(x).permute(2, 0, 3, 1, 4), positions)
        # the causal mask, transposed: a start sees the ends that are not before it
        return (q @ k.mT * self.scale).masked_fill(~positions.mask().mT, -torch.inf)


def loss(scores: Tensor, spans: Tensor) -> Tensor:
    """log(1 + sum of exp(score) over all other spans) + log(1 + sum of exp(-score) over the marked ones)."""
    terms = torch.stack((scores.masked_fill(spans, -torch.inf), (-scores).masked_fill(~spans, -torch.inf)))
    return nn.functional.softplus(terms.flatten(3).logsumexp(-1)).sum(0).mean()


def f1(encoding: posenc.Encoding, steps: int, seed: int) -> float:
    """F1 of the spans in new texts, after training. The embedding replaces an encoder."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(20, 64), GlobalPointer(64, 2, 32, encoding))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        tokens, spans = texts(32)
        optimizer.zero_grad()
        loss(model(tokens), spans).backward()
        optimizer.step()
    tokens, spans = texts(200)
    found = model(tokens) > 0
    return (2 * (found & spans).sum() / (found.sum() + spans.sum())).item()


def main(steps: int = 200, seed: int = 0) -> dict[str, float]:
    scores = {e.name: f1(e, steps, seed) for e in (posenc.Rotary(32), posenc.NoPE())}
    print("F1 of the spans: " + ", ".join(f"{score:.2f} with {name}" for name, score in scores.items()))
    return scores


if __name__ == "__main__":
    main()
