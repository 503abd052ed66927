# SPDX-License-Identifier: Apache-2.0
"""From what the runs measured on images to every number of the report, with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from posenc.lab.config import Run
from posenc.lab.results import Cell, Row, change, collect, course, difference, identity, level, told
from posenc.lab.statistics import Estimate, estimate
from posenc.lab.vision.config import ACCURACY, SHUFFLED_ACCURACY, SHUFFLED_LOSS, ImageSettings

HOLDS = 0.05
"""An arm holds when its accuracy at the last size has fallen by less than this (share of the images, upper bound)."""


def ranked(cells: Mapping[Run, Cell], settings: ImageSettings) -> list[Row]:
    """The arms of finished runs, the highest accuracy at the largest size first."""
    last = settings.test_sizes[-1]
    return sorted(collect(cells), key=lambda arm: -level(arm, last, ACCURACY).mean)


def best(arms: Sequence[Row], size: int) -> Row:
    """The arm that is right most often at a size."""
    return max(arms, key=lambda arm: level(arm, size, ACCURACY).mean)


def fall(arm: Row, size: int, settings: ImageSettings) -> Estimate:
    """How much lower the accuracy is at a size than at that of training."""
    seeds = sorted(arm.scores)
    return estimate(arm.values(settings.image_size, seeds, ACCURACY) - arm.values(size, seeds, ACCURACY))


def control(arm: Row, settings: ImageSettings) -> Estimate:
    """How much accuracy is lost when the patches of the test images are shuffled."""
    seeds, size = sorted(arm.scores), settings.image_size
    return estimate(arm.values(size, seeds, ACCURACY) - arm.values(size, seeds, SHUFFLED_ACCURACY))


def at_chance(arm: Row, chance: float, settings: ImageSettings) -> bool:
    """Whether an arm is not measurably better, at the size of training, than always naming the commonest class."""
    return level(arm, settings.image_size, ACCURACY).low <= chance


def verdict(arm: Row, sizes: Sequence[int], chance: float, settings: ImageSettings) -> str:
    """What happens from the size of training over others, in a word or three."""
    if sizes and at_chance(arm, chance, settings):
        return "at chance"
    return told([fall(arm, size, settings) for size in sizes], HOLDS)


def numbers(arms: Sequence[Row], chance: float, settings: ImageSettings) -> dict[str, Any]:
    """The measured part of results.json, for ranked arms. chance: the share of the commonest class."""
    leading = {size: best(arms, size) for size in settings.test_sizes}
    named = {arm.name: arm for arm in arms}
    return {
        "arms": [_row(arm, leading, chance, settings) for arm in arms],
        "extensions": [
            {
                "arm": arm.name,
                "against": arm.encoding,
                "size": size,
                "difference": asdict(difference(arm, named[arm.encoding], size, ACCURACY)),
            }
            for arm in arms
            if not arm.trained
            for size in settings.test_sizes
            if size != settings.image_size
        ],
    }


def _row(arm: Row, leading: Mapping[int, Row], chance: float, settings: ImageSettings) -> dict[str, Any]:
    s, trained = settings, settings.image_size
    sizes = [
        {
            "size": size,
            "patches": s.side_at(size),
            "loss": asdict(level(arm, size)),
            "loss_change": asdict(change(arm, size, trained)),
            "accuracy": asdict(_share(level(arm, size, ACCURACY))),
            "change": asdict(change(arm, size, trained, ACCURACY)),
            "behind_best": asdict(difference(leading[size], arm, size, ACCURACY)),
        }
        for size in s.test_sizes
    ]
    shuffled = {
        "loss": asdict(level(arm, trained, SHUFFLED_LOSS)),
        "accuracy": asdict(_share(level(arm, trained, SHUFFLED_ACCURACY))),
        "lost": asdict(control(arm, s)),
    }
    return {
        **identity(arm),
        "verdict": verdict(arm, s.larger, chance, s),
        "verdict_smaller": verdict(arm, s.smaller, chance, s),
        "sizes": sizes,
        "shuffled": shuffled,
        **course(arm),
    }


def _share(e: Estimate) -> Estimate:
    """An estimate of a share, whose interval ends at 0 and 1."""
    return replace(e, low=max(e.low, 0.0), high=min(e.high, 1.0))
