# SPDX-License-Identifier: Apache-2.0
"""What a vision model's positions are, and what will be wrong with them at another image size."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from posenc.errors import on_one_line
from posenc.pretrained.findings import Evidence
from posenc.pretrained.vision.models import TransformersModel, VisionModel, shared_copy
from posenc.pretrained.vision.resize import RECORD, by, grouped, position_parts
from posenc.pretrained.vision.tables import (
    LEARNED,
    SINUSOIDS,
    Grid,
    Part,
    resample,
    rows_of_patches,
    sinusoid_order,
    sinusoids,
)


@dataclass(frozen=True)
class VisionDescription:
    """What a vision model is. image_size, patch_size: (height, width). resized: the image size that it had before
    posenc.resize, None: it is as it was loaded."""

    library: str
    model_type: str
    image_size: Grid
    patch_size: Grid
    dtype: str
    parts: tuple[Part, ...]
    resized: Grid | None

    def __str__(self) -> str:
        rows, columns = (n // p for n, p in zip(self.image_size, self.patch_size, strict=True))
        lines = [
            f"{self.model_type} of {self.library}: {self.dtype}, images of {by(self.image_size)}, "
            f"{rows} x {columns} patches of {by(self.patch_size)}",
            f"resized: {'no' if self.resized is None else f'from {by(self.resized)}'}",
        ]
        return "\n".join([*lines, *grouped(self.parts)])


def describe(vision: VisionModel) -> VisionDescription:
    """Raises:
    InputError: a model without weights, or a table with unexplained rows."""
    vision.check_weights()
    record: Any = getattr(vision.model, RECORD, None)
    dtype = next(p.dtype for p in vision.tower.parameters())
    before = None if record is None else record.report.old
    parts, short = tuple(position_parts(vision)), str(dtype).removeprefix("torch.")
    sizes = vision.image_size, vision.patch_size
    return VisionDescription(vision.library, vision.model_type, *sizes, short, parts, before)


def vision_evidence(vision: VisionModel, parts: tuple[Part, ...]) -> Evidence:
    """Findings, each with a number. The model is unchanged."""
    yield from _of_tables(vision, parts)
    rows, columns = vision.grid(vision.image_size)
    larger = vision.pixels((rows + 1, columns + 1))
    if error := _error(vision, larger):
        yield "one_size", f"an image of {by(larger)} gives: {error}", None
    if isinstance(vision, TransformersModel):
        yield from _of_transformers(vision, parts)
        yield from _of_swin(vision)


def _of_tables(vision: VisionModel, parts: tuple[Part, ...]) -> Evidence:
    tables = [part for part in parts if part.kind in (LEARNED, SINUSOIDS)]
    for part in tables:
        rows = _rows(vision, part)
        if not rows.any() and len(tables) == len(parts):  # a new BEiT's is, too, beside its table of offsets
            yield "table_of_zeros", f"{part.where}: all of its {len(rows)} rows of patches are zero", 0.0
        if part.kind == SINUSOIDS:
            new = (2 * part.old[0], 2 * part.old[1])
            exact = sinusoids(new, rows.shape[1], x_first=bool(sinusoid_order(rows, part.old))).to(rows)
            made = resample(rows, part.old, new, vision.default_method(LEARNED))
            worst = float((made - exact).abs().max())
            text = f"{part.where}: for {by(new)} patches interpolated and computed codes differ by up to {worst:.2g}"
            yield "formula_interpolated", text, worst


def _of_transformers(vision: TransformersModel, parts: tuple[Part, ...]) -> Evidence:
    learned = [part for part in parts if part.kind in (LEARNED, SINUSOIDS)]
    rows, columns = vision.grid(vision.image_size)
    embeddings: Any = getattr(vision.tower, "embeddings", None)
    if rows != columns:
        for name, module in vision.tower.named_modules():
            if hasattr(module, "generate_relative_position_index"):
                bias, index = module((rows, columns))[0], module.generate_relative_position_index((rows, columns))
                true = module.relative_position_bias_table[index.to(bias.device)].permute(2, 0, 1)
                worst = float((bias - true).abs().max())
                yield "rows_for_columns", f"{name}: biases are off by up to {worst:.2g}", worst
                break
    if not learned or not hasattr(embeddings, "interpolate_pos_encoding"):
        return
    part, new = learned[0], (2 * rows, 2 * columns)
    table = _rows(vision, part)
    exact = resample(table, (rows, columns), new, vision.default_method(LEARNED))
    try:
        tokens = table.new_empty(1, part.prefix + new[0] * new[1], table.shape[1])
        interpolated: Tensor = embeddings.interpolate_pos_encoding(tokens, *vision.pixels(new))[0, part.prefix :]
    except RuntimeError as error:
        if rows != columns:
            yield "square_only", f"interpolating to {by(new)} patches fails: {on_one_line(error, 120)}", None
        return
    worst = float((interpolated - exact).float().abs().max())
    if rows != columns and worst > 1e-3:
        yield "square_only", f"interpolated to {by(new)} patches, rows are off by up to {worst:.2g}", worst
    if vision.model_type == "dinov2":
        theirs = resample(table, (rows, columns), new, "bicubic_offset")
        share = float((theirs - exact).float().std() / table.float().std())
        yield "another_sampling", f"for {by(new)} patches the rows differ by {share:.1%} of their spread", share
    decoder: Any = getattr(vision.model, "decoder", None)
    if hasattr(decoder, "decoder_pos_embed"):
        weight = decoder.decoder_pos_embed.detach()
        line = decoder.interpolate_pos_encoding(weight.new_empty(1, 1 + new[0] * new[1], 1))[0, 1:]
        plane = resample(weight[0, 1:], (rows, columns), new, vision.default_method(LEARNED))
        worst = float((line - plane).float().abs().max())
        yield "decoder_in_a_line", f"for {by(new)} patches its rows are off by up to {worst:.2g}", worst


def _of_swin(vision: TransformersModel) -> Evidence:
    if not vision.model_type.startswith("swin"):
        return
    stages, window = len(vision.config.depths), int(vision.config.window_size)
    lost = sum(_lost(block) for stage in vision.tower.encoder.layers for block in stage.blocks[1::2])
    if lost:
        yield "shift_lost", f"layers that should shift their windows and do not: {lost}", float(lost)
    one, small = (vision.pixels((n * 2 ** (stages - 1),) * 2) for n in (window, max(window // 2, 1)))
    if window > 1 and (error := _error(vision, small)):
        yield "below_a_window", f"images below {by(one)} are not read; one of {by(small)} gives: {error}", float(one[0])
    if not lost and not _error(vision, one):
        tower = shared_copy(vision.tower).eval()
        before, _, after = (
            tower(pixel_values=vision.images(size)).last_hidden_state
            for size in (vision.image_size, one, vision.image_size)
        )
        worst = float((after - before).abs().max())
        if worst > 0:
            text = f"after one image of {by(one)} the output for {by(vision.image_size)} is off by up to {worst:.2g}"
            yield "small_images_stay", text, worst


def _lost(block: Any) -> bool:
    """Whether a layer of Swin with several windows, made to shift them, does not."""
    configured = getattr(block, "config", None) or getattr(block.attention, "config", None)
    window = int(configured.window_size) if configured is not None else 0
    return window > 1 and min(block.input_resolution) > window and block.shift_size == 0


def _rows(vision: VisionModel, part: Part) -> Tensor:
    return rows_of_patches(part, vision.model.get_parameter(part.where))


def _error(vision: VisionModel, size: Grid) -> str:
    """The model's error for an image of a size, "" where it reads it."""
    try:
        vision.read(vision.images(size))
    except Exception as error:
        return on_one_line(error, 120)
    return ""
