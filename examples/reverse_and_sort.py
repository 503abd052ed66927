# SPDX-License-Identifier: Apache-2.0
"""An encoder and a decoder as in Vaswani et al. 2017: LayerNorm behind each sum, cross-attention, sinusoidal codes.

It learns to write eight different letters backwards, which needs the encoder to know places, or sorted, which does not: a
set has one sorted order. Without codes only sorting is learned.
"""

import torch
from torch.nn import functional as F

from posenc import Transformer, TransformerConfig

LETTERS, LENGTH = 16, 8
START = LETTERS  # one more token


def texts(count: int, task: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and what is to be written, (count, LENGTH) each."""
    source = torch.rand(count, LETTERS).argsort(-1)[:, :LENGTH]
    return source, source.sort().values if task == "sort" else source.flip(1)


def accuracy(encoding: str, task: str, steps: int, seed: int) -> float:
    """The share of letters of new texts that are written right, after training."""
    torch.manual_seed(seed)
    shape = {"dim": 64, "num_layers": 1, "norm": "layer", "norm_first": False}
    encoder = Transformer(TransformerConfig(LETTERS, causal=False, **shape), encoding)
    decoder = Transformer(TransformerConfig(LETTERS + 1, cross_attention=True, **shape), encoding)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    for _ in range(steps):
        source, target = texts(64, task)
        read = F.pad(target[:, :-1], (1, 0), value=START)
        logits = decoder(read, memory=decoder.memory(encoder.features(source)))
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        optimizer.step()
    source, target = texts(500, task)
    start = torch.full((500, 1), START)
    with torch.no_grad():
        written = decoder.generate(start, LENGTH, memory=decoder.memory(encoder.features(source)))
    return (written[:, 1:] == target).float().mean().item()


def main(steps: int = 150, seed: int = 0) -> dict[str, dict[str, float]]:
    found = {e: {task: accuracy(e, task, steps, seed) for task in ("reverse", "sort")} for e in ("sinusoidal", "none")}
    for name, right in found.items():
        print(f"{name:10} " + ", ".join(f"{task}: {share:.0%} of the letters right" for task, share in right.items()))
    return found


if __name__ == "__main__":
    main()
