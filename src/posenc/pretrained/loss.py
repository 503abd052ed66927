# SPDX-License-Identifier: Apache-2.0
"""The loss of a causal language model on each token of a long text, in memory that does not grow with the logits."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.errors import InputError
from posenc.pretrained.calls import check_tokens, evaluating, fed_at_a_time

Progress = Callable[[int, int], object]
"""Called with the tokens that are done and how many there are."""


def loss_by_position(
    model: nn.Module,
    ids: Tensor,
    *,
    chunk: int = 512,
    window: int | None = None,
    stride: int | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """The negative log-likelihood, in nats, of each token given those before it.

    One pass over the whole text, fed to the model in chunks with its cache, so that logits exist for one chunk at a
    time. With `window`, what the model makes of a text cut off at the left instead: it reads windows of that many
    tokens from position 0, each `stride` further on, and a token counts in the first window that holds it.

    Args:
        model: a causal language model of transformers.
        ids: token ids (N,) or (batch, N).
        chunk: tokens fed at a time; all of a text at once, logits included, where it is longer than a model reads whose
            frequencies follow the length ("dynamic", "longrope").
        window: tokens of a window; None reads the whole text in one pass.
        stride: tokens by which windows advance, at most `window` and by default half of it: a token then sees at
            least window - stride others, but for the text's first ones.
        progress: called after each chunk with the tokens done and N.

    Returns:
        float32, of the shape of `ids`. Nothing predicts the first token: its entry is NaN, so that a slice of
        positions means what it says: `loss_by_position(model, ids)[8192:16384].mean()`.

    Raises:
        InputError: `ids` of another shape or beyond the vocabulary, or numbers that do not fit together.
    """
    return scores_by_position(model, ids, chunk=chunk, window=window, stride=stride, progress=progress)[0]


@torch.no_grad()
def scores_by_position(
    model: nn.Module,
    ids: Tensor,
    *,
    chunk: int = 512,
    window: int | None = None,
    stride: int | None = None,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor]:
    """`loss_by_position`, whose arguments it takes, and beside it whether each token is the one the model found likeliest:
    bool, of the same shape, False for the first token."""
    if ids.ndim not in (1, 2) or ids.shape[-1] < 2:
        raise InputError(f"ids of shape {tuple(ids.shape)}: give (N,) or (batch, N) with at least two tokens")
    if chunk < 1:
        raise InputError(f"chunk={chunk}: must be at least 1")
    if stride is not None and window is None:
        raise InputError(f"stride={stride} says how far windows advance: give window as well")
    check_tokens(model, ids)
    batch = ids.reshape(-1, ids.shape[-1]).to(next(model.parameters()).device)
    count = batch.shape[1]
    loss = torch.full(batch.shape, float("nan"), device=batch.device)
    hits = torch.zeros(batch.shape, dtype=torch.bool, device=batch.device)
    with evaluating(model):
        for start, scored, end in _windows(count, window, stride):
            cache = None
            bounds = [*range(start, end, fed_at_a_time(model, end - start, chunk)), end]
            for low, high in pairwise(bounds):
                output = model(batch[:, low:high], past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                targets = batch[:, low + 1 : high + 1]
                if high >= scored and targets.shape[1]:
                    logits = output.logits[:, : targets.shape[1]].float()
                    fresh = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
                    skip = max(scored - low - 1, 0)
                    stop = min(high, end - 1)
                    loss[:, low + 1 + skip : stop + 1] = fresh[:, skip : stop - low]
                    likeliest = logits.argmax(-1) == targets
                    hits[:, low + 1 + skip : stop + 1] = likeliest[:, skip : stop - low]
                if progress is not None:
                    progress(max(high, scored), count)
    return loss.reshape(ids.shape), hits.reshape(ids.shape)


def _windows(count: int, window: int | None, stride: int | None) -> Iterator[tuple[int, int, int]]:
    """(start, first token that is scored, end) of each window."""
    if window is None or window >= count:
        yield 0, 1, count
        return
    step = max(window // 2, 1) if stride is None else stride
    if window < 2 or not 0 < step < window:
        raise InputError(f"window={window}, stride={stride}: a window needs two tokens and a stride shorter than it")
    yield 0, 1, window
    for end in range(window + step, count + step, step):
        yield min(end, count) - window, end - step, min(end, count)
