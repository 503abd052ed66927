# SPDX-License-Identifier: Apache-2.0
"""An encoder and a decoder as in Vaswani et al. 2017: LayerNorm behind each sum, cross-attention, sinusoidal codes.

It learns to write its source backwards, which needs the encoder to know places, or sorted, which does not: a set of tokens
has one sorted order. Without codes only sorting is learned. Sources are of different lengths, padded on the right.
"""

import torch
from torch.nn import functional as F

from posenc import Positions, Transformer, TransformerConfig

LETTERS, LONGEST = 16, 8
PAD, START = LETTERS, LETTERS + 1  # two more tokens; PAD also sorts last, and ends a text


def texts(count: int, task: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources of 4 to LONGEST letters and what is to be written, (count, LONGEST + 1) each, ended by PAD."""
    length = torch.randint(4, LONGEST + 1, (count, 1))
    place = torch.arange(LONGEST + 1)
    source = torch.randint(LETTERS, (count, LONGEST + 1)).where(place < length, PAD)
    if task == "sort":
        return source, source.sort().values
    return source, source.gather(1, (length - 1 - place).clamp(min=0)).where(place < length, PAD)


def accuracy(encoding: str, task: str, steps: int, seed: int) -> float:
    """The share of new texts that are written without a mistake, after training."""
    torch.manual_seed(seed)
    shape = {"dim": 64, "num_layers": 2, "norm": "layer", "norm_first": False}
    encoder = Transformer(TransformerConfig(LETTERS + 2, causal=False, **shape), encoding)
    decoder = Transformer(TransformerConfig(LETTERS + 2, cross_attention=True, **shape), encoding)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    for step in range(steps + 1):
        source, target = texts(64 if step < steps else 500, task)
        at = Positions.from_mask(source != PAD)
        memory = decoder.memory(encoder.features(source, at), at)
        start = torch.full_like(target[:, :1], START)
        if step == steps:
            return (decoder.generate(start, LONGEST + 1, memory=memory)[:, 1:] == target).all(1).float().mean().item()
        logits = decoder(torch.cat((start, target[:, :-1]), 1), memory=memory)
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
        optimizer.step()


def main(steps: int = 300, seed: int = 0) -> dict[str, dict[str, float]]:
    found = {e: {task: accuracy(e, task, steps, seed) for task in ("reverse", "sort")} for e in ("sinusoidal", "none")}
    for name, right in found.items():
        print(f"{name:10} " + ", ".join(f"{task}: {share:.0%} without a mistake" for task, share in right.items()))
    return found


if __name__ == "__main__":
    main()
