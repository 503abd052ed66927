# SPDX-License-Identifier: Apache-2.0
"""Positions of text with images and videos in it: the rules of the models, and the rows they apply to."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from posenc.errors import (
    LARGEST_SIZE,
    InputError,
    as_numbers,
    check_flags,
    check_integers,
    check_numbers,
    check_positive,
    check_sizes,
    check_tensor,
    check_value,
    holds_integers,
    is_integer,
    listed,
    refuse_in_program,
    shown,
    unknown,
)  # fmt: skip
from posenc.positions import Positions
from posenc.positions.ids import Ids, as_mask, documents_of, exact, size_of

Size = tuple[int, int, int]
TEXT, IMAGE, VIDEO = range(3)


# ---------------------------------------------------------------- rules


Places = tuple[Tensor, float]
"""Where the tokens of an image are, counted from where a text token would be in their place, (tokens, axes), int64 or float64; and how far
after its beginning text goes on behind it."""


def _cells(size: Size, device: torch.device) -> tuple[Tensor, ...]:
    """The frame, the row and the column of each token, (tokens,)."""
    return torch.unravel_index(torch.arange(math.prod(size), device=device), size)


def _qwen2_vl(size: Size, device: torch.device) -> Places:
    """At (t, y, x); text goes on after the largest number on any axis, as in the paper, vLLM and transformers 4. transformers 5 leaves
    the frames out of that."""
    return torch.stack(_cells(size, device), 1), max(size)


def _videorope(size: Size, device: torch.device, spacing: float) -> Places:
    """Frames are `spacing` apart; rows and columns are centred around the frame's number; text goes on after the last frame's."""
    (frames, height, width), (t, y, x) = size, _cells(size, device)
    whole = float(spacing).is_integer()
    t = t * int(spacing) if whole else exact(t) * spacing
    at = torch.stack((t, t + y - (height - 1) // 2, t + x - (width - 1) // 2), 1)
    return at, (frames - 1) * (int(spacing) if whole else spacing) + 1


def _v2pe(size: Size, device: torch.device, delta: float) -> Places:
    """One axis, on which an image's tokens are `delta` apart, the first of them after the text before it; text goes on at the next
    integer, as in the authors' code."""
    count = math.prod(size)
    return exact(torch.arange(1, count + 1, device=device))[:, None] * delta - 1, math.ceil(count * delta)


def _circle_rope(size: Size, device: torch.device, radius: float | None, alpha: float) -> Places:
    """An image's tokens are on a circle around the axis of the text, all as far from a text token. radius: of the circle; None: the
    largest coordinate from the image's centre. alpha: how much an angle follows the token's direction from the centre; the rest
    follows its index."""
    _, y, x = (exact(cell) - (length - 1) / 2 for cell, length in zip(_cells(size, device), size, strict=True))
    spread = torch.atan2(y, x)
    first, last = spread.min(), spread.max()
    if last > first:
        spread = (spread - first) / (last - first) * 2 * math.pi
    even = exact(torch.arange(len(x), device=device)) / len(x) * 2 * math.pi
    angle = alpha * spread + (1 - alpha) * even
    wide = torch.maximum(y, x).max() if radius is None else radius
    u, v = wide * angle.cos() / math.sqrt(2), wide * angle.sin() / math.sqrt(6)
    at = torch.stack((2 * v, u - v, -u - v), 1)  # orthogonal to (1, 1, 1), along which text goes
    return at, float(at.max()) + 1


@dataclass(frozen=True)
class Rule:
    """The rule of a model. places: from the size of an image, the device and the options. options: with their defaults. needs_sizes: more
    than the number of an image's tokens. moving: it serves more than one frame."""

    places: Callable[..., Places]
    options: Mapping[str, Any] = field(default_factory=dict)
    needs_sizes: bool = True
    moving: bool = True


RULES: dict[str, Rule] = {
    # Wang et al. 2025, "Circle-RoPE" (2505.16416)
    "circle_rope": Rule(_circle_rope, {"radius": 10.0, "alpha": 0.5}, moving=False),
    # Wang et al. 2024, "Qwen2-VL" (2409.12191), section 2.1
    "qwen2_vl": Rule(_qwen2_vl),
    # Ge et al. 2024, "V2PE" (2412.09616)
    "v2pe": Rule(_v2pe, {"delta": 0.0625}, needs_sizes=False),
    # Wei et al. 2025, "VideoRoPE" (2502.05173)
    "videorope": Rule(_videorope, {"spacing": 2.0}),
}
"""By the names that `multimodal` takes."""
THEIRS = "qwen2_5_vl", "qwen3_vl", "qwen3_5"
"""Rules that transformers' models compute themselves."""


def create_rule(name: str, given: Mapping[str, Any]) -> Rule:
    """The rule of a name with options.

    Raises:
        InputError: an unknown name or option, or a value that does not fit.
    """
    if name in THEIRS:
        raise InputError(
            "call the model's own get_rope_index, and pass its positions: Positions.from_ids(ids.permute(1, 2, 0), causal=True)",
            rule=name,
        )
    if not isinstance(name, str) or name not in RULES:
        raise unknown("rule", name, RULES)
    rule = RULES[name]
    for option, value in given.items():
        if option not in rule.options:
            raise InputError(
                f"rule {name!r} takes {listed([*rule.options] or ['no options'])}", argument=option, value=value
            )
        if option == "alpha":
            check_numbers(0, 1, alpha=value)
        elif option != "radius" or value is not None:
            check_positive(**{option: value})
    return replace(rule, options={**rule.options, **given})


# ---------------------------------------------------------------- images and videos of a row


class Grids:
    """The images, or the videos, of a batch, which its tokens take one after another.

    name: of the argument they are from, what: "image" or "video", merge: of patches, for messages. sizes: (frames, height,
    width) in tokens of each.
    """

    def __init__(self, name: str, what: str, sizes: Sequence[Size], rule: Rule, merge: int = 1) -> None:
        if not rule.moving and any(frames > 1 for frames, _, _ in sizes):
            raise InputError(f"{name} has videos, this rule is for images: pass each frame as an image")
        self.name, self.what, self.merge = name, what, merge
        self.sizes, self.taken = list(sizes), 0

    def take(self, room: int, row: int, column: int) -> Size:
        """The size of the next one, which has at most `room` tokens, from this row and column.

        Raises:
            InputError: there is none, or it is larger.
        """
        number = self.taken
        if number == len(self.sizes):
            raise InputError(
                f"{self.name} is for {number} {self.what}{'s' * (number != 1)}, row {row} has tokens of one more at index {column}: pass (frames, "
                "height, width) of each, in the order of their tokens"
            )
        count = math.prod(self.sizes[number])
        if count > room:
            shape = " x ".join(map(str, self.sizes[number]))
            raise InputError(
                f"{self.name}: {self.what} {number} has {shape} = {count} tokens at spatial_merge_size={self.merge}, row {row} has "
                f"{room} at index {column}: pass the sizes, the merge and the tokens of one processor"
            )
        self.taken += 1
        return self.sizes[number]


def grids_of(name: str, what: str, table: Ids | None, merge: int, rule: Rule, most: int) -> Grids:
    """`Grids` of a table (count, 3) of frames, height and width, before patches are merged. most: tokens that there are.

    Raises:
        InputError: no such table, or sizes that the merge does not divide, or of more tokens.
    """
    sizes = as_numbers(name, [] if table is None else table)
    if sizes.numel() == 0:
        return Grids(name, what, [], rule, merge)
    if sizes.dim() != 2 or sizes.shape[1] != 3 or not holds_integers(sizes):
        raise InputError(
            "pass integers (count, 3), frames, height and width of each in patches", argument=name, value=table
        )
    listing = sizes.tolist()
    for number, (frames, height, width) in enumerate(listing):
        if min(frames, height, width) < 1 or height % merge or width % merge:
            raise InputError(
                f"{name}[{number}]={[frames, height, width]}: pass sizes of at least 1, height and width multiples of "
                f"spatial_merge_size={merge}, as they are before patches are merged"
            )
        if (count := frames * height * width // merge**2) > most:
            raise InputError(
                f"{name}[{number}]={[frames, height, width]} has {count} tokens at spatial_merge_size={merge}, all rows have {most}: "
                "pass the sizes, the merge and the tokens of one processor"
            )
    return Grids(
        name, what, [(frames, height // merge, width // merge) for frames, height, width in listing], rule, merge
    )


def coordinates_of(kinds: Tensor, sequence: Tensor, places: Tensor, grids: Mapping[int, Grids], rule: Rule) -> Tensor:
    """The coordinates of tokens, (tokens, axes).

    kinds: TEXT, IMAGE or VIDEO of each token, sequence: a number for the row and document that it is of, both (tokens,).
    places: the row and the column of each, (tokens, 2), for messages.

    Raises:
        InputError: tokens of images that do not fit to their sizes.
    """
    begins = torch.ones_like(kinds, dtype=torch.bool)
    begins[1:] = (kinds.diff() != 0) | (sequence.diff() != 0)
    first = begins.nonzero()[:, 0]
    edges = [*first.tolist(), kinds.shape[0]]
    runs = zip(edges, edges[1:], kinds[first].tolist(), sequence[first].tolist(), places[first].tolist(), strict=False)
    like, _ = rule.places((1, 1, 1), kinds.device, **rule.options)
    pieces, following = [like[:0]], defaultdict[int, float](int)  # the number that comes next, by sequence
    for begin, end, kind, of, (row, column) in runs:
        at = begin
        while at < end:
            if kind == TEXT:
                local, after = torch.arange(end - at, device=kinds.device)[:, None].expand(-1, like.shape[1]), end - at
            else:
                size = (1, 1, end - at)
                if rule.needs_sizes or grids[kind].sizes:
                    size = grids[kind].take(end - at, row, column + at - begin)
                local, after = rule.places(size, kinds.device, **rule.options)
            pieces.append(local.to(like.dtype) + following[of])
            following[of] += after
            at += len(local)
    for known in grids.values():
        if known.taken < len(known.sizes):
            raise InputError(
                f"{known.name} is for {len(known.sizes)} {known.what}{'s' * (len(known.sizes) != 1)}, the rows have tokens of {known.taken}: "
                f"pass the sizes of those alone, and the {known.what}_token_id of the model's config"
            )
    return torch.cat(pieces)


# ---------------------------------------------------------------- the arguments of `multimodal`


def from_parts(parts: Sequence[Any], device: torch.device | str | None) -> tuple[Tensor, list[Size], list[Size]]:
    """Parts as kinds of tokens, (1, n), and the sizes of the images and of the videos.

    Raises:
        InputError: a part that is neither a number of tokens nor the size of an image.
    """
    if isinstance(parts, (str, Tensor)) or not isinstance(parts, Sequence) or not parts:
        raise InputError("pass a list of numbers of text tokens and sizes of images", parts=parts)
    sizes: tuple[list[Size], list[Size]] = [], []
    kinds: list[Tensor] = []
    for part in parts:
        kind, count = TEXT, part
        if isinstance(part, (tuple, list)) and len(part) in (2, 3) and all(size is not None for size in part):
            height, width = size_of(*part[:2])
            (frames,) = part[2:] or (1,)
            check_sizes(frames=frames)
            kind, count = len(part) - 1, frames * height * width
            sizes[kind - 1].append((frames, height, width))
        if not is_integer(count) or not 1 <= count <= LARGEST_SIZE:
            raise InputError(
                f"{shown(part)} is neither a number of text tokens, at least 1, nor (height, width) or (height, "
                f"width, frames) of an image, of at most {LARGEST_SIZE} tokens",
                parts=parts,
            )
        kinds.append(torch.full((count,), kind, device=device))
    return torch.cat(kinds)[None], *sizes


def from_tokens(row: Tensor, image_token_id: int | None, video_token_id: int | None) -> Tensor:
    """Token ids as kinds of tokens, (batch, n).

    Raises:
        InputError: no such row, or the same id twice.
    """
    check_tensor("tokens", row, integers=True)
    if row.dim() != 2 or 0 in row.shape:
        raise InputError(f"tokens of shape {tuple(row.shape)}: pass token ids (batch, n), or a list of parts")
    check_integers(image_token_id=image_token_id, video_token_id=video_token_id)
    if image_token_id is not None and image_token_id == video_token_id:
        raise InputError("pass two ids", image_token_id=image_token_id, video_token_id=video_token_id)
    kinds = torch.full_like(row, TEXT, dtype=torch.long)
    for kind, token in ((IMAGE, image_token_id), (VIDEO, video_token_id)):
        if token is not None:
            kinds[row == token] = kind
    return kinds


def multimodal(
    tokens: Sequence[Any] | Tensor,
    rule: str = "qwen2_vl",
    num_queries: int | None = None,
    *,
    image_token_id: int | None = None,
    video_token_id: int | None = None,
    image_grid_thw: Ids | None = None,
    video_grid_thw: Ids | None = None,
    spatial_merge_size: int = 2,
    attention_mask: Ids | None = None,
    document_ids: Tensor | None = None,
    causal: bool = False,
    device: torch.device | str | None = None,
    **options: Any,
) -> Positions:
    """Positions of text with images and videos in it, at (t, y, x), by the rule of a model.

    A text token is at the same number on all axes. The rule says where an image's tokens are, and where text goes on:
    "qwen2_vl", "videorope", "v2pe" (on one axis) or "circle_rope". options are
    those of the rule. Both are listed, with their papers, in docs/vision-grid.md and in this module.

    tokens: a list of parts, or rows of tokens. Parts, in the order of the sequence: a number of text tokens, the
    (height, width) of an image or the (height, width, frames) of a video, in tokens. Rows: token ids (batch, n) with
    image_token_id and video_token_id at the tokens of images and videos, whose sizes are (count, 3) tables of frames,
    height and width, before spatial_merge_size x spatial_merge_size patches become a token; all named as in
    transformers' `get_rope_index`. Its `mm_token_type_ids` are such rows, with ids 1 and 2.
    attention_mask: (batch, n), zeros are padding, at position 0. document_ids: (n,) or (batch, n), packed documents, as
    in `Positions.packed`; positions start at 0 in each. num_queries: with a cache, how many of the last tokens are the
    queries; `tokens` are then all tokens, so that the next ones go on where the rule says.

    Raises:
        InputError: an unknown rule or option, parts or tables that are none, images whose sizes do not fit to their
            tokens, a merge that does not divide them, or num_queries that does not fit.
    """
    check_flags(causal=causal)
    refuse_in_program(
        "multimodal: the sizes of images give the positions",
        "pass them as (batch, n, axes): Positions.from_ids(ids)",
    )
    by = create_rule(rule, options)
    check_value("spatial_merge_size", spatial_merge_size, int)
    check_sizes(spatial_merge_size=spatial_merge_size)
    tables = {"image": (image_grid_thw, image_token_id), "video": (video_grid_thw, video_token_id)}
    if isinstance(tokens, Tensor):
        kinds = from_tokens(tokens if device is None else tokens.to(device), image_token_id, video_token_id)
        for name, (grid, token) in tables.items():
            if grid is not None and token is None:
                raise InputError(
                    f"{name}_grid_thw without {name}_token_id: pass the {name}_token_id of the model's config"
                )
        images, videos = (
            grids_of(f"{name}_grid_thw", name, grid, spatial_merge_size, by, kinds.numel())
            for name, (grid, _) in tables.items()
        )
    else:
        for name, pair in tables.items():
            for what, value in zip(("grid_thw", "token_id"), pair, strict=True):
                if value is not None:
                    raise InputError(
                        "is for a tensor of token ids",
                        "parts have their sizes in them",
                        argument=f"{name}_{what}",
                        value=value,
                    )
        kinds, of_images, of_videos = from_parts(tokens, device)
        images, videos = Grids("parts", "image", of_images, by), Grids("parts", "video", of_videos, by)
    batch, n = kinds.shape
    valid = documents = None
    if attention_mask is not None and document_ids is not None:
        raise InputError("attention_mask and document_ids: pass one of them; negative document_ids mark padding")
    if attention_mask is not None:
        valid = as_mask("attention_mask", attention_mask).to(kinds.device)
    if document_ids is not None:
        documents = documents_of(None, None, document_ids, None).to(kinds.device)
        valid = documents >= 0 if bool((documents < 0).any()) else None
    for name, given in (("attention_mask", valid), ("document_ids", documents)):
        if given is not None and given.shape not in ((batch, n), (1, n)):
            raise InputError(
                f"{name} of shape {tuple(given.shape)}: pass one entry for each of the {batch} x {n} tokens"
            )
    present = torch.ones_like(kinds, dtype=torch.bool) if valid is None else valid.expand(batch, n)
    sequence = torch.arange(batch, device=kinds.device)[:, None].expand(batch, n)
    if documents is not None:
        sequence = sequence * (int(documents.max()) + 1) + documents
    coordinates = coordinates_of(
        kinds[present], sequence[present], present.nonzero(), {IMAGE: images, VIDEO: videos}, by
    )  # fmt: skip
    ids = coordinates.new_zeros(batch, n, coordinates.shape[1])
    ids[present] = coordinates
    ids = ids[..., 0] if ids.shape[2] == 1 else ids
    return Positions.of_tokens(ids, num_queries, causal, valid, documents)
