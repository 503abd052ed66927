# SPDX-License-Identifier: Apache-2.0
"""A small vision Transformer learns in which direction a blue square lies from a red one, under encodings of two axes, and is
tested at its training size and at twice that size.

Only positions tell: without them all classes have the same patches. At the larger size ids beyond the training grid occur, so
`rescaled` puts the patches on the training grid, with fractional ids.

    python examples/small_vit.py [ENCODING ...]
"""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc

PATCH, SIDE = 4, 4  # pixels of a patch's side; patches of a training image's side


def scenes(count: int) -> tuple[Tensor, Tensor]:
    """Up to `count` images (n, 3, 16, 16) of noise with a red and a blue square, and their class: left, right, above, below."""
    red, step, kind = torch.randint(SIDE, (2, count)), torch.randint(1, SIDE, (count,)), torch.randint(4, (count,))
    rows, axis, blue = torch.arange(count), kind // 2, red.clone()
    blue[axis, rows] = (red[axis, rows] + (kind % 2 * 2 - 1) * step).clamp(0, SIDE - 1)
    apart, cells = (blue != red).any(0), 0.2 * torch.rand(count, 3, SIDE, SIDE)
    cells[rows, 0, red[1], red[0]] = cells[rows, 2, blue[1], blue[0]] = 1.0
    return F.interpolate(cells[apart], scale_factor=float(PATCH)), kind[apart]


def rescaled(side: int) -> posenc.Positions:
    """Patches of an image of side x side patches, on the training grid stretched over the image."""
    return posenc.Positions.from_ids((posenc.Positions.grid(side, side).q + 0.5) * (SIDE / side) - 0.5)


def train(name: str, steps: int = 140, side: int = SIDE) -> posenc.VisionTransformer:
    """A model of two layers of width 64, trained on up to 64 images of side x side patches a step."""
    torch.manual_seed(0)
    encoding = posenc.create(name, dim=64, num_heads=4, num_layers=2, grid=(side, side), causal=False)
    model = posenc.VisionTransformer(posenc.VisionConfig(4, patch_size=PATCH, dim=64, num_layers=2), encoding)
    optimizer = torch.optim.AdamW(posenc.parameter_groups(model, lr=3e-3))
    for _ in range(steps):
        images, kind = scenes(64)
        F.cross_entropy(model(F.interpolate(images, scale_factor=side / SIDE)), kind).backward()
        optimizer.step(), optimizer.zero_grad()
    return model


def main(names: Sequence[str], steps: int = 140) -> dict[str, list[float]]:
    """Shares of right answers by encoding: at the training size, at twice that, and there with rescaled ids."""
    scores = {}
    for name in names:
        model, (images, kind) = train(name, steps), scenes(500)
        larger = F.interpolate(images, scale_factor=2.0)
        with torch.no_grad():
            logits = model(images), model(larger), model(larger, rescaled(2 * SIDE))
        scores[name] = [(each.argmax(1) == kind).double().mean().item() for each in logits]
        print(
            f"{name}: {scores[name][0]:.0%} right, twice the size {scores[name][1]:.0%}, rescaled {scores[name][2]:.0%}"
        )
    return scores


if __name__ == "__main__":
    main(sys.argv[1:] or ("none", "axial_rope", "grid_sinusoidal"))
