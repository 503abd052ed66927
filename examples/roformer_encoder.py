# SPDX-License-Identifier: Apache-2.0
"""A RoFormer-style encoder (Su et al. 2021): bidirectional, interleaved rotation, trained to fill in hidden tokens.

Each text is a random motif of six different tokens, repeated four times, and each token of the motif is hidden once. An
encoder that sees distances can copy it from the next motif. One that does not sees a bag: three of each token, and six
equal masks, which get the same guess, right for one of the six.
"""

import torch
from torch.nn import functional as F

import posenc
from posenc.lab.transformer import Transformer, TransformerConfig

VOCAB, MOTIF, REPEATS = 24, 6, 4
MASK = VOCAB  # one more token


def texts(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts, and the same with a quarter of the tokens hidden: (count, MOTIF * REPEATS) each."""
    full = torch.rand(count, VOCAB).argsort(-1)[:, :MOTIF].repeat(1, REPEATS)
    hidden = F.one_hot(torch.randint(REPEATS, (count, MOTIF)), REPEATS).mT.flatten(1).bool()
    return full, full.masked_fill(hidden, MASK)


def accuracy(encoding: str, steps: int = 120, seed: int = 0) -> float:
    """The share of hidden tokens predicted in new texts, after training with an encoding."""
    torch.manual_seed(seed)
    config = TransformerConfig(VOCAB + 1, dim=64, num_layers=2, num_heads=2, causal=False)
    model = Transformer(config, posenc.create(encoding, dim=64, num_heads=2))
    optimizer = torch.optim.AdamW(posenc.parameter_groups(model, lr=3e-3))
    for _ in range(steps):
        full, masked = texts(32)
        hidden = masked == MASK
        loss = F.cross_entropy(model(masked)[hidden], full[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    full, masked = texts(500)
    hidden = masked == MASK
    with torch.no_grad():
        return (model(masked)[hidden].argmax(-1) == full[hidden]).float().mean().item()


def main(steps: int = 120, seed: int = 0) -> dict[str, float]:
    found = {name: accuracy(name, steps, seed) for name in ("rope:layout=interleaved", "none")}
    print("hidden tokens found: " + ", ".join(f"{share:.0%} with {name}" for name, share in found.items()))
    return found


if __name__ == "__main__":
    main()
