# SPDX-License-Identifier: Apache-2.0
"""Images with their classes: read from folders and datasets or drawn, and split into training and held-out images."""

import base64
import hashlib
import io
import json
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.errors import InputError
from posenc.lab.data.sources import HUB, STRINGS, column, files, kind_of, rows_of_file, rows_of_hub
from posenc.lab.machine import free_bytes
from posenc.lab.messages import first_line
from posenc.lab.vision.scenes import Scenes
from posenc.positions import Positions

DATA_IMAGES = 5000
"""How many images are drawn or read by default."""
LEAST_IMAGES, MOST_IMAGES = 10, 10**6
MOST_PIXELS = 2**26
"""Of an image, before anything of its size is allocated."""
HELD_OUT = 5
"""One image in so many of each class is held out."""
SHOWN = 6
"""Images that the report shows."""
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images of a given size, each uint8 of (channels, side, side); labels: (n,) indices into classes. Other sizes are
    bilinear, smoothed where they shrink. digest: equal for equal images, whatever size is asked for."""

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
        digest = hashlib.sha256(json.dumps(self.classes).encode() + self.labels.numpy().tobytes())
        for image in self.images:
            digest.update(f"{tuple(image.shape)}".encode() + image.numpy().tobytes())
        return digest.hexdigest()

    def at(self, size: int, which: Tensor) -> Tensor:
        """Some of the images, (len(which), channels, size, size) uint8."""
        return torch.cat([_resized(self.images[i], size) for i in which.tolist()])


def _resized(image: Tensor, size: int) -> Tensor:
    if image.shape[-1] == size:
        return image[None]
    pixels = F.interpolate(image[None].float(), size=(size, size), mode="bilinear", antialias=True)
    return pixels.round().clamp(0, 255).to(torch.uint8)


Pictures: TypeAlias = Pixels | Scenes
"""Images that exist at any size."""


class ImageBatch(NamedTuple):
    """Images of one step, (batch, channels, side, side) uint8, and their classes, (batch,); see `posenc.lab.experiment.Batch`.
    positions: the same for every image."""

    images: Tensor
    targets: Tensor
    positions: Positions | None = None

    def to(self, device: torch.device) -> "ImageBatch":
        positions = None if self.positions is None else self.positions.to(device)
        return ImageBatch(self.images.to(device), self.targets.to(device), positions)

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

    digest: of the images before they were resized. held_out: how many there are; the tested ones are spread over them.
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
    def of(cls, pictures: Pictures, image_size: int, test_sizes: Sequence[int], images: int) -> "ImageCorpus":
        """Cut in two, always alike: every fifth image of each class is held out.

        image_size, test_sizes: sides in pixels, to train on and to test. images: how many are tested.

        Raises:
            InputError: more than the memory that is free.
        """
        by_class = pictures.labels.argsort(stable=True)
        every_fifth = torch.arange(len(by_class)) % HELD_OUT == HELD_OUT - 1
        held_out, train = by_class[every_fifth].sort().values, by_class[~every_fifth].sort().values
        count = min(images, len(held_out))
        pixels = len(train) * image_size**2 + count * sum(size**2 for size in test_sizes)
        needed, free = pixels * pictures.channels, free_bytes(torch.device("cpu"))
        if needed > free:
            raise InputError(
                f"the images need {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free",
                "give a smaller image_size and test_sizes, or fewer data_images",
                image_size=image_size,
            )
        tested = held_out[torch.linspace(0, len(held_out) - 1, count, dtype=torch.float64).long()]
        parts = (
            Images({size: pictures.at(size, which) for size in sizes}, pictures.labels[which])
            for which, sizes in ((train, (image_size,)), (tested, test_sizes))
        )
        p = pictures
        return cls(p.name, p.digest, p.classes, p.channels, p.scaled, len(held_out), *parts)

    @property
    def chance(self) -> float:
        """The accuracy of always naming the most frequent class of the tested images."""
        return int(self.test.labels.bincount().max()) / len(self.test)

    def facts(self) -> dict[str, object]:
        """The data, as results.json describes them."""
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
    from PIL import Image

    Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy()).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


# -------------------------------------------------------------------- where images come from


def load(
    source: str, *, image_column: str | None = None, label_column: str | None = None, data_images: int = DATA_IMAGES
) -> Pictures:
    """The images behind a name, and their classes.

    Args:
        source: "places" (`posenc.lab.vision.scenes`), "digits" (scikit-learn's), a folder with a sub-folder per class, a
            .parquet file or a folder of them, or "hf:NAME[:CONFIG]" for a Hugging Face dataset.
        image_column, label_column: of rows; None: "image" and "label", or the only ones of a fitting type.
        data_images: how many are drawn, or read at most; of files they are spread over all, of datasets the first.

    Raises:
        InputError: no such images, fewer than two classes, an image that cannot be read, or a package that is missing.
    """
    if not LEAST_IMAGES <= data_images <= MOST_IMAGES:
        raise InputError(f"must lie between {LEAST_IMAGES} and {MOST_IMAGES}", data_images=data_images)
    if source in ("places", "digits"):
        for name, column in (("image_column", image_column), ("label_column", label_column)):
            if column is not None:
                raise InputError(f"data={source!r} has no columns", "leave it out", argument=name, value=column)
        return Scenes.drawn(data_images) if source == "places" else _digits(data_images)
    columns = _Columns(source, image_column, label_column)
    if source.startswith(HUB):
        return _of_rows(columns, islice(enumerate(rows_of_hub(source, columns), 1), data_images))
    paths = files(source, IMAGE_SUFFIXES | {".parquet"})
    rows = [path for path in paths if kind_of(path) == ".parquet"]
    if rows and len(rows) < len(paths):
        raise InputError(f"has image files and rows ({rows[0].name})", "give a folder of one kind", data=source)
    if rows:
        return _of_rows(
            columns, _sampled(chain.from_iterable(rows_of_file(path, columns) for path in rows), data_images)
        )
    return _of_files(source, paths, data_images)


def _digits(max_images: int) -> Pixels:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError("needs scikit-learn: pip install 'posenc[vision]'", data="digits") from None
    digits = load_digits()
    grey = torch.from_numpy(digits.images[:max_images]).mul(255 / 16).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(digits.target[:max_images]).long()
    return Pixels("digits: 8 x 8 pixels, of scikit-learn", tuple("0123456789"), labels, list(grey))


def _of_files(source: str, paths: Sequence[Path], max_images: int) -> Pixels:
    """Images in sub-folders: the first below the source names the class."""
    named = [(path.relative_to(source).parts[0], path) for path in paths if len(path.relative_to(source).parts) > 1]
    if not named:
        raise InputError("give a folder with a sub-folder of images per class", data=source)
    spread = torch.linspace(0, len(named) - 1, min(max_images, len(named)), dtype=torch.float64).long()
    chosen = [named[index] for index in spread.tolist()]
    return _pixels(source, [name for name, _ in chosen], [_read(source, str(path), path) for _, path in chosen])


class _Columns:
    """Chooses the columns of the images and of their classes. names: of classes that are numbers, where the data has some."""

    def __init__(self, source: str, image: str | None, label: str | None) -> None:
        self.source, self.image, self.label = source, image, label
        self.names: Sequence[str] = ()

    def __call__(self, types: Mapping[str, str], features: Mapping[str, Any]) -> Sequence[str]:
        image = column(self.source, "image_column", self.image, r".*binary.*", types)
        label = column(self.source, "label_column", self.label, rf"u?int\d+|{STRINGS}", types)
        self.names = getattr(features.get(label), "names", ())
        return image, label


def _sampled(rows: Iterable[Any], count: int) -> list[tuple[int, Any]]:
    """Some of the rows, always the same ones, each as likely as another: files are often sorted by class."""
    draw, sample = random.Random(0), list[tuple[int, Any]]()
    for number, row in enumerate(rows, 1):
        if number <= count:
            sample.append((number, row))
        elif (index := draw.randrange(number)) < count:
            sample[index] = (number, row)
    return sorted(sample, key=lambda numbered: numbered[0])


def _of_rows(columns: _Columns, rows: Iterable[tuple[int, Any]]) -> Pixels:
    """Images in numbered rows; a class is a number or a word."""
    images: list[Tensor] = []
    labels: list[str] = []
    for number, (image, label) in rows:
        content = image.get("bytes") if isinstance(image, dict) else image
        if content is None or label is None:
            missing = "image" if content is None else "class"
            raise InputError(f"row {number} has no {missing}", "leave it out", data=columns.source)
        images.append(_read(columns.source, f"row {number}", io.BytesIO(content)))
        named = isinstance(label, int) and 0 <= label < len(columns.names)
        labels.append(columns.names[label] if named else str(label))
    return _pixels(columns.source, labels, images)


def _pixels(source: str, labels: Sequence[str], images: list[Tensor]) -> Pixels:
    classes = sorted(set(labels), key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
    if len(classes) < 2 or len(images) < LEAST_IMAGES:
        raise InputError(
            f"{len(images)} images of {len(classes)} classes; needs {LEAST_IMAGES} images of two classes", data=source
        )
    number = {name: index for index, name in enumerate(classes)}
    return Pixels(source, tuple(classes), torch.tensor([number[label] for label in labels]), images)


def _read(source: str, name: str, file: Path | io.BytesIO) -> Tensor:
    """The middle square of an image, rotated by its EXIF orientation, (3, side, side) uint8."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("needs Pillow to read images: pip install 'posenc[vision]'", data=source) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(file) as opened:  # which reads the header alone
                if opened.width * opened.height > MOST_PIXELS:
                    raise InputError(
                        f"{name} is {opened.width} x {opened.height} pixels",
                        f"give one of at most {MOST_PIXELS:,} pixels",
                        data=source,
                    )
                if opened.mode.startswith(("I", "F")):  # Pillow would clamp them to 255 instead of scaling them
                    raise InputError(f"{name} has more than 8 bits per channel", "save it with 8", data=source)
                image = _upright(opened)
    except InputError:
        raise
    except Exception as error:  # of damaged files, Pillow's decoders raise errors of any kind
        reason = first_line(error)[:100]
        raise InputError(f"{name} cannot be read as an image ({reason})", "leave it out", data=source) from error
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = bytearray(image.crop((left, top, left + side, top + side)).tobytes())
    return torch.frombuffer(square, dtype=torch.uint8).view(side, side, 3).permute(2, 0, 1).contiguous()


def _upright(opened: Any) -> Any:
    """An image in RGB, rotated by its EXIF orientation. The rest of its EXIF is dropped: Pillow fails on damaged fields."""
    from PIL import ExifTags, ImageOps

    image = opened.convert("RGB")
    image.info.clear()
    with suppress(Exception):  # it has no orientation, or no readable EXIF
        image.getexif()[ExifTags.Base.Orientation] = opened.getexif()[ExifTags.Base.Orientation]
    return ImageOps.exif_transpose(image)
