# SPDX-License-Identifier: Apache-2.0
"""Comparisons of text: the next token, tested past the training length."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from posenc.encoding import Encoding
from posenc.encodings import Rotary
from posenc.errors import InputError, check_value
from posenc.lab import budgets
from posenc.lab.data import Corpus, Text, TextBatch, draw, inside_documents, load, window_ends
from posenc.lab.data.corpus_text import HELD_OUT
from posenc.lab.data.load_text import DATA_TOKENS
from posenc.lab.data.tokens import bpe_size
from posenc.lab.evaluate import score
from posenc.lab.experiment import CORE, LEADERBOARD, TEN, Criterion, Experiment, Preset, Scores, Variant
from posenc.lab.records import BUDGET, CONTEXT, Aggregate, level
from posenc.lab.statistics import Estimate, estimate
from posenc.lab.transformer import TransformerBase

__all__ = ["CORE", "PRESETS", "Settings"]


FAR = 0.01
"""Nats by which far context has to lower the loss, at the lower end of the interval."""
HARM = 0.05
"""Nats by which it may raise the loss, at the upper end of the interval, and does no harm."""
MOST_READ = 4
"""Times that a training may read its text, of which more tells little of other text (Muennighoff et al. 2023)."""


def use(gain: Estimate) -> str:
    """What context beyond that of training does."""
    if gain.low > FAR:
        return "gains from far context"
    return "does no harm" if gain.low > -HARM else "harms" if gain.high < -FAR else "unclear"


@dataclass(frozen=True, kw_only=True)
class Settings(Experiment):
    """Everything that the runs of one comparison of text share.

    The first of the factors is 1. The text has to be loaded with the same tokenizer, vocab_size and packed. The rest: see
    `Experiment`.
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
    packed: Annotated[bool, "fill training sequences with complete documents, each with positions from 0"] = False
    contexts: Annotated[
        tuple[int, ...],
        "also test the same targets with at most so many tokens before them (default: a quarter of the training length, and all of it)",
    ] = ()
    curve: Annotated[
        bool, "measure the loss at a quarter, half and all of the steps, and predict the order at four times the steps"
    ] = False

    name = "text"
    data = "pydoc"
    data_options: ClassVar[Mapping[str, Any]] = {"text_column": None, "data_tokens": DATA_TOKENS}
    criterion = Criterion()
    examples_by = "windows"
    LEAST = {"length": 8, **Experiment.LEAST, "windows": 2, "vocab_size": 1}
    MOST = {"length": 2**20, **Experiment.MOST, "windows": 10**6}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.targets <= self.length:
            raise InputError(f"must lie between 1 and length={self.length}", targets=self.targets)
        for context in self.contexts:
            check_value("contexts", context, int)
        ascending = list(self.contexts) == sorted(set(self.contexts))
        if self.contexts and not (ascending and self.contexts[0] >= 1 and self.contexts[-1] <= self.longest):
            why = f"must grow from 1 or more to at most {self.longest}, the longest test"
            raise InputError(why, contexts=self.contexts)
        if not all(map(self.scored_at_once, self.contexts)):
            raise InputError(f"has no room before {self.targets} targets", "give fewer targets", contexts=self.contexts)
        if self.curve:
            budgets.check(self.steps)
        bpe_size(self.tokenizer)  # refuses sizes that no vocabulary has
        if self.tokenizer == "bytes" and self.vocab_size != 256:
            raise InputError("bytes have 256 values", vocab_size=self.vocab_size)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON's types, without contexts or curve where they are the default."""
        return {name: value for name, value in super().to_dict().items() if name not in ("contexts", "curve") or value}

    @property
    def unit(self) -> str:
        """What a token is called."""
        return "byte" if self.tokenizer == "bytes" else "token"

    @property
    def tested_contexts(self) -> tuple[int, ...]:
        """The contexts asked for; without any, a quarter of the training length, if the targets have room for it, and all of it."""
        return self.contexts or tuple(filter(self.scored_at_once, (self.length // 4, self.length)))

    @property
    def longest(self) -> int:
        """The longest test length."""
        return self.length * self.factors[-1]

    @property
    def examples(self) -> int:
        return self.windows

    @property
    def rows(self) -> int:
        return self.vocab_size

    # ---------------------------------------------------------------- data and test

    def load(self, source: str, **options: Any) -> tuple[Corpus, "Settings"]:
        corpus = load(source, self.tokenizer, packed=self.packed, **{**self.data_options, **options})
        return corpus, replace(self, vocab_size=corpus.vocab_size)

    def check_data(self, corpus: Corpus) -> None:
        for name in ("tokenizer", "vocab_size", "packed"):
            loaded, given = getattr(corpus, name), getattr(self, name)
            if loaded != given:
                raise InputError(f"must be {loaded!r}, with which the corpus was loaded", argument=name, value=given)
        test, least = self.longest + self.windows * self.targets + 1, math.ceil(self.steps / MOST_READ)
        train = least * self.batch_size * self.length + 1
        if len(corpus.test) < test or len(corpus.train) < train:
            needed = max(round(test / HELD_OUT), round(train / (1 - HELD_OUT)))
            raise InputError(
                f"{len(corpus.train) + len(corpus.test)} {self.unit}s are too short to test at {self.longest} tokens with {self.windows} "
                f"windows and train {self.steps} steps, read {MOST_READ} times at most; needs about {needed} {self.unit}s",
                "give a longer text, or smaller length, factors, windows, steps or batch_size",
                data=corpus.name,
            )
        if corpus.test.starts is not None and not self.packed and not inside_documents(corpus.test, self):
            passages = f"{self.windows} passages of {self.longest} {self.unit}s with {self.targets} targets each"
            remedy = "give smaller windows, length or factors, or a longer text"
            raise InputError(f"its held-out files have no room for {passages}", remedy, data=corpus.name)
        if self.different_passages(corpus) == 1:
            why = f"all {self.windows} test passages of {self.longest} {self.unit}s are the same, so their loss says nothing of another text"
            raise InputError(why, "give a text that does not repeat itself", data=corpus.name)
        if corpus.packed and int(corpus.train.edges.diff().max()) < 2:
            why = f"no document of {corpus.name} has two {self.unit}s, so there is nothing to predict"
            raise InputError(why, "packed=False joins documents", packed=True)

    def different_passages(self, corpus: Corpus) -> int:
        """How many of the test passages, with what is before their targets at the longest length, differ from each other."""
        tokens, before = corpus.test.tokens, torch.arange(-self.longest, 1)
        ends = window_ends(corpus.test, self)
        return len({hashlib.sha256(tokens[end + before].numpy().tobytes()).digest() for end in ends})

    def draw(self, part: Text | Tensor, generator: torch.Generator) -> TextBatch:
        return draw(part, self, generator)

    def variants(self, name: str, encoding: Encoding) -> list[Variant]:
        """The model as trained and, for RoPE tested past its training length, the same weights under NTK scaling and
        interpolation, without retraining."""
        variants = super().variants(name, encoding)
        if type(encoding) is Rotary and self.larger and encoding.inv_freq.numel() > 1:
            rope = encoding
            variants += [
                Variant(f"{name} + NTK", lambda factor: rope.with_schedule("ntk", factor=factor), trained=False),
                Variant(f"{name} + PI", lambda factor: rope.with_schedule("linear", factor=factor), trained=False),
            ]
        return variants

    @torch.no_grad()
    def evaluate(
        self,
        model: TransformerBase,
        variant: Variant,
        part: Text | Tensor,
        on_batch: Callable[[int], None] = lambda tokens: None,
        conditions: Sequence[int] | None = None,
    ) -> Scores:
        """The loss of a window is the mean over its targets."""
        tokens, ends = Text.of(part).tokens, window_ends(part, self)
        paired: dict[int, Tensor] = {}
        for factor in conditions or self.factors:
            before = torch.arange(-self.length * factor, 1)
            read = lambda rows, before=before: TextBatch(tokens[ends[rows, None] + before].long())  # noqa: E731
            losses, _ = score(model, variant, factor, self, read, on_batch)
            paired[factor] = losses[:, -self.targets :].mean(1)
        by_context = {
            context: self._seeing(context, model, variant, tokens, ends, on_batch)
            for context in (() if conditions else self.tested_contexts)
        }
        return Scores(paired, {CONTEXT: by_context} if by_context else {})

    @property
    def measured(self) -> Mapping[str, Sequence[int]]:
        return {CONTEXT: self.tested_contexts} | ({BUDGET: self.budgets} if self.curve else {})

    @property
    def budgets(self) -> Sequence[int]:
        return budgets.budgets(self.steps) if self.curve else ()

    def scored_at_once(self, context: int) -> int:
        """How many of the targets are scored in one pass: each sees at most `context` tokens, and at least 7/8 of them, or, where the
        passage has no more before its first target, as many as in the test of the longest length. 0: it has too few for any."""
        shares = [n for n in range(1, min(self.targets, context) + 1) if self.targets % n == 0]
        fitting = [n for n in shares if context + self.targets - n <= self.longest]
        return max((n for n in fitting if n == 1 or 8 * n <= context), default=min(fitting, default=0))

    def _seeing(
        self,
        context: int,
        model: TransformerBase,
        variant: Variant,
        tokens: Tensor,
        ends: Tensor,
        on_batch: Callable[[int], None],
    ) -> Tensor:
        """(windows,): the mean loss of the same targets, each with at most `context` tokens before it."""
        at_once = self.scored_at_once(context)
        last = (ends[:, None] - torch.arange(0, self.targets, at_once)).flatten()
        before = torch.arange(-context, 1)
        factor = next(factor for factor in self.factors if context <= self.length * factor)
        losses, _ = score(
            model, variant, factor, self, lambda rows: TextBatch(tokens[last[rows, None] + before].long()), on_batch,
            (len(last), context),
        )  # fmt: skip
        return losses[:, -at_once:].reshape(self.windows, self.targets).mean(1)

    @property
    def tested_tokens(self) -> int:
        passes = {context: self.targets // self.scored_at_once(context) for context in self.tested_contexts}
        return super().tested_tokens + self.windows * sum(context * count for context, count in passes.items())

    # ---------------------------------------------------------------- results

    def chance(self, corpus: Corpus, condition: int) -> float:
        """The loss of predicting each token by its frequency."""
        return corpus.by_frequency

    def point(self, variant: Aggregate, condition: int, corpus: Corpus) -> dict[str, Any]:
        return {"bits_per_byte": level(variant, condition).mean / math.log(2) / corpus.bytes_per_token}

    def row(self, variant: Aggregate) -> dict[str, Any]:
        """Losses by context, and by how much they fall up to the training length and from there to the longest, on the same targets."""
        of = {at: variant.values(at, sorted(variant.scores), CONTEXT) for at in self.tested_contexts}
        seen: dict[str, Any] = {
            "by_context": [{"context": at, **asdict(estimate(losses))} for at, losses in of.items()]
        }
        for name, near, far in (("gain_within", min(of), self.length), ("gain", self.length, max(of))):
            if near < far and self.length in of:
                gain = estimate(of[near] - of[far])
                seen[name] = {"from": near, "to": far, **asdict(gain)} | ({"use": use(gain)} if name == "gain" else {})
        return seen

    def limits(self, trained: Sequence[Aggregate], corpus: Corpus) -> list[str]:
        notes: list[str] = []
        if self.packed and not inside_documents(corpus.test, self):
            notes.append(
                f"Too few held-out documents are longer than {self.longest} {self.unit}s: the test passages cross the ends of "
                "documents, which the training sequences never do."
            )
        epochs = self.steps * self.batch_size * self.length / len(corpus.train)
        if epochs > 1:
            notes.append(f"The text was read {epochs:.1f} times.")
        if self.curve and (later := budgets.BEYOND * epochs) > 1:
            notes.append(
                f"{budgets.BEYOND * self.steps} steps would read the text {later:.1f} times; the prediction was tested on a text that was "
                "read once or less in that time."
            )
        if (different := self.different_passages(corpus)) < self.windows:
            notes.append(
                f"The text repeats itself: only {different} of the {self.windows} test passages differ, so the intervals are too narrow."
            )
        return notes


PRESETS = Settings.presets = {
    "quick": Preset(Settings(steps=60), ("none", "sinusoidal", "rope", "alibi"), 2),
    "standard": Preset(Settings(steps=200, curve=True), CORE, 1),
    "leaderboard": Preset(Settings(), LEADERBOARD, 4),
    "gpu": Preset(
        Settings(
            length=512, steps=800, batch_size=64, dim=512, num_layers=10, num_heads=8, head_dim=64, windows=64, targets=256,
            learning_rate=0.02, adamw_learning_rate=0.003, position_learning_rate=0.02,
        ),
        TEN,
        2,
        data="code",
    ),
}  # fmt: skip
