# SPDX-License-Identifier: Apache-2.0
"""Images with their classes: before they have a size, and as a corpus of those that train and those that are held out."""

import base64
import hashlib
import json
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.errors import InputError
from posenc.lab.data.text import mapped
from posenc.lab.machine import free_bytes
from posenc.lab.vision.config import ImageSettings
from posenc.positions import Positions

HELD_OUT = 5
"""One image in so many of each class is held out."""
SHOWN = 6
"""Held-out images that the report shows."""


class Pictures(Protocol):
    """Images that can be had at any size.

    name, classes: of the data. labels: (n,) indices into classes. channels: 1 for grey, 3 for colours. scaled: from pixels,
    rather than drawn anew at each size. digest: equal for equal images, whatever their size.
    """

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def channels(self) -> int: ...
    @property
    def scaled(self) -> bool: ...
    @property
    def digest(self) -> str: ...

    def at(self, size: int, which: Tensor) -> Tensor:
        """Some of the images, (len(which), channels, size, size) uint8."""


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images that are given, each uint8 of (channels, side, side): other sizes are bilinear, smoothed where they shrink."""

    name: str
    classes: tuple[str, ...]
    labels: Tensor
    images: list[Tensor]
    scaled = True

    @property
    def channels(self) -> int:
        return len(self.images[0])

    @cached_property
    def digest(self) -> str:
        found = hashlib.sha256(json.dumps(self.classes).encode() + self.labels.numpy().tobytes())
        for image in self.images:
            found.update(f"{tuple(image.shape)}".encode() + image.numpy().tobytes())
        return found.hexdigest()

    def at(self, size: int, which: Tensor) -> Tensor:
        return torch.cat([_scaled(self.images[i], size) for i in which.tolist()])


def _scaled(image: Tensor, size: int) -> Tensor:
    if image.shape[-1] == size:
        return image[None]
    found = F.interpolate(image[None].float(), size=(size, size), mode="bilinear", antialias=True)
    return found.round().clamp(0, 255).to(torch.uint8)


class ImageBatch(NamedTuple):
    """Images of one step, (batch, channels, side, side) uint8, and their classes, (batch,); see `posenc.lab.task.Batch`."""

    images: Tensor
    targets: Tensor
    positions: Positions | None = None

    def rows(self, which: slice | Tensor) -> "ImageBatch":
        return ImageBatch(self.images[which], self.targets[which])

    def to(self, device: torch.device) -> "ImageBatch":
        return ImageBatch(self.images.to(device), self.targets.to(device))

    @property
    def inputs(self) -> Tensor:
        """The images between -1 and 1."""
        return self.images.float() / 127.5 - 1

    @property
    def scored(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class Images:
    """Images at one or several sizes. sizes: side -> (n, channels, side, side) uint8. labels: (n,)."""

    sizes: dict[int, Tensor]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, size: int, which: Tensor) -> ImageBatch:
        return ImageBatch(self.sizes[size][which], self.labels[which])


@dataclass(frozen=True, eq=False)
class ImageCorpus:
    """Images to train on, at the size of training, and held-out ones, at every size that is tested.

    digest: of the images before they had a size. held_out: how many there are; the tested ones are spread over them.
    """

    name: str
    digest: str
    classes: tuple[str, ...]
    channels: int
    scaled: bool
    held_out: int
    train: Images
    test: Images

    @classmethod
    def of(cls, pictures: Pictures, settings: ImageSettings) -> "ImageCorpus":
        """Cut in two, always alike: every fifth image of each class is held out.

        Raises:
            InputError: more than the memory that is free.
        """
        by_class = pictures.labels.argsort(stable=True)
        every_fifth = torch.arange(len(by_class)) % HELD_OUT == HELD_OUT - 1
        held_out, train = by_class[every_fifth].sort().values, by_class[~every_fifth].sort().values
        count = min(settings.images, len(held_out))
        pixels = len(train) * settings.image_size**2 + count * sum(size**2 for size in settings.test_sizes)
        needed, free = pixels * pictures.channels, free_bytes(torch.device("cpu"))
        if needed > free:
            raise InputError(
                f"--image-size {settings.image_size}: the images need {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are "
                "free; give smaller --image-size and --test-sizes, or fewer --data-images"
            )
        tested = held_out[torch.linspace(0, len(held_out) - 1, count, dtype=torch.float64).long()]
        return cls(
            pictures.name, pictures.digest, pictures.classes, pictures.channels, pictures.scaled, len(held_out),
            *(
                Images({size: pictures.at(size, which) for size in sizes}, pictures.labels[which])
                for which, sizes in ((train, (settings.image_size,)), (tested, settings.test_sizes))
            ),
        )  # fmt: skip

    def write(self, folder: Path) -> None:
        """Put the images where other processes can `read` them."""
        said = {name: getattr(self, name) for name in ("name", "digest", "classes", "channels", "scaled", "held_out")}
        for part in ("train", "test"):
            images: Images = getattr(self, part)
            for size, pixels in images.sizes.items():
                pixels.numpy().tofile(folder / f"{part}.{size}")
            images.labels.numpy().tofile(folder / f"{part}.labels")
            said[part] = list(images.sizes)
        (folder / "corpus.json").write_text(json.dumps(said), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "ImageCorpus":
        """The images that another process wrote, mapped into memory rather than loaded."""
        said = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        for part in ("train", "test"):
            shape = {size: (-1, said["channels"], size, size) for size in said[part]}
            sizes = {n: mapped(folder / f"{part}.{n}", torch.uint8).view(shape[n]) for n in shape}
            said[part] = Images(sizes, mapped(folder / f"{part}.labels", torch.long))
        return cls(**said | {"classes": tuple(said["classes"])})

    @property
    def chance(self) -> float:
        """The accuracy of always naming the class that most of the tested images are of."""
        return int(self.test.labels.bincount().max()) / len(self.test)

    def facts(self) -> dict[str, object]:
        """What results say of the images."""
        return {
            "name": self.name,
            "sha256": self.digest,
            "classes": list(self.classes),
            "channels": self.channels,
            "scaled": self.scaled,
            "train_images": len(self.train),
            "held_out_images": self.held_out,
            "test_images": len(self.test),
            "chance": round(self.chance, 6),
            "samples": [
                {"class": self.classes[int(label)], "png": base64.b64encode(png(image)).decode()}
                for image, label in zip(next(iter(self.train.sizes.values())), self.train.labels[:SHOWN], strict=False)
            ],
        }


def png(image: Tensor) -> bytes:
    """An image, (1 or 3, height, width) uint8, as a PNG file."""
    channels, height, width = image.shape
    rows = torch.cat((image.new_zeros(height, 1), image.permute(1, 2, 0).reshape(height, -1)), 1)  # 0: no filter
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.numpy().tobytes(), 9)), (b"IEND", b""))
    framed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)
