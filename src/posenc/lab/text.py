# SPDX-License-Identifier: Apache-2.0
"""Comparisons of text: the next token, tested past the training length. Settings, numbers, and sentences that follow from
them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from posenc.encoding import Encoding, Sum
from posenc.encodings import T5
from posenc.errors import InputError, check_value, listed
from posenc.functional import t5_bucket
from posenc.lab.data import DATA_TOKENS, Text, TextBatch, check_long_enough, draw, inside_documents, load, window_ends
from posenc.lab.data import Corpus as TextCorpus
from posenc.lab.evaluate import BINS_PER_LENGTH, evaluate, variants
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
from posenc.transformer import Transformer, TransformerBase, TransformerConfig

__all__ = ["CORE", "NAIVE", "PRESETS", "Run", "Settings"]

HOLDS = 0.05
"""A variant holds when its loss at the longest length has risen by less than this (nats per token, upper bound)."""
UNDERTRAINED = 0.3
"""A variant this much behind the best at the training length has learned too little for its flatness to count."""
RARE = 0.1
"""T5's last bucket is hardly trained when less than this share of the training pairs falls into it."""


@dataclass(frozen=True)
class Settings(Experiment):
    """Everything that the runs of one comparison of text share.

    length: tokens of a training sequence. factors: test lengths over `length`; the first is 1. windows: held-out passages;
    targets: the tokens at their end that are scored. tokenizer: "bytes", "bpe:N" or a Hugging Face tokenizer, with
    vocab_size ids; packed: whole documents fill a training sequence, each at positions of its own. The text has to be
    loaded with the same three. The rest: see `Experiment`.
    """

    length: Annotated[int, "training length in tokens (of the tokenizer: bytes, unless tokenizer is another)"] = 128
    factors: Annotated[tuple[int, ...], "test lengths over the training length"] = (1, 2, 4, 8)
    steps: int = 120
    batch_size: int = 12
    dim: int = 128
    num_layers: int = 2
    num_heads: int = 4
    head_dim: int | None = 48
    learning_rate: float = 0.05
    adamw_learning_rate: float = 0.01
    position_learning_rate: float = 0.05
    windows: Annotated[int, "held-out passages"] = 24
    targets: Annotated[int, "scored tokens at the end of each passage"] = 64
    tokenizer: Annotated[
        str,
        "bytes (default), bpe:4096 (learned from the training text), or a Hugging Face tokenizer's name or folder",
    ] = "bytes"
    vocab_size: int = 256
    packed: Annotated[bool, "fill training sequences with complete documents, each with its own positions"] = False

    name = "text"
    data = "pydoc"
    data_options: ClassVar[Mapping[str, Any]] = {"text_column": None, "data_tokens": DATA_TOKENS}
    tokens_by = "length"
    LEAST = {"length": 8, **Experiment.LEAST, "windows": 2, "vocab_size": 1}
    MOST = {"length": 2**20, **Experiment.MOST, "windows": 10**6}

    def __post_init__(self) -> None:
        super().__post_init__()
        for factor in self.factors:
            check_value("factors", factor, int)
        if not self.factors or self.factors[0] != 1 or list(self.factors) != sorted(set(self.factors)):
            raise InputError(f"factors={' '.join(map(str, self.factors))}: start at 1 and grow, as in 1 2 4 8")
        if not 1 <= self.targets <= self.length:
            raise InputError(f"targets={self.targets}: must lie between 1 and length={self.length}")
        if not self.tokenizer.strip():
            raise InputError("tokenizer='': give bytes, bpe:4096, or the name or folder of a Hugging Face tokenizer")
        if self.tokenizer == "bytes" and self.vocab_size != 256:
            raise InputError(f"vocab_size={self.vocab_size}: bytes have 256 values")

    @property
    def unit(self) -> str:
        """What a token is called."""
        return unit(self.tokenizer)

    @property
    def longest(self) -> int:
        """The longest test length."""
        return self.length * self.factors[-1]

    @property
    def conditions(self) -> tuple[int, ...]:
        return self.factors

    @property
    def trained_at(self) -> int:
        return 1

    @property
    def examples(self) -> int:
        return self.windows

    @property
    def bins(self) -> bool:
        return True

    def tokens_at(self, condition: int) -> int:
        return self.length * condition

    def size_at(self, condition: int) -> int:
        return self.length * condition

    @property
    def rows(self) -> int:
        return self.vocab_size

    def check_largest(self) -> None:
        if self.longest > self.MOST["length"]:
            raise InputError(f"factors={self.factors[-1]}: times length it must be at most {self.MOST['length']}")

    def check_shards(self, shards: int) -> None:
        if shards > 1 and self.length % (2 * shards):
            raise InputError(
                f"length={self.length}: sequence_shards={shards} cut it into {2 * shards} equal parts, two "
                f"for each process; give a multiple of {2 * shards}"
            )

    def model(self) -> TransformerConfig:
        return TransformerConfig(self.vocab_size, self.dim, self.num_layers, self.num_heads, head_dim=self.head_dim)

    def make_model(self, encoding: Encoding) -> Transformer:
        return Transformer(self.model(), encoding)

    def make_encoding(self, name: str) -> Encoding:
        return self.create(name, max_positions=self.length, causal=True)

    # ---------------------------------------------------------------- data and test

    def load(self, source: str, **options: Any) -> tuple[TextCorpus, "Settings"]:
        options = {**self.data_options, **options}
        corpus = load(
            source,
            self.tokenizer,
            packed=self.packed,
            text_column=options["text_column"],
            max_tokens=options["data_tokens"],
        )
        return corpus, replace(self, vocab_size=corpus.vocab_size)

    def check_data(self, corpus: TextCorpus) -> None:
        check_long_enough(corpus, self)

    def example(self, condition: int) -> Tensor:
        return torch.zeros(1, self.tokens_at(condition), dtype=torch.long)

    def draw(self, part: Text | Tensor, generator: torch.Generator) -> TextBatch:
        return draw(part, self, generator)

    def variants(self, name: str, encoding: Encoding) -> list[Variant]:
        return variants(name, encoding, self)

    def evaluate(
        self,
        model: TransformerBase,
        variant: Variant,
        part: Text | Tensor,
        on_batch: Callable[[int], None] = lambda tokens: None,
    ) -> Scores:
        return evaluate(model, variant, part, self, on_batch)

    # ---------------------------------------------------------------- numbers and words

    def ranked(self, records: Mapping[Run, RunRecord]) -> list[Aggregate]:
        """The lowest loss at the longest length first."""
        return sorted(collect(records), key=lambda variant: level(variant, self.factors[-1]).mean)

    def numbers(self, ranked: Sequence[Aggregate], corpus: TextCorpus) -> dict[str, Any]:
        return numbers(ranked, self, corpus.bytes_per_token)

    def answer(self, ranked: Sequence[Aggregate], corpus: TextCorpus) -> list[str]:
        return answer(ranked, self)

    def limits(self, ranked: Sequence[Aggregate], corpus: TextCorpus) -> list[str]:
        return limits(ranked, self) + text_limits(corpus, self)


def unit(tokenizer: str) -> str:
    """What a token of a tokenizer is called."""
    return "byte" if tokenizer == "bytes" else "token"


# -------------------------------------------------------------------- numbers


def numbers(variants: Sequence[Aggregate], settings: Settings, bytes_per_token: float = 1.0) -> dict[str, Any]:
    """The measured part of results.json, for ranked variants. bytes_per_token: of the held-out text."""
    best = {f: min(variants, key=lambda variant: level(variant, f).mean) for f in settings.factors}
    return {
        "arms": [_row(variant, best, settings, bytes_per_token) for variant in variants],
        "extensions": _extensions(variants, settings),
    }


def _row(
    variant: Aggregate, best: Mapping[int, Aggregate], settings: Settings, bytes_per_token: float
) -> dict[str, Any]:
    lengths = [
        {
            "factor": f,
            "length": f * settings.length,
            "loss": asdict(level(variant, f)),
            "change": asdict(change(variant, f)),
            "behind_best": asdict(difference(variant, best[f], f)),
            "bits_per_byte": level(variant, f).mean / math.log(2) / bytes_per_token,
        }
        for f in settings.factors
    ]
    return {
        **naming(variant),
        "verdict": verdict(variant, settings),
        "lengths": lengths,
        "by_position": _by_position(variant, sorted(variant.scores), settings),
        **course(variant),
    }


def verdict(variant: Aggregate, settings: Settings) -> str:
    """What happens past the training length, in a word or three."""
    return verdict_of([change(variant, f) for f in settings.factors[1:]], HOLDS)


def _extensions(variants: Sequence[Aggregate], settings: Settings) -> list[dict[str, Any]]:
    """Each untrained variant against the model it takes its weights from, at every length past the training one."""
    named = {variant.name: variant for variant in variants}
    return [
        {
            "arm": variant.name,
            "against": variant.encoding,
            "factor": f,
            "difference": asdict(difference(variant, named[variant.encoding], f)),
        }
        for variant in variants
        if not variant.trained
        for f in settings.factors[1:]
    ]


def _by_position(variant: Aggregate, seeds: Sequence[int], settings: Settings) -> list[dict[str, float]]:
    losses = torch.tensor([variant.scores[s].by_position for s in seeds], dtype=torch.float64)  # seeds, windows, bins
    width = max(1, settings.length // BINS_PER_LENGTH)
    rows = []
    for index in range(losses.shape[2]):
        e = estimate(losses[:, :, index])
        rows.append({"position": (index + 0.5) * width, "loss": e.mean, "low": e.low, "high": e.high})
    return rows


# -------------------------------------------------------------------- words


def answer(variants: Sequence[Aggregate], settings: Settings) -> list[str]:
    """What a reader wants to know first, for ranked variants."""
    trained = [a for a in variants if a.trained]
    if not trained:
        return []
    within = min(trained, key=lambda a: level(a, 1).mean)
    ties = [a.name for a in trained if a is not within and difference(a, within, 1).low <= 0]
    tied = f"; {listed(ties)} cannot be told apart from it" if ties else "; every other encoding is measurably behind"
    opening = f"At the training length of {settings.length} {settings.unit}s, {within.name} predicts best"
    lines = [f"{opening} ({level(within, 1).mean:.3f} nats per {settings.unit}){tied if len(trained) > 1 else ''}."]
    if len(settings.factors) > 1:
        last = settings.factors[-1]
        lines.append(_past(variants, settings, f"At {last} times that length ({settings.longest} {settings.unit}s)"))
        lines += _by_verdict(trained, settings)
        lines += _without_retraining(variants, settings)
    return lines


def _by_verdict(trained: Sequence[Aggregate], settings: Settings) -> list[str]:
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


def _without_retraining(variants: Sequence[Aggregate], settings: Settings) -> list[str]:
    named = {variant.name: variant for variant in variants}
    lines = []
    for variant in variants:
        if variant.trained:
            continue
        found = [difference(variant, named[variant.encoding], f) for f in settings.factors[1:]]
        by = ", ".join(f"{e.mean:+.3f}" for e in found)
        outcomes = ["better" if e.high < 0 else "worse" if e.low > 0 else "neither" for e in found]
        if set(outcomes) in ({"better"}, {"worse"}):
            outcome = f"is {outcomes[0]} than {variant.encoding} as trained at every tested length past training"
        else:
            at = {o: [str(f * settings.length) for f, x in zip(settings.factors[1:], outcomes, strict=True) if x == o]
                  for o in ("better", "worse")}  # fmt: skip
            parts = [f"{o} at {listed(lengths)} {settings.unit}s" for o, lengths in at.items() if lengths]
            outcome = f"against {variant.encoding} as trained, is measurably {' and '.join(parts) or 'neither better nor worse'}"
        lines.append(f"{variant.name}, without retraining, {outcome} ({by}).")
    return lines


def _past(variants: Sequence[Aggregate], settings: Settings, opening: str) -> str:
    last = settings.factors[-1]
    best = variants[0]
    ties = [a.name for a in variants[1:] if difference(a, best, last).low <= 0]
    tied = f"; {listed(ties)} cannot be told apart from it" if ties else ""
    return f"{opening}, {best.name} predicts best ({level(best, last).mean:.3f}){tied}."


def limits(variants: Sequence[Aggregate], settings: Settings) -> list[str]:
    """What this comparison does not show, as far as it can be computed from what was run."""
    notes = []
    trained = [a for a in variants if a.trained]
    best = min((level(a, 1).mean for a in trained), default=0.0)
    late = [a.name for a in trained if level(a, 1).mean > best + UNDERTRAINED]
    if late:
        notes.append(
            f"{listed(late)} learned slowly: after {settings.steps} steps the loss is still more than {UNDERTRAINED} "
            "above the best. A model that has learned little has little to lose past its training length, so a flat curve "
            "is no merit there."
        )
    for variant in trained:
        made = Run(variant.encoding, 0, settings, "").make_encoding()
        for part in made if isinstance(made, Sum) else [made]:
            notes += _part_notes(variant.name, part, settings)
    if any(not a.trained for a in variants):
        notes.append(
            "NTK and PI are the same trained weights under other frequencies, with no fine-tuning; interpolation (PI) is "
            "meant to be followed by some."
        )
    return notes + general_limits(variants, settings, f"{settings.unit}s of one text", "passages")


def text_limits(corpus: TextCorpus, settings: Settings) -> list[str]:
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


CORE = ("none", "sinusoidal", "learned", "rope", "t5", "alibi")
NAIVE = ("normalized", "integer", "binary")

PRESETS = Settings.presets = {
    "quick": Preset(Settings(steps=60), ("none", "sinusoidal", "rope", "alibi"), 2),
    "standard": Preset(Settings(), CORE, 4),
    "thorough": Preset(Settings(steps=500, num_layers=4, windows=96), (*CORE, *NAIVE), 5),
}
