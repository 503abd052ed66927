# SPDX-License-Identifier: Apache-2.0
"""Testing a trained model at other resolutions, paired: the same images at every size."""

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.encoding import Encoding
from posenc.encodings import GridALiBi, GridSinusoidal, GridTable, LogWindow, WindowTable
from posenc.encodings.rotary_axes import AxesRotary
from posenc.lab.experiment import Scores, Variant
from posenc.lab.parallel import world
from posenc.lab.vision.images import ImageBatch, Images
from posenc.positions import Positions
from posenc.transformer import TransformerBase

if TYPE_CHECKING:
    from posenc.lab.vision.experiment import ImageSettings

ACCURACY, SHUFFLED_LOSS, SHUFFLED_ACCURACY = "accuracy", "shuffled_loss", "shuffled_accuracy"
"""What is measured beside the loss; the last two with the patches shuffled, at the size of training."""
BATCH_TOKENS = 8192
RESCALED = (AxesRotary, GridALiBi, GridSinusoidal, LogWindow)
"""Encodings that take fractional positions."""


def variants(name: str, encoding: Encoding, settings: "ImageSettings") -> list[Variant]:
    """The model as trained, for which the outer patches of a larger image lie outside the grid of training, and the same
    weights fitted to the image: a table resized, or positions rescaled."""
    found, s = [Variant(name, lambda size: encoding)], settings
    if len(s.test_sizes) == 1 or encoding.needs_length:
        return found
    if isinstance(encoding, GridTable | WindowTable):
        if encoding.beyond == "resize":  # the first variant resizes already
            return found
        resizing = copy(encoding)  # of the same parameters
        resizing.beyond = "resize"
        found.append(Variant(f"{name} + resized", lambda size: resizing, trained=False))
    elif isinstance(encoding, RESCALED):
        positions = lambda size: rescaled(s.side_at(size), s.side)  # noqa: E731
        found.append(Variant(f"{name} + rescaled", lambda size: encoding, trained=False, positions=positions))
    return found


def rescaled(side: int, trained: int) -> Positions:
    """The patches of an image of side x side, where they lie on the grid of trained x trained stretched over the image."""
    grid = Positions.grid(side, side).q
    return Positions.from_ids((grid + 0.5) * (trained / side) - 0.5)


def shuffled(images: Tensor, patch_size: int, seed: int = 0) -> Tensor:
    """Images (n, channels, side, side) with their patches in another order, one drawn for each image."""
    n, channels, size, _ = images.shape
    side = size // patch_size
    order = torch.rand(n, side**2, generator=torch.Generator().manual_seed(seed)).argsort(1)
    patches = images.unflatten(3, (side, patch_size)).unflatten(2, (side, patch_size)).permute(0, 2, 4, 1, 3, 5)
    moved = patches.flatten(1, 2)[torch.arange(n)[:, None], order].unflatten(1, (side, side))
    return moved.permute(0, 3, 1, 4, 2, 5).reshape(n, channels, size, size)


@torch.no_grad()
def evaluate(
    model: TransformerBase,
    variant: Variant,
    images: Images,
    settings: "ImageSettings",
    on_batch: Callable[[int], None] = lambda tokens: None,
) -> Scores:
    """Test one variant on held-out images: loss and whether the class is right, at every size, and at that of training also
    with the patches shuffled; on_batch is called with the number of tokens read."""
    s = settings
    batches = {size: images.batch(size, torch.arange(s.images)) for size in s.test_sizes}
    moved = batches[s.image_size]._replace(images=shuffled(batches[s.image_size].images, s.patch_size))
    own = model.encoding
    try:
        scores = {size: _scores(model, variant, batch, size, s, on_batch) for size, batch in batches.items()}
        control = _scores(model, variant, moved, s.image_size, s, on_batch)
    finally:
        model.encoding = own
    return Scores(
        {size: losses for size, (losses, _) in scores.items()},
        extra={
            ACCURACY: {size: hits for size, (_, hits) in scores.items()},
            SHUFFLED_LOSS: {s.image_size: control[0]},
            SHUFFLED_ACCURACY: {s.image_size: control[1]},
        },
    )


def _scores(
    model: TransformerBase,
    variant: Variant,
    images: ImageBatch,
    size: int,
    settings: "ImageSettings",
    on_batch: Callable[[int], None],
) -> tuple[Tensor, Tensor]:
    """(n,): the loss of each image, and 1 where its class is right."""
    here, tokens = world(), settings.tokens_at(size)
    model.encoding, positions = variant.at(size).to(here.device), variant.positions(size)
    scores = []
    for which in torch.arange(images.scored).split(max(1, BATCH_TOKENS // tokens) * here.size):
        batch = images.rows(which)._replace(positions=positions)
        logits, targets, _ = here.forward(model, model.encoding, batch)
        losses = F.cross_entropy(logits, targets, reduction="none")
        both = torch.stack((losses, (logits.argmax(1) == targets).to(losses.dtype)), 1)
        scores.append(here.gather(both, len(which)))
        on_batch(len(which) * tokens)
    losses, hits = torch.cat(scores).unbind(1)
    return losses, hits
