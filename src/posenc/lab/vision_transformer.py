# SPDX-License-Identifier: Apache-2.0
"""The image model: the blocks of `posenc.lab.transformer` on patches of images and tubelets of video, under any encoding."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from posenc.encoding import Encoding, augmented_by
from posenc.errors import InputError, check_integers, check_sizes, not_none
from posenc.lab.transformer import Block, BlockConfig, TransformerBase
from posenc.positions import Positions
from posenc.positions.ids import as_indices, select

__all__ = ["VisionConfig", "VisionTransformer"]


@dataclass(frozen=True)
class VisionConfig(BlockConfig):
    """Shape of a `VisionTransformer`. Fields that are not described are those of `TransformerConfig`."""

    num_classes: int
    """Logits"""
    _: KW_ONLY
    patch_size: int
    """Pixels of a square patch's side"""
    channels: int = 3
    """Of the images"""
    dim: int = 128
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int | None = None
    head_dim: int | None = None
    mlp_ratio: float = 4.0
    dropout: float = 0.0
    tubelet_size: int | None = None
    """Frames that a patch of a video spans; None: images"""
    class_token: bool = False
    """Read the class from a [CLS] token; False: from the mean of the patches"""
    registers: int = 0
    """Further tokens, whose outputs are not used (Darcet et al. 2024)"""
    norm: Literal["rms", "layer"] = "rms"
    norm_first: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = ("num_classes", "patch_size", "channels", "tubelet_size")
        check_sizes(**not_none(**{name: getattr(self, name) for name in sizes}))
        check_integers(0, registers=self.registers)

    @property
    def patch_shape(self) -> tuple[int, ...]:
        """Of a patch, in the order of an image's axes: (height, width) or (frames, height, width)."""
        square = (self.patch_size, self.patch_size)
        return square if self.tubelet_size is None else (self.tubelet_size, *square)

    @property
    def prefix(self) -> int:
        """Tokens without coordinates that come before the patches: the class token, then the registers."""
        return self.class_token + self.registers


class VisionTransformer(TransformerBase):
    """Images (batch, channels, height, width) or videos (batch, channels, frames, height, width) -> logits (batch,
    num_classes), under one encoding shared by all layers; every patch sees every patch (Dosovitskiy et al. 2021).

    `prefix` holds the class token and the registers, (config.prefix, dim).
    """

    config: VisionConfig

    def __init__(self, config: VisionConfig, encoding: Encoding | str) -> None:
        super().__init__()
        encoding = config.make_encoding(encoding, causal=False)
        self.config = config
        self.embedding: nn.Linear = nn.Linear(math.prod(config.patch_shape) * config.channels, config.dim)
        self.prefix: nn.Parameter = nn.Parameter(torch.empty(config.prefix, config.dim))
        self.blocks: nn.ModuleList = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm: nn.Module = config.make_norm()
        self.head: nn.Linear = nn.Linear(config.dim, config.num_classes)
        for linear in (self.embedding, self.head):
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.prefix)
        self.reset_blocks(encoding)
        # registered last: the model's initial weights do not depend on what the encoding draws
        self.encoding = encoding

    def forward(
        self, images: Tensor | Sequence[Tensor], positions: Positions | None = None, keep: Tensor | None = None
    ) -> Tensor:
        """images: a batch of one size, or a list of images (channels, height, width) of any sizes, which are packed
        into one sequence and see only themselves (Dehghani et al. 2023, "NaViT"). positions: of all tokens, those of
        `config.prefix` first; None: those of the images' own patches, see `Positions.grids`. keep:
        (batch, m) or (m,), the patches that are read, in this order, with their positions (MAE drops the others);
        only with a batch.

        Raises:
            InputError: images of another shape, or that cannot be cut into patches, positions of another number of
                tokens, or what the encoding and `attention` refuse.
        """
        parts = [images] if isinstance(images, Tensor) else [image[None] for image in images]
        if not parts or (keep is not None and len(parts) > 1):
            raise InputError("pass at least one image, and keep= with a batch of one size", images=images, keep=keep)
        tokens = [self.tokens(part) for part in parts]
        x, lengths = torch.cat(tokens, 1), [each.shape[1] for each in tokens]
        if positions is None:
            grids = [self.grid(part) for part in parts]
            positions = Positions.grids(grids, prefix=self.config.prefix, device=x.device)
        if positions.sharding is not None or positions.num_queries != x.shape[1] or positions.num_keys != x.shape[1]:
            raise InputError(
                f"positions of {positions.num_queries} queries and {positions.num_keys} keys for {x.shape[1]} tokens, "
                f"{self.config.prefix} of them before the patches: pass those of all tokens, and no shard"
            )
        if keep is not None:  # after the tokens before the patches
            keep = as_indices("keep", keep, x.shape[1] - self.config.prefix, x.shape[0])
            before = torch.arange(self.config.prefix, device=keep.device).expand(keep.shape[0], -1)
            index = torch.cat((before, keep + self.config.prefix), 1).to(x.device)
            x, positions = select(x, index), positions.take(index)
            lengths = [index.shape[1]]
        x = self.read(x, augmented_by(self.encoding, positions.with_causal(False), x.shape[0]))
        valid = positions.q_valid
        valids = [None] * len(lengths) if valid is None else valid.split(lengths, 1)
        pooled = [self.pooled(*image) for image in zip(x.split(lengths, 1), valids, strict=True)]
        return self.head(torch.cat(pooled))

    def patches(self, images: Tensor) -> Tensor:
        """The patches of a batch of images, embedded, row by row and frame by frame: (batch, n, dim).

        Raises:
            InputError: images of another shape, or that cannot be cut into patches.
        """
        self.grid(images)
        for axis, size in enumerate(self.config.patch_shape):
            images = images.unfold(2 + axis, size, size)  # the pixels of a patch come last
        cells = len(self.config.patch_shape)
        x = images.movedim(1, 1 + cells).flatten(1, cells).flatten(2)
        return self.embedding(x.to(self.embedding.weight.dtype))

    def tokens(self, images: Tensor) -> Tensor:
        """`patches` with the tokens of `prefix` before them: (batch, config.prefix + n, dim)."""
        patches = self.patches(images)
        return torch.cat((self.prefix.expand(patches.shape[0], -1, -1), patches), 1)

    def grid(self, images: Tensor) -> tuple[int, ...]:
        """Patches of an image, as `Positions.grid` takes them: (height, width) or (height, width, frames).

        Raises:
            InputError: images of another shape, or that cannot be cut into patches.
        """
        shape, config = self.config.patch_shape, self.config
        axes = "batch, channels, " + ("frames, " if len(shape) == 3 else "") + "height, width"
        if images.dim() != 2 + len(shape) or images.shape[1] != config.channels or not images.is_floating_point():
            raise InputError(f"pass ({axes}) of floating point, with channels={config.channels}", images=images)
        if 0 in images.shape:
            raise InputError("pass at least one image of at least one patch", images=images)
        sides = list(zip(images.shape[2:], shape, strict=True))
        if any(length % size for length, size in sides):
            frames = "" if len(shape) == 2 else f", the frames of tubelet_size={config.tubelet_size}"
            raise InputError(f"each side must be a multiple of patch_size={config.patch_size}{frames}", images=images)
        counts = [length // size for length, size in sides]
        return (*counts[-2:], *counts[:-2])

    def pooled(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """The vector that the class is read from, (batch, dim), of the outputs (batch, config.prefix + n, dim). valid: (batch or
        1, n + config.prefix), False for padding."""
        if self.config.class_token:
            return x[:, 0]
        x = x[:, self.config.prefix :]
        if valid is None:
            return x.mean(1)
        seen = valid[:, self.config.prefix :, None].to(x.dtype)
        return (x * seen).sum(1) / seen.sum(1).clamp(min=1)
