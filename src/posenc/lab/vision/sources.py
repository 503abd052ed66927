# SPDX-License-Identifier: Apache-2.0
"""Where images come from: drawn here, scikit-learn's digits, folders and datasets."""

import io
import math
import random
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.errors import InputError, first_line
from posenc.lab.data.sources import HUB, files, kind_of, rows_of_file, rows_of_hub
from posenc.lab.vision.pictures import Pictures, Pixels
from posenc.lab.vision.places import Places

Row = tuple[Any, Any]

DATA_IMAGES = 5000
"""How many images are drawn or read."""
LEAST_IMAGES, MOST_IMAGES = 10, 10**6
MOST_PIXELS = 2**26
"""An image of more is not opened."""
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


def load(
    source: str, *, image_column: str | None = None, label_column: str | None = None, data_images: int = DATA_IMAGES
) -> Pictures:
    """The images behind a name, and their classes.

    Args:
        source: "places" (`posenc.lab.vision.places`), "digits" (scikit-learn's), a folder with a sub-folder per class, a
            .parquet file or a folder of them, or "hf:NAME[:CONFIG]" for a Hugging Face dataset.
        image_column, label_column: of rows; None: the only ones that can be.
        data_images: how many are drawn, or read at most; of files they are spread over all, of datasets the first.

    Raises:
        InputError: no such images, fewer than two classes, an image that cannot be read, or a package that is missing.
    """
    if not LEAST_IMAGES <= data_images <= MOST_IMAGES:
        raise InputError(f"--data-images {data_images}: must lie between {LEAST_IMAGES} and {MOST_IMAGES}")
    if source in ("places", "digits"):
        for flag, column in (("--image-column", image_column), ("--label-column", label_column)):
            if column is not None:
                raise InputError(f"{flag} {column}: --data {source} has no columns; leave it out")
        return Places(data_images) if source == "places" else _digits(data_images)
    columns = _Columns(source, image_column, label_column)
    if source.startswith(HUB):
        return _of_rows(columns, islice(enumerate(rows_of_hub(source, columns, "hf:ylecun/mnist"), 1), data_images))
    found = list(files(source, "image", IMAGE_SUFFIXES | {".parquet"}))
    rows = [path for path in found if kind_of(path) == ".parquet"]
    if rows and len(rows) < len(found):
        raise InputError(f"--data {source}: has image files and rows ({rows[0].name}); give a folder of one kind")
    if rows:
        every = chain.from_iterable(rows_of_file(path, columns) for path in rows)
        return _of_rows(columns, _sampled(every, data_images))
    return _of_files(source, found, data_images)


def _digits(max_images: int) -> Pictures:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError("--data digits: needs scikit-learn: pip install 'posenc[vision]'") from None
    found = load_digits()
    grey = torch.from_numpy(found.images[:max_images]).mul(255 / 16).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(found.target[:max_images]).long()
    return Pixels("digits: 8 x 8 pixels, of scikit-learn", tuple("0123456789"), labels, list(grey))


def _of_files(source: str, found: Sequence[Path], max_images: int) -> Pictures:
    """Images in sub-folders: the first below the source names the class."""
    named = [(path.relative_to(source).parts[0], path) for path in found if len(path.relative_to(source).parts) > 1]
    if not named:
        raise InputError(f"--data {source}: give a folder with a sub-folder of images per class")
    spread = torch.linspace(0, len(named) - 1, min(max_images, len(named)), dtype=torch.float64).long()
    taken = [named[index] for index in spread.tolist()]
    return _pixels(source, [name for name, _ in taken], [_read(source, str(path), path) for _, path in taken])


class _Columns:
    """Chooses the columns of the images and of their classes. names: of classes that are numbers, where the data has some."""

    def __init__(self, source: str, image: str | None, label: str | None) -> None:
        self.source, self.image, self.label = source, image, label
        self.names: Sequence[str] = ()

    def __call__(self, types: Mapping[str, str], features: Mapping[str, Any]) -> Sequence[str]:
        images = [name for name, kind in types.items() if "binary" in kind]
        labels = [name for name, kind in types.items() if re.fullmatch(r"u?int\d+|(large_)?string(_view)?", kind)]
        found = (
            self._one("image", self.image, images, types),
            self._one("label", self.label, labels, types),
        )
        self.names = getattr(features.get(found[1]), "names", ())
        return found

    def _one(self, usual: str, asked: str | None, fitting: Sequence[str], types: Mapping[str, str]) -> str:
        column = asked or (usual if usual in fitting else fitting[0] if len(fitting) == 1 else "")
        if column not in fitting:
            there = ", ".join(f"{name} ({kind})" for name, kind in types.items())
            raise InputError(
                f"--{usual}-column {asked or ''}: {self.source} has the columns {there}; name the one with the {usual}s"
            )
        return column


def _sampled(rows: Iterable[Row], count: int) -> list[tuple[int, Row]]:
    """Some of the rows, always the same ones, each as likely as another: files are often sorted by class."""
    draw, kept = random.Random(0), list[tuple[int, Row]]()
    for number, row in enumerate(rows, 1):
        if number <= count:
            kept.append((number, row))
        elif (place := draw.randrange(number)) < count:
            kept[place] = (number, row)
    return sorted(kept, key=lambda numbered: numbered[0])


def _of_rows(columns: _Columns, rows: Iterable[tuple[int, Row]]) -> Pictures:
    """Images in numbered rows; a class is a number or a word."""
    images: list[Tensor] = []
    labels: list[str] = []
    for number, (image, label) in rows:
        content = image.get("bytes") if isinstance(image, dict) else image
        if content is None or label is None:
            missing = "image" if content is None else "class"
            raise InputError(f"--data {columns.source}: row {number} has no {missing}; leave it out")
        images.append(_read(columns.source, f"row {number}", io.BytesIO(content)))
        named = isinstance(label, int) and 0 <= label < len(columns.names)
        labels.append(columns.names[label] if named else str(label))
    return _pixels(columns.source, labels, images)


def _pixels(source: str, labels: Sequence[str], images: list[Tensor]) -> Pictures:
    classes = sorted(set(labels), key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
    if len(classes) < 2 or len(images) < LEAST_IMAGES:
        raise InputError(
            f"--data {source}: {len(images)} images of {len(classes)} classes; needs {LEAST_IMAGES} images of two classes"
        )
    number = {name: index for index, name in enumerate(classes)}
    return Pixels(source, tuple(classes), torch.tensor([number[label] for label in labels]), images)


def _read(source: str, name: str, file: Path | io.BytesIO) -> Tensor:
    """The middle square of an image, the way up that it says, (3, side, side) uint8."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError(f"--data {source}: needs Pillow to read images: pip install 'posenc[vision]'") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(file) as opened:
                if math.prod(opened.size) > MOST_PIXELS:
                    raise InputError(f"--data {source}: {name} has {math.prod(opened.size)} pixels; make it smaller")
                if opened.mode.startswith(("I", "F")):  # Pillow would cut them off at 255 instead of scaling them
                    raise InputError(f"--data {source}: {name} has more than 8 bits per channel; save it with 8")
                image = _upright(opened)
    except InputError:
        raise
    except Exception as error:  # of damaged files, Pillow's decoders raise whatever comes up
        reason = first_line(error)[:100]
        raise InputError(f"--data {source}: {name} cannot be read as an image ({reason}); leave it out") from None
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    return (
        torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
        .view(side, side, 3)
        .permute(2, 0, 1)
        .contiguous()
    )


def _upright(opened: Any) -> Any:
    """An image in RGB, the way up that it says. The rest of its EXIF is left alone: Pillow stumbles over damaged fields."""
    from PIL import ExifTags, ImageOps

    image = opened.convert("RGB")
    image.info.clear()
    with suppress(Exception):  # it says nothing, or is damaged as a whole
        image.getexif()[ExifTags.Base.Orientation] = opened.getexif()[ExifTags.Base.Orientation]
    return ImageOps.exif_transpose(image)
