# SPDX-License-Identifier: Apache-2.0
"""Another image size for a pretrained vision model, in place, and back."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError, check_integers, is_integer, on_one_line
from posenc.pretrained.changes import Change, ChangeReport, ModelChange
from posenc.pretrained.vision.models import TransformersModel, VisionModel, find_vision_model, vision_model
from posenc.pretrained.vision.tables import (
    FUNCTION,
    LEARNED,
    OFFSETS,
    ROTATION,
    Grid,
    Part,
    fixed_parts,
    resampled_table,
    table_kind,
    window_of,
)

RECORD = "_posenc_resized"
"""Attribute of a resized model: its `ModelChange`."""

MOST_PIXELS = 2**13
"""Of an image's side: more than any model is used at."""

PLAIN = (bool, int, float, str, tuple, list, type(None))
"""Types of attributes of modules that may depend on the size."""


@dataclass(frozen=True)
class Resizing(ChangeReport):
    """What `resize` did to a model.

    model_type: config.model_type, or the class of a timm model. old, new: (height, width) of images, in pixels. parts: all
    that depend on patch positions. verified: how, in words; () with verify=False. difference: the largest one between the
    outputs of the resized model and of its library's interpolation, None where there is none. notes: what else is worth
    knowing.
    """

    library: str
    model_type: str
    old: Grid
    new: Grid
    parts: tuple[Part, ...]
    verified: tuple[str, ...] = ()
    difference: float | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{self.model_type} of {self.library}: images of {by(self.old)} -> {by(self.new)}"
        return "\n  ".join([head, *grouped(self.parts), *self.verified, *self.notes])


def grouped(parts: Sequence[Part]) -> Iterator[str]:
    """A line for each kind of part; tables of layers that are alike share one."""
    if not parts:
        yield "no table, function or rotation of positions was recognised in it"
    for (kind, prefix, old, new, method), group in groupby(parts, lambda p: (p.kind, p.prefix, p.old, p.new, p.method)):
        names = [part.where for part in group]
        where = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} alike"
        unchanged = "fits any grid, nothing to resize" if kind in (FUNCTION, ROTATION) else f"{by(old)}, unchanged"
        changed = f"{by(old)} -> {by(new)} ({method})" if method else unchanged
        others = f", unchanged rows of tokens without a position: {prefix}" if prefix else ""
        yield f"{kind} {where}: {changed}{others}"


def by(size: Grid) -> str:
    """A size in words, height x width."""
    return f"{size[0]} x {size[1]}"


def resize(
    model: nn.Module,
    image_size: int | Sequence[int],
    *,
    window_size: int | None = None,
    method: str | None = None,
    verify: bool = True,
) -> Resizing:
    """Run a pretrained vision model on images of another size, in place; `restore` undoes it.

    Args:
        model: of transformers, of a type in `posenc.pretrained.vision.models.FAMILIES`, alone or within a model with one
            such tower; or of timm, with patch_embed and set_input_size (VisionTransformer, Beit, Eva, SwinTransformer ..).
        image_size: pixels of a square image, or (height, width).
        window_size: patches of the windows of Swin and Swin v2, None: as they are (timm: as its authors scale them).
        method: how tables are interpolated, in `tables.OF_PATCHES` or `tables.OF_OFFSETS`; None: as the model's authors
            do, and tables that follow MAE's formula are computed anew.
        verify: read an image of the new size, and compare with the library's own interpolation where it has one.

    Every attribute and buffer becomes what the model's own library builds for the new size, so does its configuration, and
    rows of tokens without a position stay: save_pretrained writes what plain transformers loads. A resized model is resized
    anew from what it was, never twice. If anything fails, the model stays as it was. For an equal grid, tables are
    bit-equal.

    Raises:
        InputError: a model, size, window or method that is not supported, with the reason.
    """
    new, inner = _size(image_size), vision_model(model).model
    previous: ModelChange | None = getattr(inner, RECORD, None)
    if previous is not None:
        previous.detach()
    try:
        return _resized(vision_model(model), new, window_size, method, verify)
    except BaseException:
        if previous is not None:
            previous.attach()
        raise


def restore_size(model: nn.Module) -> bool:
    """Undo `resize`: the very tables, buffers and configuration values that were there are put back.

    Returns:
        Whether there was anything to undo.
    """
    vision = find_vision_model(model)
    record: ModelChange | None = None if vision is None else getattr(vision.model, RECORD, None)
    if record is not None:
        record.detach()
    return record is not None


def _resized(vision: VisionModel, new: Grid, window_size: int | None, method: str | None, verify: bool) -> Resizing:
    check_integers(1, window_size=window_size)
    vision.check_weights()
    vision.check_size(new)
    grids = vision.grid(vision.image_size), vision.grid(new)
    before, after = vision.twins(new, window_size)
    images = vision.images(new) if verify else None
    interpolated = None
    if images is not None:
        with suppress(Exception):  # as transformers' Swin raises for stages that are smaller than a window
            interpolated = vision.interpolated(images, after)
    changes, parts = _differences(vision, before, after, grids, method)
    changes += [Change(*setting) for setting in vision.settings(new, window_size)]
    report = Resizing(vision.library, vision.model_type, vision.image_size, new, tuple(parts))
    record = ModelChange(vision.model, report, changes, RECORD)
    record.attach()
    try:
        verified, difference = ((), None) if images is None else _verified(vision, new, images, interpolated)
        notes = tuple(_notes(vision, report))
        record.report = replace(report, verified=verified, difference=difference, notes=notes)
    except BaseException:
        record.detach()
        raise
    return record.report


def position_parts(vision: VisionModel) -> list[Part]:
    """The parts of a model that depend on patch positions.

    Raises:
        InputError: a table with unexplained rows.
    """
    grid = vision.grid(vision.image_size)
    return _differences(vision, vision.root, vision.root, (grid, grid), None)[1]


def _size(image_size: int | Sequence[int]) -> Grid:
    sides: list[Any] = list(image_size) if isinstance(image_size, Sequence) else [image_size, image_size]
    if len(sides) != 2 or not all(is_integer(n) and 0 < int(n) <= MOST_PIXELS for n in sides):
        raise InputError(f"pass pixels, as 384 or (height, width), from 1 to {MOST_PIXELS}", image_size=image_size)
    return int(sides[0]), int(sides[1])


def _differences(
    vision: VisionModel, before: nn.Module, after: nn.Module, grids: tuple[Grid, Grid], method: str | None
) -> tuple[list[Change], list[Part]]:
    """What differs in the model that the library builds for the new size, and the parts that depend on patch positions."""
    changes, parts = [], []
    modules, were = dict(vision.root.named_modules()), dict(before.named_modules())
    for path, twin in after.named_modules():
        was, module = were[path], modules.get(path)
        prefix = ".".join(filter(None, (vision.root_name, path)))
        name_of = partial("{}.{}".format, prefix) if prefix else str
        plain = {name: value for name, value in _state(twin).items() if not _same(_state(was).get(name), value)}
        tables = {
            name: weight
            for name, weight in twin.named_parameters(recurse=False)
            if table_kind(name_of(name)) or weight.shape != getattr(was, name).shape
        }
        if (plain and module is None) or not all(isinstance(getattr(module, name, None), Tensor) for name in tables):
            raise InputError(
                f"{prefix} depends on the image size, and is not as {vision.library} builds it: resize it before"
            )
        changes += [Change(module, name, value) for name, value in plain.items()]
        for name, weight in tables.items():
            kind, mine = table_kind(name_of(name)), getattr(module, name)
            old, new = (window_of(was) or grids[0], window_of(twin) or grids[1]) if kind == OFFSETS else grids
            count = weight.numel() // weight.shape[-1]
            default = vision.default_method(kind or LEARNED)
            part, made = resampled_table(name_of(name), mine, count, old, new, method, default)
            parts.append(part)
            if old != new:
                changes.append(Change(module, name, nn.Parameter(made, requires_grad=mine.requires_grad)))
    return changes, parts + fixed_parts(before, after, vision.root_name, *grids)


def _state(module: nn.Module) -> dict[str, Any]:
    """Buffers, and attributes that may depend on the size."""
    others = ("training", RECORD)
    plain = {n: value for n, value in vars(module).items() if isinstance(value, PLAIN) and n not in others}
    for name in ("_traits", "_model_args"):  # from which timm builds the model again
        if isinstance(vars(module).get(name), dict):
            plain[name] = vars(module)[name]
    return plain | dict(module._buffers)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one.to(other), other)
    return type(one) is type(other) and bool(one == other)


def _verified(
    vision: VisionModel, new: Grid, images: Tensor, interpolated: Tensor | None
) -> tuple[tuple[str, ...], float | None]:
    """How the resized model was verified, and its largest difference from the library's interpolation."""
    try:
        output = vision_model(vision.model).read(images)
    except Exception as error:  # the libraries raise errors of many types
        raise InputError(
            f"{vision.library} cannot read such images with a {vision.model_type}: {on_one_line(error, 300)}",
            image_size=new,
        ) from error
    if not output.isfinite().all():
        raise InputError("the model's output for an image of noise is not finite", image_size=new)
    verified = f"verified: an image of {by(new)} is read, {' x '.join(map(str, output.shape[1:]))}, all finite"
    if interpolated is None or interpolated.shape != output.shape:
        return (verified,), None
    difference = float((interpolated - output).abs().max())
    compared = f"against the interpolation of {vision.library}: the outputs differ by at most {difference:.2g}"
    return (verified, compared), difference


def _notes(vision: VisionModel, report: Resizing) -> Iterator[str]:
    height, width = report.new
    if isinstance(vision, TransformersModel):
        if height != width and any(part.kind == LEARNED for part in report.parts):
            yield (
                "never pass interpolate_pos_encoding=True to it: transformers takes the table for that of a square image, "
                "which fails, or mixes up the patches where their number is a square"
            )
        yield f"let the image processor make images of {by(report.new)}: its size is not in the model"
    elif any(part.kind == FUNCTION and part.old != part.new for part in report.parts) and any(
        getattr(module, "pretrained_window_size", None) == (0, 0) and getattr(module, "mode", "swin") == "swin"
        for module in vision.model.modules()
    ):
        yield (
            "timm scales offsets to the new window, so that neighbouring patches get another bias; Swin v2's authors keep "
            "the scale of the window that was trained (pretrained_window_sizes)"
        )
    config = getattr(vision.model, "config", None)
    if hasattr(config, "image_token_id") or hasattr(config, "image_token_index"):
        yield "the model joins images and text: let its processor make as many image tokens as there are patches now"
