# SPDX-License-Identifier: Apache-2.0
"""The answer in words, and what the run does not show: every sentence follows from the numbers."""

from collections.abc import Sequence

import torch

from posenc.encoding import Encoding, Sum
from posenc.encodings import T5
from posenc.errors import listed
from posenc.functional import t5_bucket
from posenc.lab.config import Recipe, Run, Settings
from posenc.lab.data import Corpus, inside_documents, window_ends
from posenc.lab.results import Row, change, difference, level, verdict
from posenc.measuring.statistics import Estimate

UNDERTRAINED = 0.3
"""An arm this much behind the best at the training length has learned too little for its flatness to count."""
RARE = 0.1
"""T5's last bucket is hardly trained when less than this share of the training pairs falls into it."""


def answer(arms: Sequence[Row], settings: Settings) -> list[str]:
    """What a reader wants to know first, for ranked arms."""
    trained = [a for a in arms if a.trained]
    if not trained:
        return []
    within = min(trained, key=lambda a: level(a, 1).mean)
    ties = [a.name for a in trained if a is not within and difference(a, within, 1).low <= 0]
    tied = f"; {listed(ties)} cannot be told apart from it" if ties else "; every other encoding is measurably behind"
    opening = f"At the training length of {settings.length} {settings.unit}s, {within.name} predicts best"
    lines = [f"{opening} ({level(within, 1).mean:.3f} nats per {settings.unit}){tied if len(trained) > 1 else ''}."]
    if len(settings.factors) > 1:
        last = settings.factors[-1]
        lines.append(_past(arms, settings, f"At {last} times that length ({settings.longest} {settings.unit}s)"))
        lines += _by_verdict(trained, settings)
        lines += _without_retraining(arms, settings)
    return lines


def _by_verdict(trained: Sequence[Row], settings: Settings) -> list[str]:
    first, last = settings.factors[1], settings.factors[-1]
    openings = {
        "holds": ("Holds its loss", last),
        "degrades": (f"Degrades with length, by {last} times", last),
        "breaks at once": (f"Breaks as soon as the text is {first} times as long", first),
        "unclear": (f"Unclear at {last} times the length", last),
    }
    lines = []
    for outcome, (opening, factor) in openings.items():
        found = [f"{a.name} ({_signed(change(a, factor))})" for a in trained if verdict(a, settings) == outcome]
        if found:
            lines.append(f"{opening}: {listed(found)}.")
    return lines


def _without_retraining(arms: Sequence[Row], settings: Settings) -> list[str]:
    named = {arm.name: arm for arm in arms}
    lines = []
    for arm in arms:
        if arm.trained:
            continue
        found = [difference(arm, named[arm.encoding], f) for f in settings.factors[1:]]
        by = ", ".join(f"{e.mean:+.3f}" for e in found)
        outcomes = ["better" if e.high < 0 else "worse" if e.low > 0 else "neither" for e in found]
        if set(outcomes) in ({"better"}, {"worse"}):
            outcome = f"is {outcomes[0]} than {arm.encoding} as trained at every tested length past training"
        else:
            at = {o: [str(f * settings.length) for f, x in zip(settings.factors[1:], outcomes, strict=True) if x == o]
                  for o in ("better", "worse")}  # fmt: skip
            parts = [f"{o} at {listed(lengths)} {settings.unit}s" for o, lengths in at.items() if lengths]
            outcome = (
                f"against {arm.encoding} as trained, is measurably {' and '.join(parts) or 'neither better nor worse'}"
            )
        lines.append(f"{arm.name}, without retraining, {outcome} ({by}).")
    return lines


def _past(arms: Sequence[Row], settings: Settings, opening: str) -> str:
    last = settings.factors[-1]
    best = arms[0]
    ties = [a.name for a in arms[1:] if difference(a, best, last).low <= 0]
    tied = f"; {listed(ties)} cannot be told apart from it" if ties else ""
    return f"{opening}, {best.name} predicts best ({level(best, last).mean:.3f}){tied}."


def limits(arms: Sequence[Row], settings: Settings) -> list[str]:
    """What this comparison does not show, as far as it can be computed from what was run."""
    notes = []
    trained = [a for a in arms if a.trained]
    best = min((level(a, 1).mean for a in trained), default=0.0)
    late = [a.name for a in trained if level(a, 1).mean > best + UNDERTRAINED]
    if late:
        notes.append(
            f"{listed(late)} learned slowly: after {settings.steps} steps the loss is still more than {UNDERTRAINED} "
            "above the best. A model that has learned little has little to lose past its training length, so a flat curve "
            "is no merit there."
        )
    for arm in trained:
        made = Run(arm.encoding, 0, settings, "").make_encoding()
        for part in made if isinstance(made, Sum) else [made]:
            notes += _part_notes(arm.name, part, settings)
    if any(not a.trained for a in arms):
        notes.append(
            "NTK and PI are the same trained weights under other frequencies, with no fine-tuning; interpolation (PI) is "
            "meant to be followed by some."
        )
    return notes + general_limits(arms, settings, f"{settings.unit}s of one text", "passages")


def general_limits(arms: Sequence[Row], settings: Recipe, data: str, examples: str) -> list[str]:
    """What no comparison of one small model shows. data: what it was trained on; examples: what it was tested on."""
    notes = [
        f"One small model ({settings.num_layers} layers, width {settings.dim}), {data}, {settings.steps} steps, "
        "the same learning rates given to all. The order may differ at other sizes; the intervals cover the choice of test "
        f"{examples} and of seeds, not that."
    ]
    if len({s for a in arms for s in a.scores}) == 1:
        notes.append(f"Only one seed was run: the intervals cover the test {examples}, not the luck of training.")
    return notes


def text_limits(corpus: Corpus, settings: Settings) -> list[str]:
    """What the text, as it was cut, does not show."""
    notes = []
    if settings.packed and inside_documents(corpus.test, settings):
        tested = len(corpus.test.document(window_ends(corpus.test, settings)).unique())
        notes.append(
            f"The test passages lie in {tested} of {len(corpus.test.edges) - 1} held-out documents: a passage needs one "
            f"that is longer than {settings.longest} {settings.unit}s, so shorter ones are trained on, but not tested."
        )
    elif settings.packed:
        notes.append(
            f"Too few held-out documents are longer than {settings.longest} {settings.unit}s: the test passages run over "
            "the ends of documents, which the training sequences, being packed, never do."
        )
    if settings.tokenizer != "bytes":
        notes.append(
            f"Losses are per token of {settings.tokenizer}, and lengths are in its tokens. To compare tokenizers, take bits "
            f"per byte: at {corpus.bytes_per_token:.2f} bytes per token, the average of the held-out text and not of the "
            "scored tokens alone."
        )
    return notes


def _part_notes(name: str, part: Encoding, settings: Settings) -> list[str]:
    if len(settings.factors) == 1:
        return []
    if isinstance(part, T5):
        return _t5_notes(name, part, settings)
    clamps = getattr(part, "beyond", None) == "clamp"
    if clamps and part.max_positions is not None and part.max_positions < settings.longest:
        last = part.max_positions - 1
        return [f"{name} has no code past position {last}: later tokens are given its last one."]
    return []


def _t5_notes(name: str, encoding: T5, settings: Settings) -> list[str]:
    length, unit = settings.length, settings.unit
    distances = torch.arange(length)
    buckets = t5_bucket(-distances, encoding.bidirectional, encoding.num_buckets, encoding.max_distance)
    last = t5_bucket(torch.tensor([-(10**6)]), encoding.bidirectional, encoding.num_buckets, encoding.max_distance)
    pairs = length - distances
    share = pairs[buckets == last].sum().item() / pairs.sum().item()
    if share == 0:
        return [
            f"{name} gives all distances past its last bucket's edge one bias, and no pair of a training text of "
            f"{length} {unit}s falls into that bucket: past the training length its bias is as it was initialised."
        ]
    if share > RARE:
        return []
    return [
        f"{name} gives all distances from {int(distances[buckets == last][0])} on one bias, and only {100 * share:.1f} % "
        f"of the pairs in a training text of {length} {unit}s are that far apart: its far buckets are hardly trained here, "
        "so this run does not settle how well it extrapolates. Longer training or longer texts do."
    ]


def _signed(e: Estimate) -> str:
    return f"{e.mean:+.3f} ± {(e.high - e.low) / 2:.3f}"
