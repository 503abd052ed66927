# SPDX-License-Identifier: Apache-2.0
"""What a comparison of images is, as data: settings and presets."""

from dataclasses import dataclass
from typing import Annotated

from posenc.checks import check_value
from posenc.encoding import Encoding
from posenc.errors import InputError
from posenc.lab.config import Preset, Recipe
from posenc.vision import VisionConfig, VisionTransformer

ACCURACY, SHUFFLED_LOSS, SHUFFLED_ACCURACY = "accuracy", "shuffled_loss", "shuffled_accuracy"
"""What is measured beside the loss; the last two with the patches shuffled, at the size of training."""


@dataclass(frozen=True)
class ImageSettings(Recipe):
    """Everything that the runs of one comparison of images share.

    image_size: pixels of a training image's side; patch_size: of a patch's. test_sizes: sides of the test images; that of
    training is always among them. images: held-out images that are tested. channels, num_classes: of the data, which
    decide them. The rest: see `Recipe`.
    """

    image_size: Annotated[int, "pixels of a training image's side"] = 32
    patch_size: Annotated[int, "pixels of a patch's side"] = 4
    test_sizes: Annotated[tuple[int, ...], "sides of the test images; that of training is always among them"] = (
        16, 32, 48, 64,
    )  # fmt: skip
    steps: int = 140
    batch_size: int = 32
    dim: int = 64
    num_layers: int = 2
    num_heads: int = 4
    head_dim: int | None = None
    learning_rate: float = 0.03
    adamw_learning_rate: float = 0.005
    position_learning_rate: float = 0.03
    images: Annotated[int, "held-out images that are tested"] = 200
    channels: int = 3
    num_classes: int = 2

    task = "vision"
    tokens_by = "image_size"
    LEAST = {"image_size": 1, "patch_size": 1, **Recipe.LEAST, "images": 2, "channels": 1, "num_classes": 2}
    MOST = {"image_size": 2**12, "patch_size": 2**12, **Recipe.MOST, "images": 10**6}

    def __post_init__(self) -> None:
        super().__post_init__()
        for size in self.test_sizes:
            check_value("test_sizes", size, int)
        sizes = tuple(sorted({*self.test_sizes, self.image_size}))
        object.__setattr__(self, "test_sizes", sizes)
        for name, size in (("--image-size", self.image_size), *(("--test-sizes", size) for size in sizes)):
            if size < 1 or size % self.patch_size:
                raise InputError(f"{name} {size}: must be a multiple of --patch-size ({self.patch_size}), and above 0")

    @property
    def side(self) -> int:
        """Patches per side of a training image."""
        return self.side_at(self.image_size)

    def side_at(self, size: int) -> int:
        """Patches per side of an image of a size."""
        return size // self.patch_size

    @property
    def conditions(self) -> tuple[int, ...]:
        return self.test_sizes

    @property
    def trained_at(self) -> int:
        return self.image_size

    @property
    def larger(self) -> tuple[int, ...]:
        """The test sizes above that of training, upwards."""
        return tuple(size for size in self.test_sizes if size > self.image_size)

    @property
    def smaller(self) -> tuple[int, ...]:
        """The test sizes below that of training, downwards."""
        return tuple(size for size in reversed(self.test_sizes) if size < self.image_size)

    @property
    def examples(self) -> int:
        return self.images

    @property
    def also(self) -> dict[str, tuple[int, ...]]:
        trained = (self.image_size,)
        return {ACCURACY: self.test_sizes, SHUFFLED_LOSS: trained, SHUFFLED_ACCURACY: trained}

    def tokens_at(self, condition: int) -> int:
        return self.side_at(condition) ** 2

    def size_at(self, condition: int) -> int:
        return condition

    @property
    def tested_tokens(self) -> int:
        return super().tested_tokens + self.images * self.tokens

    @property
    def rows(self) -> int:
        return self.channels * self.patch_size**2

    def check_largest(self) -> None:
        if self.test_sizes[-1] > self.MOST["image_size"]:
            raise InputError(f"--test-sizes {self.test_sizes[-1]}: must be at most {self.MOST['image_size']}")

    def check_shards(self, shards: int) -> None:
        if shards > 1:
            raise InputError(
                f"--sequence-shards {shards}: an image is read whole; leave it out, processes share the batch"
            )

    def make_model(self, encoding: Encoding) -> VisionTransformer:
        config = VisionConfig(
            self.num_classes, self.patch_size, self.channels, self.dim, self.num_layers, self.num_heads,
            head_dim=self.head_dim,
        )  # fmt: skip
        return VisionTransformer(config, encoding)

    def make_encoding(self, name: str) -> Encoding:
        return self.create(name, grid=(self.side, self.side), causal=False)


CORE = ("none", "grid_table", "grid_sinusoidal", "axial_rope", "mixed_rope", "swin", "grid_alibi")

PRESETS = {
    "quick": Preset(ImageSettings(steps=100), ("none", "grid_sinusoidal", "axial_rope", "swin"), 2),
    "standard": Preset(ImageSettings(), CORE, 4),
    "thorough": Preset(ImageSettings(steps=600, num_layers=4, dim=96), (*CORE, "beit", "swin_v2"), 5),
}
