# SPDX-License-Identifier: Apache-2.0
"""A small vision Transformer learns in which direction a blue square lies from a red one, under encodings of two axes, and is
tested at its training size and at twice that size.

Only positions tell: without them all classes have the same patches. At the larger size ids beyond the training grid occur, so
`rescaled` puts the patches on the training grid, with fractional ids.

    python examples/small_vit.py [ENCODING ...]
"""

import sys

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc

PATCH, SIDE = 4, 4  # pixels of a patch's side; patches of a training image's side


def scenes(count: int) -> tuple[Tensor, Tensor]:
    """Up to `count` images (n, 3, 16, 16) of noise with a red and a blue square, and their class: left, right, above, below."""
    red, step = torch.randint(SIDE, (2, count)), torch.randint(1, SIDE, (count,))
    kind = torch.randint(4, (count,))
    axis, sign = kind // 2, kind % 2 * 2 - 1
    blue = red.clone()
    blue[axis, torch.arange(count)] = (red[axis, torch.arange(count)] + sign * step).clamp(0, SIDE - 1)
    kept = (blue != red).any(0)
    cells = 0.2 * torch.rand(count, 3, SIDE, SIDE)
    for channel, (x, y) in ((0, red), (2, blue)):
        cells[torch.arange(count), channel, y, x] = 1.0
    return F.interpolate(cells[kept], scale_factor=float(PATCH)), kind[kept]


def rescaled(side: int) -> posenc.Positions:
    """Patches of an image of side x side patches, on the training grid stretched over the image."""
    ids = posenc.Positions.grid(side, side).q
    return posenc.Positions.from_ids((ids + 0.5) * (SIDE / side) - 0.5)


def train(name: str, steps: int = 140, side: int = SIDE) -> posenc.VisionTransformer:
    """A model of two layers of width 64, trained on up to 64 images of side x side patches a step."""
    torch.manual_seed(0)
    config = posenc.VisionConfig(4, patch_size=PATCH, dim=64, num_layers=2)
    encoding = posenc.create(name, dim=64, num_heads=4, num_layers=2, grid=(side, side), causal=False)
    model = posenc.VisionTransformer(config, encoding)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        images, kind = scenes(64)
        optimizer.zero_grad()
        F.cross_entropy(model(F.interpolate(images, scale_factor=side / SIDE)), kind).backward()
        optimizer.step()
    return model


@torch.no_grad()
def main(
    names: tuple[str, ...] = ("none", "axial_rope", "grid_sinusoidal"), steps: int = 140
) -> dict[str, list[float]]:
    scores = {}
    for name in names:
        with torch.enable_grad():
            model = train(name, steps)
        images, kind = scenes(500)
        larger = F.interpolate(images, scale_factor=2.0)
        logits = model(images), model(larger), model(larger, rescaled(2 * SIDE))
        scores[name] = [(each.argmax(1) == kind).double().mean().item() for each in logits]
        print(
            f"{name}: {scores[name][0]:.0%} right, at twice the size {scores[name][1]:.0%}, rescaled {scores[name][2]:.0%}"
        )
    return scores


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or ("none", "axial_rope", "grid_sinusoidal"))
