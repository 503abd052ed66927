# SPDX-License-Identifier: Apache-2.0
"""Comparisons of images: the class of an image, tested at other resolutions than that of training. Settings, numbers, and
sentences that follow from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from posenc.encoding import Encoding
from posenc.encodings import GridALiBi
from posenc.errors import InputError, check_value, listed
from posenc.lab.experiment import Experiment, Preset, Run, Scores, Variant
from posenc.lab.results import (
    Aggregate,
    RunRecord,
    change,
    collect,
    course,
    difference,
    general_limits,
    level,
    naming,
    verdict_of,
)
from posenc.lab.statistics import Estimate, estimate
from posenc.lab.vision.evaluate import ACCURACY, SHUFFLED_ACCURACY, SHUFFLED_LOSS, evaluate, variants
from posenc.lab.vision.images import DATA_IMAGES, ImageBatch, ImageCorpus, Images, load
from posenc.lab.vision.scenes import CELLS
from posenc.transformer import TransformerBase
from posenc.vision import VisionConfig, VisionTransformer

HOLDS = 0.05
"""A variant holds when its accuracy at the last size has fallen by less than this (share of the images, upper bound)."""


UNDERTRAINED = 0.2
"""A variant this much behind the best at the size of training has learned too little for its steadiness to count."""


@dataclass(frozen=True)
class ImageSettings(Experiment):
    """Everything that the runs of one comparison of images share.

    image_size: pixels of a training image's side; patch_size: of a patch's. test_sizes: sides of the test images; that of
    training is always among them. images: held-out images that are tested. channels, num_classes: of the data, which
    decide them. The rest: see `Experiment`.
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
    tokens_by = "image_size"
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
                raise InputError(f"{name}={size}: must be a multiple of patch_size={self.patch_size}, and above 0")

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
    def extra(self) -> dict[str, tuple[int, ...]]:
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
            raise InputError(f"test_sizes={self.test_sizes[-1]}: must be at most {self.MOST['image_size']}")

    def check_shards(self, shards: int) -> None:
        if shards > 1:
            raise InputError(
                f"sequence_shards={shards}: an image is not divided; leave it out, processes share the batch"
            )

    def make_model(self, encoding: Encoding) -> VisionTransformer:
        config = VisionConfig(
            self.num_classes, self.patch_size, self.channels, self.dim, self.num_layers, self.num_heads,
            head_dim=self.head_dim,
        )  # fmt: skip
        return VisionTransformer(config, encoding)

    def make_encoding(self, name: str) -> Encoding:
        return self.create(name, grid=(self.side, self.side), causal=False)

    # ---------------------------------------------------------------- data and test

    def load(self, source: str, **options: Any) -> tuple[ImageCorpus, "ImageSettings"]:
        corpus = ImageCorpus.of(load(source, **{**self.data_options, **options}), self)
        return corpus, replace(self, channels=corpus.channels, num_classes=len(corpus.classes))

    def check_data(self, corpus: ImageCorpus) -> None:
        if (tuple(corpus.train.sizes), tuple(corpus.test.sizes)) != ((self.image_size,), self.test_sizes):
            raise InputError(f"test_sizes={self.test_sizes}: the images were loaded for others; load them for these")
        if (corpus.channels, len(corpus.classes)) != (self.channels, self.num_classes):
            raise InputError(
                f"channels={self.channels}, num_classes={self.num_classes}: the images have {corpus.channels} and "
                f"{len(corpus.classes)}; take the settings that loading them gives"
            )
        if len(corpus.test) < self.images:
            raise InputError(
                f"images={self.images}: of data {corpus.name} {corpus.held_out} images are held out; give fewer, or more data"
            )

    def example(self, condition: int) -> Tensor:
        return torch.zeros(1, self.channels, condition, condition)

    def draw(self, part: Images, generator: torch.Generator) -> ImageBatch:
        which = torch.randint(len(part), (self.batch_size,), generator=generator)
        return part.batch(self.image_size, which)

    def variants(self, name: str, encoding: Encoding) -> list[Variant]:
        return variants(name, encoding, self)

    def evaluate(
        self,
        model: TransformerBase,
        variant: Variant,
        part: Images,
        on_batch: Callable[[int], None] = lambda tokens: None,
    ) -> Scores:
        return evaluate(model, variant, part, self, on_batch)

    # ---------------------------------------------------------------- numbers and words

    def ranked(self, records: Mapping[Run, RunRecord]) -> list[Aggregate]:
        """The highest accuracy at the largest size first."""
        return sorted(collect(records), key=lambda variant: -level(variant, self.test_sizes[-1], ACCURACY).mean)

    def numbers(self, ranked: Sequence[Aggregate], corpus: ImageCorpus) -> dict[str, Any]:
        return numbers(ranked, corpus.chance, self)

    def answer(self, ranked: Sequence[Aggregate], corpus: ImageCorpus) -> list[str]:
        return answer(ranked, corpus, self)

    def limits(self, ranked: Sequence[Aggregate], corpus: ImageCorpus) -> list[str]:
        return limits(ranked, corpus, self)


# -------------------------------------------------------------------- numbers


def best(variants: Sequence[Aggregate], size: int) -> Aggregate:
    """The variant that is right most often at a size."""
    return max(variants, key=lambda variant: level(variant, size, ACCURACY).mean)


def fall(variant: Aggregate, size: int, settings: ImageSettings) -> Estimate:
    """How much lower the accuracy is at a size than at that of training."""
    seeds = sorted(variant.scores)
    return estimate(variant.values(settings.image_size, seeds, ACCURACY) - variant.values(size, seeds, ACCURACY))


def control(variant: Aggregate, settings: ImageSettings) -> Estimate:
    """How much accuracy is lost when the patches of the test images are shuffled."""
    seeds, size = sorted(variant.scores), settings.image_size
    return estimate(variant.values(size, seeds, ACCURACY) - variant.values(size, seeds, SHUFFLED_ACCURACY))


def at_chance(variant: Aggregate, chance: float, settings: ImageSettings) -> bool:
    """Whether a variant is not measurably better, at the size of training, than always naming the commonest class."""
    return level(variant, settings.image_size, ACCURACY).low <= chance


def verdict(variant: Aggregate, sizes: Sequence[int], chance: float, settings: ImageSettings) -> str:
    """What happens from the size of training over others, in a word or three."""
    if sizes and at_chance(variant, chance, settings):
        return "at chance"
    return verdict_of([fall(variant, size, settings) for size in sizes], HOLDS)


def numbers(variants: Sequence[Aggregate], chance: float, settings: ImageSettings) -> dict[str, Any]:
    """The measured part of results.json, for ranked variants. chance: the share of the commonest class."""
    leading = {size: best(variants, size) for size in settings.test_sizes}
    named = {variant.name: variant for variant in variants}
    return {
        "arms": [_row(variant, leading, chance, settings) for variant in variants],
        "extensions": [
            {
                "arm": variant.name,
                "against": variant.encoding,
                "size": size,
                "difference": asdict(difference(variant, named[variant.encoding], size, ACCURACY)),
            }
            for variant in variants
            if not variant.trained
            for size in settings.test_sizes
            if size != settings.image_size
        ],
    }


def _row(
    variant: Aggregate, leading: Mapping[int, Aggregate], chance: float, settings: ImageSettings
) -> dict[str, Any]:
    s, trained = settings, settings.image_size
    sizes = [
        {
            "size": size,
            "patches": s.side_at(size),
            "loss": asdict(level(variant, size)),
            "loss_change": asdict(change(variant, size, trained)),
            "accuracy": asdict(_share(level(variant, size, ACCURACY))),
            "change": asdict(change(variant, size, trained, ACCURACY)),
            "behind_best": asdict(difference(leading[size], variant, size, ACCURACY)),
        }
        for size in s.test_sizes
    ]
    shuffled = {
        "loss": asdict(level(variant, trained, SHUFFLED_LOSS)),
        "accuracy": asdict(_share(level(variant, trained, SHUFFLED_ACCURACY))),
        "lost": asdict(control(variant, s)),
    }
    return {
        **naming(variant),
        "verdict": verdict(variant, s.larger, chance, s),
        "verdict_smaller": verdict(variant, s.smaller, chance, s),
        "sizes": sizes,
        "shuffled": shuffled,
        **course(variant),
    }


def _share(e: Estimate) -> Estimate:
    """An estimate of a share, whose interval ends at 0 and 1."""
    return replace(e, low=max(e.low, 0.0), high=min(e.high, 1.0))


# -------------------------------------------------------------------- words


def answer(variants: Sequence[Aggregate], corpus: ImageCorpus, settings: ImageSettings) -> list[str]:
    """What a reader wants to know first, for ranked variants."""
    s, trained = settings, [variant for variant in variants if variant.trained]
    if not trained:
        return []
    lines = [_best(trained, s.image_size, s, "At the training size of")]
    lines += [_best(variants, sizes[-1], s, "At") for sizes in (s.larger, s.smaller) if sizes]
    lost = [variant.name for variant in trained if at_chance(variant, corpus.chance, s)]
    if lost:
        lines.append(f"No better than always naming the commonest class ({percent(corpus.chance)}): {listed(lost)}.")
    for sizes, way in ((s.larger, "larger"), (s.smaller, "smaller")):
        lines += _by_verdict(trained, sizes, way, corpus.chance, s)
    lines.append(_shuffled(trained, s))
    return lines + [
        _fitted(variants, sizes[-1]) for sizes in (s.larger, s.smaller) if sizes and len(variants) > len(trained)
    ]


def _best(variants: Sequence[Aggregate], size: int, settings: ImageSettings, opening: str) -> str:
    first, side = best(variants, size), settings.side_at(size)
    ties = [
        variant.name
        for variant in variants
        if variant is not first and difference(first, variant, size, ACCURACY).low <= 0
    ]
    others = "every other one is measurably behind"
    tied = f"; {listed(ties)} cannot be told apart from it" if ties else f"; {others}" if len(variants) > 1 else ""
    found = percent(level(first, size, ACCURACY).mean)
    return (
        f"{opening} {size} x {size} pixels ({side} x {side} patches), {first.name} is right most often ({found}){tied}."
    )


def _by_verdict(
    trained: Sequence[Aggregate], sizes: Sequence[int], way: str, chance: float, settings: ImageSettings
) -> list[str]:
    if not sizes:
        return []
    openings = {
        "holds": (f"Holds its accuracy on {way} images, to {sizes[-1]} pixels", sizes[-1]),
        "degrades": (f"Degrades on {way} images, at {sizes[-1]} pixels", sizes[-1]),
        "breaks at once": (f"Breaks as soon as images are {way}, at {sizes[0]} pixels", sizes[0]),
    }
    lines = []
    for outcome, (opening, size) in openings.items():
        which = [variant for variant in trained if verdict(variant, sizes, chance, settings) == outcome]
        if which:
            found = [
                f"{variant.name} ({points(change(variant, size, settings.image_size, ACCURACY))})" for variant in which
            ]
            lines.append(f"{opening}: {listed(found)}.")
    return lines


def _shuffled(trained: Sequence[Aggregate], settings: ImageSettings) -> str:
    """How much of the answer comes from where things are."""
    size = settings.image_size
    by = max(trained, key=lambda variant: control(variant, settings).mean)
    whole, moved = level(by, size, ACCURACY).mean, level(by, size, SHUFFLED_ACCURACY).mean
    bag = [variant for variant in trained if variant.encoding == "none"]
    without = f"; a model without positions finds {percent(level(bag[0], size, ACCURACY).mean)}" if bag else ""
    return (
        f"With the patches of the test images shuffled, the accuracy of {by.name} goes from {percent(whole)} to "
        f"{percent(moved)}{without}."
    )


def _fitted(variants: Sequence[Aggregate], size: int) -> str:
    """What fitting positions to a size without retraining does."""
    named = {variant.name: variant for variant in variants}
    by_outcome: dict[str, list[str]] = {"helps": [], "harms": [], "makes no measurable difference to": []}
    for variant in (variant for variant in variants if not variant.trained and variant.encoding in named):
        e = difference(variant, named[variant.encoding], size, ACCURACY)
        outcome = list(by_outcome)[0 if e.low > 0 else 1 if e.high < 0 else 2]
        by_outcome[outcome].append(f"{variant.encoding} ({points(e)})")
    said = "; it ".join(f"{outcome} {listed(which)}" for outcome, which in by_outcome.items() if which)
    return f"At {size} pixels, fitting positions to the image without retraining {said}."


def limits(variants: Sequence[Aggregate], corpus: ImageCorpus, settings: ImageSettings) -> list[str]:
    """What this comparison does not show, as far as it can be computed from what was run."""
    s, notes = settings, []
    trained = [variant for variant in variants if variant.trained]
    top = max((level(variant, s.image_size, ACCURACY).mean for variant in trained), default=0.0)
    late = [
        variant.name
        for variant in trained
        if not at_chance(variant, corpus.chance, s) and level(variant, s.image_size, ACCURACY).mean < top - UNDERTRAINED
    ]
    if late:
        notes.append(
            f"After {s.steps} steps {listed(late)} {'is' if len(late) == 1 else 'are'} still more than "
            f"{100 * UNDERTRAINED:.0f} points below the best. A model that finds little has little to lose at other sizes, "
            "so a flat curve is no merit there."
        )
    for variant in trained:
        if isinstance(s.make_encoding(variant.encoding), GridALiBi):
            notes.append(
                f"{variant.name} knows how far apart two patches are, not in which direction: an image and its mirror image are "
                "the same to it."
            )
    if corpus.scaled and len(s.test_sizes) > 1:
        notes.append(
            "Images of another size are the same pixels, resized (bilinear, smoothed where they shrink): a larger image shows "
            "nothing that a smaller one of the source does not."
        )
    if not corpus.scaled:
        shared = [str(size) for size in s.test_sizes if size // CELLS % s.patch_size]
        if shared:
            notes.append(
                f"At {listed(shared)} pixels a patch of {s.patch_size} does not lie within one of the {CELLS} x {CELLS} cells "
                "that shapes stand in: neighbouring shapes meet in a patch, which tells something without positions."
            )
    if len(s.test_sizes) > 1:
        notes.append(
            "At another size a patch shows another part of the scene, which a model without positions has to cope with too: "
            "what an encoding adds is the difference, not the fall alone."
        )
    if any(not variant.trained for variant in variants):
        notes.append(
            "Resized tables and rescaled places are the same trained weights, with no fine-tuning at the new size, which "
            "usually follows."
        )
    return notes + general_limits(variants, s, "one set of images", "images")


def percent(share: float) -> str:
    """A share as a reader has it."""
    return f"{100 * share:.1f} %"


def points(e: Estimate) -> str:
    """An estimate of a difference of shares, in points of a hundred."""
    return f"{100 * e.mean:+.1f} ± {50 * (e.high - e.low):.1f} points".replace("-", "−")


CORE = ("none", "grid_table", "grid_sinusoidal", "axial_rope", "mixed_rope", "swin", "grid_alibi")

PRESETS = ImageSettings.presets = {
    "quick": Preset(ImageSettings(steps=100), ("none", "grid_sinusoidal", "axial_rope", "swin"), 2),
    "standard": Preset(ImageSettings(), CORE, 4),
    "thorough": Preset(ImageSettings(steps=600, num_layers=4, dim=96), (*CORE, "beit", "swin_v2"), 5),
}
