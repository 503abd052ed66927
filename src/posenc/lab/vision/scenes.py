# SPDX-License-Identifier: Apache-2.0
"""The data set "places": drawn pictures whose class is where one shape is from another, at any resolution from one seed."""

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from posenc.errors import InputError

CELLS = 4
"""Cells per side; each contains at most one shape."""
LABELS = ("left", "right", "above", "below")
"""Where the triangle is, seen from the disc, along the axis on which they are further apart."""
COLOURS = ((0.95, 0.35, 0.2), (0.25, 0.5, 1.0), (0.3, 0.8, 0.35), (0.3, 0.8, 0.35))
"""Of the disc, the triangle, and two squares that distract."""
SHAPES = len(COLOURS)
BATCH = 256
"""Scenes that are drawn at a time."""
MARGIN = 0.45
"""How far a shape may reach from the middle of its cell, in cells."""


@dataclass(frozen=True, eq=False)
class Scenes:
    """n pictures that are drawn anew at each size, where `posenc.lab.vision.images.Pixels` are resized.

    cells: (n, SHAPES) the cell of each shape, counted row by row. radius, bright: (n, SHAPES), in cells, and 0 to 1.
    shift: (n, SHAPES, 2) x and y from the middle of the cell, in cells. ground: (n,) brightness of the background.
    """

    cells: Tensor
    radius: Tensor
    bright: Tensor
    shift: Tensor
    ground: Tensor

    name = "places: where the triangle is from the disc, drawn at every size"
    classes = LABELS
    channels = 3
    scaled = False

    @classmethod
    def drawn(cls, n: int, seed: int = 0) -> "Scenes":
        """n scenes; the first ones are the same for every n."""
        generator = torch.Generator().manual_seed(seed)

        def one() -> tuple[Tensor, Tensor]:
            while True:
                cells = torch.randperm(CELLS**2, generator=generator)[:SHAPES]
                if _offset(cells[None]).abs().diff().item():  # else neither axis is the one further apart
                    return cells, torch.rand(SHAPES * 4 + 1, generator=generator)

        cells, numbers = (torch.stack(each) for each in zip(*(one() for _ in range(n)), strict=True))
        radius, bright, x, y = numbers[:, 1:].unflatten(1, (4, SHAPES)).unbind(1)
        radius = 0.28 + 0.12 * radius
        shift = (torch.stack((x, y), -1) * 2 - 1) * (MARGIN - radius)[..., None]
        return cls(cells, radius, 0.7 + 0.3 * bright, shift, 0.1 + 0.3 * numbers[:, 0])

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(
            b"".join(getattr(self, field.name).numpy().tobytes() for field in fields(self))
        ).hexdigest()

    def at(self, size: int, which: Tensor) -> Tensor:
        """Some of the images, (len(which), 3, size, size) uint8."""
        some = ([getattr(self, field.name)[few] for field in fields(self)] for few in which.split(BATCH))
        return torch.cat([Scenes(*each).render(size) for each in some])

    @property
    def labels(self) -> Tensor:
        """(n,) indices into LABELS."""
        x, y = _offset(self.cells).unbind(1)
        return torch.where(x.abs() > y.abs(), 0 + (x > 0).long(), 2 + (y > 0).long())

    def render(self, size: int) -> Tensor:
        """(n, 3, size, size) uint8. Edges are smooth: a pixel has of a shape's colour what the shape covers of it.

        Raises:
            InputError: a size that is not a multiple of CELLS.
        """
        if size % CELLS:
            raise InputError(
                f"{CELLS} x {CELLS} cells need sizes that are multiples of {CELLS}, not {size}", data="places"
            )
        pixels = size // CELLS
        at = (torch.arange(pixels) + 0.5) / pixels - 0.5
        points = torch.stack((at.expand(pixels, -1), at[:, None].expand(-1, pixels)), -1)
        x, y = (points - self.shift[:, :, None, None]).unbind(-1)  # (n, SHAPES, pixels, pixels)
        covered = (0.5 - (_distance(x, y) - self.radius[..., None, None]) * pixels).clamp(0, 1)
        ground = self.ground[:, None, None, None, None]
        colour = (torch.tensor(COLOURS) * self.bright[..., None])[..., None, None]
        tiles = ((ground + (colour - ground) * covered[:, :, None]) * 255).round().to(torch.uint8)
        empty = (self.ground * 255).round().to(torch.uint8)
        image = empty[:, None, None, None, None].expand(-1, CELLS**2, 3, pixels, pixels).clone()
        image[torch.arange(len(image))[:, None], self.cells] = tiles
        rows = image.unflatten(1, (CELLS, CELLS)).permute(0, 3, 1, 4, 2, 5)
        return rows.reshape(-1, 3, size, size)


def _offset(cells: Tensor) -> Tensor:
    """(n, 2): columns and rows from the disc to the triangle."""
    disc, triangle = cells[:, 0], cells[:, 1]
    return torch.stack((triangle % CELLS - disc % CELLS, triangle // CELLS - disc // CELLS), -1)


def _distance(x: Tensor, y: Tensor) -> Tensor:
    """How large each shape would have to be to reach a point of its cell; y runs downwards."""
    disc = torch.hypot(x[:, :1], y[:, :1])
    triangle = torch.maximum(y[:, 1:2] / 0.8, (2 * x[:, 1:2].abs() - y[:, 1:2]) / 1.1)
    squares = torch.maximum(x[:, 2:].abs(), y[:, 2:].abs()) / 0.85
    return torch.cat((disc, triangle, squares), 1)
