# SPDX-License-Identifier: Apache-2.0
"""The answer of a comparison of images in words, and what the run does not show: every sentence follows from the numbers."""

from collections.abc import Sequence

from posenc.encodings import GridALiBi
from posenc.errors import listed
from posenc.lab.results import Row, change, difference, level
from posenc.lab.vision.config import ACCURACY, SHUFFLED_ACCURACY, ImageSettings
from posenc.lab.vision.pictures import ImageCorpus
from posenc.lab.vision.places import CELLS
from posenc.lab.vision.results import at_chance, best, control, verdict
from posenc.lab.wording import general_limits
from posenc.measuring.statistics import Estimate

UNDERTRAINED = 0.2
"""An arm this much behind the best at the size of training has learned too little for its steadiness to count."""


def answer(arms: Sequence[Row], corpus: ImageCorpus, settings: ImageSettings) -> list[str]:
    """What a reader wants to know first, for ranked arms."""
    s, trained = settings, [arm for arm in arms if arm.trained]
    if not trained:
        return []
    lines = [_best(trained, s.image_size, s, "At the training size of")]
    lines += [_best(arms, sizes[-1], s, "At") for sizes in (s.larger, s.smaller) if sizes]
    lost = [arm.name for arm in trained if at_chance(arm, corpus.chance, s)]
    if lost:
        lines.append(f"No better than always naming the commonest class ({percent(corpus.chance)}): {listed(lost)}.")
    for sizes, way in ((s.larger, "larger"), (s.smaller, "smaller")):
        lines += _by_verdict(trained, sizes, way, corpus.chance, s)
    lines.append(_shuffled(trained, s))
    return lines + [_fitted(arms, sizes[-1]) for sizes in (s.larger, s.smaller) if sizes and len(arms) > len(trained)]


def _best(arms: Sequence[Row], size: int, settings: ImageSettings, opening: str) -> str:
    first, side = best(arms, size), settings.side_at(size)
    ties = [arm.name for arm in arms if arm is not first and difference(first, arm, size, ACCURACY).low <= 0]
    others = "every other one is measurably behind"
    tied = f"; {listed(ties)} cannot be told apart from it" if ties else f"; {others}" if len(arms) > 1 else ""
    found = percent(level(first, size, ACCURACY).mean)
    return (
        f"{opening} {size} x {size} pixels ({side} x {side} patches), {first.name} is right most often ({found}){tied}."
    )


def _by_verdict(
    trained: Sequence[Row], sizes: Sequence[int], way: str, chance: float, settings: ImageSettings
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
        which = [arm for arm in trained if verdict(arm, sizes, chance, settings) == outcome]
        if which:
            found = [f"{arm.name} ({points(change(arm, size, settings.image_size, ACCURACY))})" for arm in which]
            lines.append(f"{opening}: {listed(found)}.")
    return lines


def _shuffled(trained: Sequence[Row], settings: ImageSettings) -> str:
    """How much of the answer comes from where things are."""
    size = settings.image_size
    by = max(trained, key=lambda arm: control(arm, settings).mean)
    whole, moved = level(by, size, ACCURACY).mean, level(by, size, SHUFFLED_ACCURACY).mean
    bag = [arm for arm in trained if arm.encoding == "none"]
    without = f"; a model without positions finds {percent(level(bag[0], size, ACCURACY).mean)}" if bag else ""
    return (
        f"With the patches of the test images shuffled, the accuracy of {by.name} goes from {percent(whole)} to "
        f"{percent(moved)}{without}."
    )


def _fitted(arms: Sequence[Row], size: int) -> str:
    """What fitting positions to a size without retraining does."""
    named = {arm.name: arm for arm in arms}
    by_outcome: dict[str, list[str]] = {"helps": [], "harms": [], "makes no measurable difference to": []}
    for arm in (arm for arm in arms if not arm.trained and arm.encoding in named):
        e = difference(arm, named[arm.encoding], size, ACCURACY)
        outcome = list(by_outcome)[0 if e.low > 0 else 1 if e.high < 0 else 2]
        by_outcome[outcome].append(f"{arm.encoding} ({points(e)})")
    said = "; it ".join(f"{outcome} {listed(which)}" for outcome, which in by_outcome.items() if which)
    return f"At {size} pixels, fitting positions to the image without retraining {said}."


def limits(arms: Sequence[Row], corpus: ImageCorpus, settings: ImageSettings) -> list[str]:
    """What this comparison does not show, as far as it can be computed from what was run."""
    s, notes = settings, []
    trained = [arm for arm in arms if arm.trained]
    top = max((level(arm, s.image_size, ACCURACY).mean for arm in trained), default=0.0)
    late = [
        arm.name
        for arm in trained
        if not at_chance(arm, corpus.chance, s) and level(arm, s.image_size, ACCURACY).mean < top - UNDERTRAINED
    ]
    if late:
        notes.append(
            f"After {s.steps} steps {listed(late)} {'is' if len(late) == 1 else 'are'} still more than "
            f"{100 * UNDERTRAINED:.0f} points below the best. A model that finds little has little to lose at other sizes, "
            "so a flat curve is no merit there."
        )
    for arm in trained:
        if isinstance(s.make_encoding(arm.encoding), GridALiBi):
            notes.append(
                f"{arm.name} knows how far apart two patches are, not in which direction: an image and its mirror image are "
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
    if any(not arm.trained for arm in arms):
        notes.append(
            "Resized tables and rescaled places are the same trained weights, with no fine-tuning at the new size, which "
            "usually follows."
        )
    return notes + general_limits(arms, s, "one set of images", "images")


def percent(share: float) -> str:
    """A share as a reader has it."""
    return f"{100 * share:.1f} %"


def points(e: Estimate) -> str:
    """An estimate of a difference of shares, in points of a hundred."""
    return f"{100 * e.mean:+.1f} ± {50 * (e.high - e.low):.1f} points".replace("-", "−")
