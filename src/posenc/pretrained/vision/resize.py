# SPDX-License-Identifier: Apache-2.0
"""Another image size for a pretrained vision model, in place, and back."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from posenc.checks import checked, shown
from posenc.errors import InputError, on_one_line
from posenc.pretrained.attach import Absent
from posenc.pretrained.vision.libraries import HuggingFace, Library, library_of, required
from posenc.pretrained.vision.parts import (
    FUNCTION,
    LEARNED,
    OFFSETS,
    ROTATION,
    Part,
    fixed_parts,
    remade,
    scales_offsets,
    table_kind,
    window_of,
)
from posenc.pretrained.vision.tables import Grid

RECORD = "_posenc_resized"
"""Attribute of a resized model that holds what it was."""

LARGEST = 2**13
"""Pixels of an image's side: more than any model is used at."""

PLAIN = (bool, int, float, str, tuple, list, type(None))
"""Attributes of modules that may say a size."""


@dataclass(frozen=True)
class Resizing:
    """What `resize` did to a model.

    model_type: config.model_type, or the class of a timm model. old, new: (height, width) of images, in pixels. parts: all
    that knows places. verified: how, in words; () where it was not asked for. difference: the largest one between what the
    resized model gives for an image and what its own library's interpolation gives, None where that has none. notes: what
    else is worth knowing.
    """

    library: str
    model_type: str
    old: Grid
    new: Grid
    parts: tuple[Part, ...]
    verified: tuple[str, ...] = ()
    difference: float | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        head = f"{self.model_type} of {self.library}: images of {by(self.old)} -> {by(self.new)}"
        return "\n  ".join([head, *grouped(self.parts), *self.verified, *self.notes])


def grouped(parts: Sequence[Part]) -> Iterator[str]:
    """A line for each kind of part; tables of layers that are alike share one."""
    if not parts:
        yield "nothing in it is known to posenc to know places"
    for (kind, prefix, old, new, method), group in groupby(parts, _alike):
        names = [part.where for part in group]
        where = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} alike"
        changed = f"{by(old)} -> {by(new)} ({method})" if method else _unchanged(kind, old)
        kept = f", rows of tokens without a place kept: {prefix}" if prefix else ""
        yield f"{kind} {where}: {changed}{kept}"


def _unchanged(kind: str, grid: Grid) -> str:
    return "fits any grid, nothing to resize" if kind in (FUNCTION, ROTATION) else f"{by(grid)} as it is"


def _alike(part: Part) -> tuple[str, int, Grid, Grid, str]:
    return part.kind, part.prefix, part.old, part.new, part.method


def by(size: Grid) -> str:
    """A size as it is written."""
    return f"{size[0]} x {size[1]}"


@dataclass
class _Change:
    """An attribute of a module or of a configuration, and what it becomes or was."""

    owner: Any
    name: str
    value: Any

    def swap(self) -> None:
        """Put the value in, and keep what was there instead."""
        now = getattr(self.owner, self.name, Absent)
        if self.value is Absent:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, _moved(self.value, now))
        self.value = now


@dataclass
class _Record:
    changes: list[_Change]
    report: Resizing

    def swap(self) -> None:
        """Wholly or not at all."""
        done: list[_Change] = []
        try:
            for change in self.changes:
                change.swap()
                done.append(change)
        except BaseException:
            for change in reversed(done):
                change.swap()
            raise


@checked
def resize(
    model: nn.Module,
    image_size: int | Sequence[int],
    *,
    window_size: int | None = None,
    method: str | None = None,
    verify: bool = True,
) -> Resizing:
    """Make a pretrained vision model read images of another size, in place; `restore` undoes it.

    Args:
        model: of transformers, of a type in `posenc.pretrained.vision.libraries.FAMILIES`, alone or within a model with one
            such tower; or of timm, with patch_embed and set_input_size (VisionTransformer, Beit, Eva, SwinTransformer ..).
        image_size: pixels of a square image, or (height, width).
        window_size: patches of the windows of Swin and Swin v2, None: as they are (timm: as its authors scale them).
        method: how tables are interpolated, in `tables.OF_PATCHES` or `tables.OF_OFFSETS`; None: as the model's source
            does, and tables that follow MAE's formula are computed anew.
        verify: read an image of the new size, and compare with the library's own interpolation where it has one.

    Every attribute and buffer becomes what the model's own library builds for the new size, its configuration says that size,
    and rows of tokens without a place stay, so that save_pretrained writes what plain transformers loads. A resized model
    is resized anew from what it was, never twice. Whatever fails leaves the model as it was. Tables are the same bit for bit
    where the grid is.

    Raises:
        InputError: a model, size, window or method that is not supported, with the reason.
    """
    new, inner = _size(image_size), required(model).model
    record: _Record | None = getattr(inner, RECORD, None)
    if record is not None:
        record.swap()
    try:
        made = _resized(required(model), new, window_size, method, verify)
    except BaseException:
        if record is not None:
            record.swap()
        raise
    setattr(inner, RECORD, made)
    return made.report


def restore_size(model: nn.Module) -> bool:
    """Undo `resize`: the very tables, buffers and configuration values that were there are put back. Whether there was
    anything to undo."""
    library = library_of(model)
    record: _Record | None = None if library is None else getattr(library.model, RECORD, None)
    if library is None or record is None:
        return False
    record.swap()
    delattr(library.model, RECORD)
    return True


def _resized(library: Library, new: Grid, window_size: int | None, method: str | None, verify: bool) -> _Record:
    if window_size is not None and window_size < 1:
        raise InputError(f"window_size={window_size}: patches of a window's side, at least 1")
    library.check_weights()
    library.check_size(new)
    grids = library.grid(library.image_size), library.grid(new)
    before, after = _twins(library, new, window_size)
    images = library.images(new) if verify else None
    own = _own(library, images, after) if images is not None else None
    changes, parts = _differences(library, before, after, grids, method)
    changes += [_Change(*setting) for setting in library.settings(new, window_size)]
    record = _Record(changes, Resizing(library.name, library.model_type, library.image_size, new, tuple(parts)))
    record.swap()
    try:
        said, difference = ((), None) if images is None else _verified(library, new, images, own)
        notes = tuple(_notes(library, record.report))
        record.report = replace(record.report, verified=said, difference=difference, notes=notes)
    except BaseException:
        record.swap()
        raise
    return record


def held(library: Library) -> list[Part]:
    """What in a model, as it is, knows places.

    Raises:
        InputError: a table with rows that posenc cannot explain.
    """
    grid = library.grid(library.image_size)
    return _differences(library, library.root, library.root, (grid, grid), None)[1]


def _size(image_size: int | Sequence[int]) -> Grid:
    sides: list[Any] = list(image_size) if isinstance(image_size, Sequence) else [image_size, image_size]
    if len(sides) != 2 or not all(isinstance(n, Integral) and 0 < int(n) <= LARGEST for n in sides):
        raise InputError(f"image_size={shown(image_size)}: pass pixels, as 384 or (height, width), from 1 to {LARGEST}")
    return int(sides[0]), int(sides[1])


def _twins(library: Library, new: Grid, window_size: int | None) -> tuple[nn.Module, nn.Module]:
    try:
        return library.twins(new, window_size)
    except InputError:
        raise
    except Exception as error:  # whatever a library says of a size that it cannot build
        raise InputError(
            f"image_size={new}: {library.name} cannot make a {library.model_type} for it: {on_one_line(error, 300)}"
        ) from error


def _own(library: Library, images: Tensor, after: nn.Module) -> Tensor | None:
    """What the library's own interpolation gives; None as well where that fails, as transformers' Swin does of stages that
    are smaller than a window."""
    try:
        return library.own(images, after)
    except Exception:
        return None


def _differences(
    library: Library, before: nn.Module, after: nn.Module, grids: tuple[Grid, Grid], method: str | None
) -> tuple[list[_Change], list[Part]]:
    """What is another in the model that the library makes for the new size, and what knows places among it."""
    changes, parts = [], []
    modules, were = dict(library.root.named_modules()), dict(before.named_modules())
    for path, twin in after.named_modules():
        was, module = were[path], modules.get(path)
        name_of = partial(_joined, library.root_name, path)
        plain = {name: value for name, value in _state(twin).items() if not _same(_state(was).get(name), value)}
        tables = {
            name: weight
            for name, weight in twin.named_parameters(recurse=False)
            if table_kind(name_of(name)) or weight.shape != getattr(was, name).shape
        }
        if (plain and module is None) or not all(isinstance(getattr(module, name, None), Tensor) for name in tables):
            raise InputError(
                f"{name_of()} depends on the image size, and is not as {library.name} has it: resize it before"
            )
        changes += [_Change(module, name, value) for name, value in plain.items()]
        for name, weight in tables.items():
            kind, mine = table_kind(name_of(name)), getattr(module, name)
            old, new = (window_of(was) or grids[0], window_of(twin) or grids[1]) if kind == OFFSETS else grids
            count = weight.numel() // weight.shape[-1]
            part, made = remade(name_of(name), mine, count, old, new, method, library.usual(kind or LEARNED))
            parts.append(part)
            if old != new:
                changes.append(_Change(module, name, nn.Parameter(made, requires_grad=mine.requires_grad)))
    return changes, parts + fixed_parts(before, after, library.root_name, *grids)


def _joined(*names: str) -> str:
    return ".".join(filter(None, names))


def _state(module: nn.Module) -> dict[str, Any]:
    """Buffers, and attributes that may say a size."""
    return dict(_plain(module)) | dict(module._buffers)


def _plain(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if isinstance(value, PLAIN) and name not in ("training", RECORD):
            yield name, value
    for name in ("_traits", "_model_args"):  # by which timm builds the model again
        if isinstance(vars(module).get(name), dict):
            yield name, vars(module)[name]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one.to(other), other)
    return type(one) is type(other) and bool(one == other)


def _moved(value: Any, now: Any) -> Any:
    """A tensor where the one that it replaces is, and of its kind: the model may have been moved or cast."""
    if (
        not isinstance(value, Tensor)
        or not isinstance(now, Tensor)
        or (value.dtype, value.device) == (now.dtype, now.device)
    ):
        return value
    moved = value.detach().to(now.device, now.dtype if value.is_floating_point() else value.dtype)
    return nn.Parameter(moved, requires_grad=value.requires_grad) if isinstance(value, nn.Parameter) else moved


def _verified(library: Library, new: Grid, images: Tensor, own: Tensor | None) -> tuple[tuple[str, ...], float | None]:
    """How the resized model was found to be right, and how far it is from what its library's interpolation gave."""
    try:
        found = required(library.model).read(images)
    except Exception as error:
        raise InputError(
            f"image_size={new}: {library.name} cannot read such images with a {library.model_type}, even with one that it "
            f"makes for them: {on_one_line(error, 300)}"
        ) from error
    if not found.isfinite().all():
        raise InputError(f"image_size={new}: the model gives numbers that are not finite for an image of noise")
    said = f"verified: an image of {by(new)} is read, {' x '.join(map(str, found.shape[1:]))}, all finite"
    if own is None or own.shape != found.shape:
        return (said,), None
    difference = float((own - found).abs().max())
    return (
        said,
        f"against the interpolation of {library.name}: the outputs differ by at most {difference:.2g}",
    ), difference


def _notes(library: Library, report: Resizing) -> Iterator[str]:
    height, width = report.new
    learned = any(part.kind == LEARNED for part in report.parts)
    if isinstance(library, HuggingFace) and learned and height != width:
        yield (
            "never pass interpolate_pos_encoding=True to it: transformers takes the table for that of a square image, "
            "which fails, or mixes up the patches where their number is a square"
        )
    moved = any(part.kind == FUNCTION and part.old != part.new for part in report.parts)
    if library.name == "timm" and moved and any(map(scales_offsets, library.model.modules())):
        yield (
            "timm scales offsets to the new window, so that neighbouring patches get another bias; Swin v2's authors keep "
            "the scale of the window that was trained (pretrained_window_sizes)"
        )
    config = getattr(library.model, "config", None)
    if hasattr(config, "image_token_id") or hasattr(config, "image_token_index"):
        yield "the model joins images and text: let its processor place as many image tokens as there are patches now"
    if isinstance(library, HuggingFace):
        yield f"let the image processor make images of {by(report.new)}: its size is not in the model"
