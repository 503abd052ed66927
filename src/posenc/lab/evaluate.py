# SPDX-License-Identifier: Apache-2.0
"""Testing a trained model, paired: the same examples and targets under every condition."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.lab.experiment import Experiment, Variant, current_execution
from posenc.lab.transformer import TransformerBase

BATCH_TOKENS = 8192
"""Tokens of one forward pass."""


@torch.no_grad()
def score(
    model: TransformerBase,
    variant: Variant,
    condition: int,
    settings: Experiment,
    read: Callable[[Tensor], Any],
    on_batch: Callable[[int], None] = lambda tokens: None,
    shape: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss in nats of every target under a condition, and 1 where the most likely class is right: two tensors
    (examples, ...). read: the examples with some indices; on_batch is called with how many tokens have been read. shape: how many
    examples, of how many tokens, if not those of the settings."""
    here, before, scores = current_execution(), model.encoding, []
    examples, tokens = shape or (settings.examples, settings.tokens_at(condition))
    model.encoding = variant.at(condition).to(here.place)
    try:
        for rows in torch.arange(examples).split(max(1, BATCH_TOKENS // tokens)):
            logits, targets = here.forward(model, read(rows))
            losses = F.cross_entropy(logits.movedim(-1, 1), targets, reduction="none")
            both = torch.stack((losses, (logits.argmax(-1) == targets).to(losses.dtype)), -1)
            scores.append(both)  # a GPU goes on: nothing is read before the last batch
            on_batch(len(rows) * tokens)
    finally:
        model.encoding = before
    losses, hits = torch.cat(scores).cpu().unbind(-1)
    return losses.contiguous(), hits.contiguous()
