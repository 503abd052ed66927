# SPDX-License-Identifier: Apache-2.0
"""Testing a trained model past its training length, paired: the same targets, only the context before them grows."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.encoding import Encoding
from posenc.encodings import Rotary
from posenc.lab.data import Text, TextBatch, window_ends
from posenc.lab.experiment import Scores, Variant
from posenc.lab.parallel import world
from posenc.transformer import TransformerBase

if TYPE_CHECKING:
    from posenc.lab.text import Settings

BATCH_TOKENS = 8192
BINS_PER_LENGTH = 4
"""Bins of the loss by position within one training length."""


def variants(name: str, encoding: Encoding, settings: "Settings") -> list[Variant]:
    """The model as trained and, for RoPE tested past its training length, the same weights under interpolation and
    NTK scaling, without retraining."""
    found = [Variant(name, lambda factor: encoding)]
    if type(encoding) is Rotary and len(settings.factors) > 1 and encoding.inv_freq.numel() > 1:
        rope = encoding
        for label, schedule in (("NTK", "ntk"), ("PI", "linear")):
            found.append(
                Variant(f"{name} + {label}", lambda f, s=schedule: rope.with_schedule(s, factor=f), trained=False)  # type: ignore[misc]
            )
    return found


@torch.no_grad()
def evaluate(
    model: TransformerBase,
    variant: Variant,
    text: Text | Tensor,
    settings: "Settings",
    on_batch: Callable[[int], None] = lambda n: None,
) -> Scores:
    """Test one variant on a held-out text; on_batch is called with the number of tokens read. The loss of a window is the mean
    over its targets; by position, over the positions of each bin, at the longest length."""
    s, here = settings, world()
    tokens, ends = Text.of(text).tokens, window_ends(text, s)
    paired: dict[int, Tensor] = {}
    by_position = torch.empty(0)
    own = model.encoding
    try:
        for factor in s.factors:
            model.encoding = variant.at(factor).to(here.device)
            length = s.length * factor
            batches = ends.split(max(1, BATCH_TOKENS // length) * here.size)
            losses = torch.cat([_losses(model, tokens, batch, length, on_batch) for batch in batches])
            paired[factor] = losses[:, -s.targets :].mean(1)
            if factor == s.factors[-1]:
                width = max(1, s.length // BINS_PER_LENGTH)
                bins = losses[:, : losses.shape[1] // width * width]
                by_position = bins.unflatten(1, (-1, width)).mean(2)
    finally:
        model.encoding = own
    return Scores(paired, by_position)


@torch.no_grad()
def accuracy(
    model: TransformerBase, text: Text | Tensor, settings: "Settings", seen: int, period: int | None = None
) -> Tensor:
    """The share of the targets that the model predicts, (windows,), on the passages and targets of `evaluate`.

    seen: how many tokens before its successor the model reads, up to the longest test length. period: the targets follow
    the last `period` tokens of the passage, repeated, instead of the passage.
    """
    ends = window_ends(text, settings)
    texts = Text.of(text).tokens[ends[:, None] + torch.arange(-seen, 1)].long()
    if period is not None:
        texts = texts[:, -period:].repeat(1, seen // period + 1)[:, -seen - 1 :]
    batches = texts.split(max(1, BATCH_TOKENS // seen))
    likeliest = torch.cat([model(batch[:, :-1])[:, -settings.targets :].argmax(-1) for batch in batches])
    return (likeliest == texts[:, -settings.targets :]).double().mean(1)


def _losses(
    model: TransformerBase, tokens: Tensor, ends: Tensor, length: int, on_batch: Callable[[int], None]
) -> Tensor:
    """(len(ends), length): the loss of each of the `length` tokens up to and including ends."""
    here = world()
    windows = TextBatch(tokens[ends[:, None] - length + torch.arange(length + 1)].long())
    logits, targets, positions = here.forward(model, model.encoding, windows)
    on_batch(len(ends) * length)
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return here.gather(losses, len(ends), positions)
