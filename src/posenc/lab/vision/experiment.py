# SPDX-License-Identifier: Apache-2.0
"""Comparisons of images: the class of an image, tested at other resolutions than that of training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from posenc.encoding import Encoding
from posenc.encodings import GridALiBi, GridSinusoidal, GridTable, LogWindow, WindowTable
from posenc.encodings.rotary_axes import AxesRotary
from posenc.errors import InputError, check_value, listed
from posenc.lab.evaluate import score
from posenc.lab.experiment import Criterion, Experiment, Preset, Scores, Variant
from posenc.lab.records import Aggregate, level
from posenc.lab.statistics import Estimate, estimate
from posenc.lab.transformer import TransformerBase
from posenc.lab.vision.images import DATA_IMAGES, ImageBatch, ImageCorpus, Images, load
from posenc.lab.vision.scenes import CELLS
from posenc.lab.vision_transformer import VisionConfig, VisionTransformer
from posenc.positions import Positions

ACCURACY, SHUFFLED_LOSS, SHUFFLED_ACCURACY = "accuracy", "shuffled_loss", "shuffled_accuracy"
"""What is measured beside the loss; the last two with the patches shuffled, at the size of training."""
RESCALED = (AxesRotary, GridALiBi, GridSinusoidal, LogWindow)
"""Encodings that take fractional positions."""


@dataclass(frozen=True, kw_only=True)
class ImageSettings(Experiment):
    """Everything that the runs of one comparison of images share.

    The data decide channels and num_classes. The rest: see `Experiment`.
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

    name = "vision"
    data = "places"
    data_options: ClassVar[Mapping[str, Any]] = {"image_column": None, "label_column": None, "data_images": DATA_IMAGES}
    criterion = Criterion(ACCURACY, undertrained=0.2, points="sizes", condition="size", size="size")
    tokens_by = "image_size"
    conditions_by = "test_sizes"
    examples_by = "images"
    unit = "pixel"
    LEAST = {"image_size": 1, "patch_size": 1, **Experiment.LEAST, "images": 2, "channels": 1, "num_classes": 2}
    MOST = {"image_size": 2**12, "patch_size": 2**12, **Experiment.MOST, "images": 10**6}

    def __post_init__(self) -> None:
        super().__post_init__()
        for size in self.test_sizes:
            check_value("test_sizes", size, int)
        sizes = tuple(sorted({*self.test_sizes, self.image_size}))
        object.__setattr__(self, "test_sizes", sizes)
        for name, size in (("image_size", self.image_size), *(("test_sizes", size) for size in sizes)):
            if size < 1 or size % self.patch_size:
                raise InputError(
                    f"must be a multiple of patch_size={self.patch_size}, and above 0", argument=name, value=size
                )

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
    def examples(self) -> int:
        return self.images

    def tokens_at(self, condition: int) -> int:
        return self.side_at(condition) ** 2

    def size_at(self, condition: int) -> int:
        return condition

    def spelled(self, condition: int) -> str:
        return f"{condition} x {condition} pixels"

    @property
    def tested_tokens(self) -> int:
        return super().tested_tokens + self.images * self.tokens  # of the shuffled images

    @property
    def rows(self) -> int:
        return self.channels * self.patch_size**2

    def make_model(self, encoding: Encoding) -> VisionTransformer:
        config = VisionConfig(
            self.num_classes, patch_size=self.patch_size, channels=self.channels, dim=self.dim, num_layers=self.num_layers, num_heads=self.num_heads,
            head_dim=self.head_dim,
        )  # fmt: skip
        return VisionTransformer(config, encoding)

    def make_encoding(self, name: str) -> Encoding:
        return self.create(name, grid=(self.side, self.side), causal=False)

    # ---------------------------------------------------------------- data and test

    def load(self, source: str, **options: Any) -> tuple[ImageCorpus, "ImageSettings"]:
        corpus = ImageCorpus.of(
            load(source, **{**self.data_options, **options}), self.image_size, self.test_sizes, self.images
        )
        return corpus, replace(self, channels=corpus.channels, num_classes=len(corpus.classes))

    def check_data(self, corpus: ImageCorpus) -> None:
        if (tuple(corpus.train.sizes), tuple(corpus.test.sizes)) != ((self.image_size,), self.test_sizes):
            raise InputError("the images were loaded for others", "load them for these", test_sizes=self.test_sizes)
        if (corpus.channels, len(corpus.classes)) != (self.channels, self.num_classes):
            raise InputError(
                f"the images have {corpus.channels} and {len(corpus.classes)}",
                "take the settings that loading them gives",
                channels=self.channels,
                num_classes=self.num_classes,
            )
        if len(corpus.test) < self.images:
            raise InputError(
                f"of data {corpus.name} {corpus.held_out} images are held out",
                "give fewer, or more data",
                images=self.images,
            )

    def example(self, condition: int) -> Tensor:
        return torch.zeros(1, self.channels, condition, condition)

    def draw(self, part: Images, generator: torch.Generator) -> ImageBatch:
        which = torch.randint(len(part), (self.batch_size,), generator=generator)
        return part.batch(self.image_size, which)

    def variants(self, name: str, encoding: Encoding) -> list[Variant]:
        """The model as trained, for which the outer patches of a larger image lie outside the grid of training, and the same
        weights fitted to the image: a table resized, or positions rescaled."""
        variants = super().variants(name, encoding)
        if len(self.test_sizes) == 1 or encoding.needs_length:
            return variants
        if isinstance(encoding, GridTable | WindowTable):
            if encoding.beyond == "resize":  # the first variant resizes already
                return variants
            given = {argument: getattr(encoding, argument) for argument in encoding.arguments()}
            resizing = type(encoding)(**given | {"beyond": "resize"}).to(next(encoding.parameters()))
            for parameter, shared in encoding.named_parameters():
                setattr(resizing, parameter, shared)
            variants.append(Variant(f"{name} + resized", lambda size: resizing, trained=False))
        elif isinstance(encoding, RESCALED):
            positions = lambda size: rescaled(self.side_at(size), self.side)  # noqa: E731
            variants.append(Variant(f"{name} + rescaled", lambda size: encoding, trained=False, positions=positions))
        return variants

    @torch.no_grad()
    def evaluate(
        self,
        model: TransformerBase,
        variant: Variant,
        part: Images,
        on_batch: Callable[[int], None] = lambda tokens: None,
    ) -> Scores:
        """Loss and whether the class is right, at every size, and at that of training also with the patches shuffled."""

        def scores(images: Images, size: int) -> tuple[Tensor, Tensor]:
            positions = variant.positions(size)
            read = lambda rows: images.batch(size, rows)._replace(positions=positions)  # noqa: E731
            return score(model, variant, size, self, read, on_batch)

        trained = self.image_size
        moved = shuffled(part.sizes[trained][: self.images], self.patch_size)
        by_size = {size: scores(part, size) for size in self.test_sizes}
        control = scores(Images({trained: moved}, part.labels), trained)
        return Scores(
            {size: losses for size, (losses, _) in by_size.items()},
            extra={
                ACCURACY: {size: hits for size, (_, hits) in by_size.items()},
                SHUFFLED_LOSS: {trained: control[0]},
                SHUFFLED_ACCURACY: {trained: control[1]},
            },
        )

    # ---------------------------------------------------------------- results

    def chance(self, corpus: ImageCorpus, condition: int) -> float:
        return corpus.chance

    def point(self, variant: Aggregate, condition: int, corpus: ImageCorpus) -> dict[str, Any]:
        return {"patches": self.side_at(condition)}

    def row(self, variant: Aggregate) -> dict[str, Any]:
        bag = level(variant, self.image_size, SHUFFLED_ACCURACY)
        return {
            "shuffled": {
                "loss": asdict(level(variant, self.image_size, SHUFFLED_LOSS)),
                "accuracy": asdict(replace(bag, low=max(bag.low, 0.0), high=min(bag.high, 1.0))),
                "lost": asdict(self._lost(variant)),
            },
        }

    def _lost(self, variant: Aggregate) -> Estimate:
        """How much accuracy is lost when the patches of the test images are shuffled."""
        seeds, size = sorted(variant.scores), self.image_size
        return estimate(variant.values(size, seeds, ACCURACY) - variant.values(size, seeds, SHUFFLED_ACCURACY))

    def remarks(self, trained: Sequence[Aggregate]) -> list[str]:
        size, value = self.image_size, self.criterion.value
        most = max(trained, key=lambda variant: self._lost(variant).mean)
        intact, moved = (level(most, size, of).mean for of in (ACCURACY, SHUFFLED_ACCURACY))
        bag = [f"; without positions it is {value(level(v, size, ACCURACY).mean)}" for v in trained if v.name == "none"]
        return [
            f"With the patches of the test images shuffled, the accuracy of {most.name} goes from {value(intact)} to "
            f"{value(moved)}{''.join(bag)}."
        ]

    def limits(self, trained: Sequence[Aggregate], corpus: ImageCorpus) -> list[str]:
        notes = [
            f"{variant.name} depends on distances alone, not on directions: it cannot distinguish an image from its mirror image."
            for variant in trained
            if isinstance(self.make_encoding(variant.encoding), GridALiBi)
        ]
        if len(self.test_sizes) > 1:
            notes.append(
                "At another size a patch shows another part of the scene, with which a model without positions has to cope too: "
                "the effect of an encoding is the difference from that model."
            )
            if corpus.scaled:
                notes.append("Larger images are the same pixels, resized: they show nothing that smaller ones do not.")
        divided = [str(size) for size in self.test_sizes if size // CELLS % self.patch_size]
        if divided and not corpus.scaled:
            notes.append(
                f"At {listed(divided)} pixels a patch crosses the border of two of the {CELLS} x {CELLS} cells: neighbouring "
                "shapes meet in a patch, so a model without positions can do better than guess."
            )
        return notes


def rescaled(side: int, trained: int) -> Positions:
    """The patches of an image of side x side, where they lie on the grid of trained x trained stretched over the image."""
    grid = Positions.grid(side, side).q
    return Positions.from_ids((grid + 0.5) * (trained / side) - 0.5)


def shuffled(images: Tensor, patch_size: int, seed: int = 0) -> Tensor:
    """Images (n, channels, side, side) with their patches in another order, one drawn for each image."""
    n, channels, size, _ = images.shape
    side = size // patch_size
    order = torch.rand(n, side**2, generator=torch.Generator().manual_seed(seed)).argsort(1)
    patches = images.unflatten(3, (side, patch_size)).unflatten(2, (side, patch_size)).permute(0, 2, 4, 1, 3, 5)
    moved = patches.flatten(1, 2)[torch.arange(n)[:, None], order].unflatten(1, (side, side))
    return moved.permute(0, 3, 1, 4, 2, 5).reshape(n, channels, size, size)


CORE = ("none", "grid_table", "grid_sinusoidal", "axial_rope", "mixed_rope", "swin", "grid_alibi")

PRESETS = ImageSettings.presets = {
    "quick": Preset(ImageSettings(steps=100), ("none", "grid_sinusoidal", "axial_rope", "swin"), 2),
    "standard": Preset(ImageSettings(), CORE, 4),
    "thorough": Preset(ImageSettings(steps=600, num_layers=4, dim=96), (*CORE, "beit", "swin_v2"), 5),
}
