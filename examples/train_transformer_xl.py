# SPDX-License-Identifier: Apache-2.0
"""Transformer-XL's training: segments of a text one after another, each with the keys and values of those before it, and
gradients that end at its beginning.

    python examples/train_transformer_xl.py
    python examples/train_transformer_xl.py rope 500

`KVCache.detach()` cuts the gradients between two segments, so that memory for a step is that of one segment; without it the second
backward pass raises "Trying to backward through the graph a second time". Printed is the loss on
held-out text, nats per byte, by segment: with the memory of the earlier segments, and without one. 500 is the number of steps.
"""

import sys
from pydoc_data.topics import topics

import torch
from torch.nn import functional as F

import posenc

SEGMENT, SEGMENTS, ROWS = 32, 4, 16


def losses(model: posenc.Transformer, text: torch.Tensor, *, memory: bool, train: bool) -> list[float]:
    """Of each segment of (rows, SEGMENT * SEGMENTS + 1) bytes; train: with a backward pass in each."""
    cache, found = posenc.KVCache(), []
    for start in range(0, SEGMENT * SEGMENTS, SEGMENT):
        tokens, targets = text[:, start : start + SEGMENT], text[:, start + 1 : start + SEGMENT + 1]
        if not memory:
            cache = posenc.KVCache()
        logits = model(tokens, positions=cache.positions(SEGMENT), cache=cache)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        if train:
            (loss / SEGMENTS).backward()
            cache.detach()
        found.append(loss.item())
    return found


def main(encoding: str = "transformer_xl", steps: int | str = 300, seed: int = 0) -> tuple[list[float], list[float]]:
    """The losses by segment with a memory, and without."""
    torch.manual_seed(seed)
    text = torch.tensor(list("\n".join(topics.values()).encode()), dtype=torch.uint8)
    train, held_out = text.tensor_split([len(text) * 9 // 10])
    shape = {"dim": 96, "num_heads": 4, "num_layers": 2}
    positions = posenc.create(encoding, **shape, max_positions=SEGMENT * SEGMENTS, causal=True)
    model = posenc.Transformer(posenc.TransformerConfig(256, **shape), positions)
    optimizer = torch.optim.AdamW(posenc.parameter_groups(model, lr=3e-3))

    def passages(part: torch.Tensor, rows: int) -> torch.Tensor:
        return part[
            torch.randint(len(part) - SEGMENT * SEGMENTS, (rows, 1)) + torch.arange(SEGMENT * SEGMENTS + 1)
        ].long()

    for step in range(int(steps)):
        now = losses(model, passages(train, ROWS), memory=True, train=True)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step:4}: {sum(now) / SEGMENTS:.2f}")
    model.eval().requires_grad_(False)
    test = passages(held_out, 128)
    found = losses(model, test, memory=True, train=False), losses(model, test, memory=False, train=False)
    for name, each in zip(("with a memory", "without"), found, strict=True):
        print(f"{name:14}" + "".join(f"{loss:6.2f}" for loss in each))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
