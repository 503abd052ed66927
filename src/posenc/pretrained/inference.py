# SPDX-License-Identifier: Apache-2.0
"""Running a transformers model without a trace in it: losses by position, cached batches, and checks before a pass."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from posenc.errors import InputError, check_integers, not_none
from posenc.pretrained.attach import attached
from posenc.pretrained.learned_table import check_rows
from posenc.pretrained.models import cache_name, unwrap
from posenc.pretrained.parameters import rope_parameters_by_type

Progress = Callable[[int, int], object]
"""Called with the number of tokens done, and of all."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout; afterwards each module is in its own mode again."""
    with modes_restored(model):
        model.eval()
        yield


@contextmanager
def modes_restored(model: nn.Module) -> Iterator[None]:
    """Restore the mode of each module and requires_grad of each weight afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    wanted = [(weight, weight.requires_grad) for weight in model.parameters()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for weight, trains in wanted:
            weight.requires_grad_(trains)


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

    One pass over the text, fed to the model in chunks with its cache, so that logits exist for one chunk at a time. With
    `window`, the model evaluates windows of that many tokens from position 0 instead, each `stride` further on, and a token
    counts in the first window that contains it: what the model makes of a text that is truncated on the left.

    Args:
        model: a causal language model of transformers.
        ids: token ids (N,) or (batch, N).
        chunk: tokens fed at a time; all at once where the text is longer than the context length of a model whose frequencies follow the
            length ("dynamic", "longrope").
        window: tokens of a window; None: the complete text in one pass.
        stride: tokens by which windows advance, at most `window` and by default half of it: a token then sees at
            least window - stride others, but for the text's first ones.
        progress: called after each chunk with the tokens done and N.

    Returns:
        float32, of the shape of `ids`. Nothing predicts the first token: its entry is NaN, so that a slice of
        positions means what it says: `loss_by_position(model, ids)[8192:16384].mean()`.

    Raises:
        InputError: `ids` of another shape or beyond the vocabulary, or numbers that do not fit together.
    """
    return scores_by_position(model, ids, chunk, window, stride, progress)[0]


@torch.no_grad()
def scores_by_position(
    model: nn.Module, ids: Tensor, chunk: int = 512, window: int | None = None, stride: int | None = None,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`loss_by_position`, and whether each token is the one that the model predicts: bool, False for the first token."""
    if ids.ndim not in (1, 2) or ids.shape[-1] < 2:
        raise InputError(f"ids of shape {tuple(ids.shape)}: pass (N,) or (batch, N) with at least two tokens")
    check_integers(1, chunk=chunk, **not_none(window=window, stride=stride))
    if stride is not None and window is None:
        raise InputError("needs window, which it moves", stride=stride)
    check_tokens(model, ids)
    batch = ids.reshape(-1, ids.shape[-1]).to(next(model.parameters()).device)
    count = batch.shape[1]
    check_rows(model, count if window is None else min(window, count))
    loss = torch.full(batch.shape, float("nan"), device=batch.device)
    hits = torch.zeros(batch.shape, dtype=torch.bool, device=batch.device)
    name = cache_name()
    with evaluating(model):
        for start, scored, end in _windows(count, window, stride):
            cache = None
            for low, high in pairwise([*range(start, end, chunk_size(model, end - start, chunk)), end]):
                output = model(batch[:, low:high], **{name: cache}, use_cache=True)
                cache = getattr(output, name)
                targets = batch[:, low + 1 : high + 1]
                if high >= scored and targets.shape[1]:
                    logits = output.logits[:, : targets.shape[1]].float()
                    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
                    skip, stop = max(scored - low - 1, 0), min(high, end - 1)
                    loss[:, low + 1 + skip : stop + 1] = losses[:, skip : stop - low]
                    hits[:, low + 1 + skip : stop + 1] = (logits.argmax(-1) == targets)[:, skip : stop - low]
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
        raise InputError("a window needs two tokens and a stride shorter than it", window=window, stride=stride)
    yield 0, 1, window
    for end in range(window + step, count + step, step):
        yield min(end, count) - window, end - step, min(end, count)


def steady_length(model: Any) -> float:
    """The length up to which cached keys stay valid as a text grows: infinite unless the model's own frequencies follow
    the length of the text."""
    inner = unwrap(model)
    attachment = attached(inner)
    if attachment is not None and attachment.design.rotations:
        return inf
    config = inner.config.get_text_config()
    trained = getattr(config, "max_position_embeddings", inf)
    limits = [inf]
    for parameters in rope_parameters_by_type(config).values():
        if parameters.get("rope_type") == "dynamic":
            limits.append(trained)
        elif parameters.get("rope_type") == "longrope" and parameters["short_factor"] != parameters["long_factor"]:
            original = getattr(config, "original_max_position_embeddings", None)  # Phi-3's
            limits.append(original or parameters.get("original_max_position_embeddings") or trained)
    return min(limits)


@torch.no_grad()
def chunk_size(model: Any, length: int, chunk: int) -> int:
    """How many tokens of a text of some length to feed at a time: `chunk`, but all of them where the model's frequencies
    follow the length, since the cached keys would have been rotated by others."""
    if length <= steady_length(model):
        return chunk
    # transformers keeps the frequencies of the longest text until a short one comes
    model(torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device))
    return max(length, chunk)


def check_tokens(model: Any, ids: Tensor) -> None:
    """Refuse tokens beyond the vocabulary, at which a GPU crashes.

    Raises:
        InputError: names the largest token.
    """
    rows, least, largest = model.get_input_embeddings().weight.shape[0], int(ids.min()), int(ids.max())
    if least < 0:
        raise InputError(f"text has token {least}: pass token ids, which are not negative")
    if largest >= rows:
        raise InputError(
            f"token {largest} is beyond the model's vocabulary of {rows}: pass the tokenizer of this model"
        )


def check_causal(model: Any) -> None:
    """Refuse a model that sees what it is to predict.

    Raises:
        InputError: another second token changes the prediction at the first one, or that is not finite.
    """
    ids = torch.tensor([[0, 0], [0, 1]], device=next(model.parameters()).device)
    with evaluating(model), torch.no_grad():
        one, other = (model(row[None]).logits[0, 0].float() for row in ids)
    if not (one.isfinite().all() and other.isfinite().all()):
        raise InputError(f"the logits of {type(model).__name__} are not finite", "posenc doctor looks for the cause")
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-3):
        raise InputError(
            f"{type(model).__name__} is not a causal language model: its prediction at a token depends on later tokens; "
            "pass one that reads from left to right"
        )


def end_tokens(model: nn.Module, tokenizer: Any) -> set[int]:
    """The ids of the tokens that end a text."""
    ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if ids is None:
        ids = tokenizer.eos_token_id
    return set() if ids is None else {ids} if isinstance(ids, int) else set(ids)


class CachedBatch:
    """A batch of prompts with one KV cache: prefill prompts once, try a continuation, take it back.

    texts: token ids of each, left-padded to one length and given their own position ids, so that padding shifts nothing.
    chunk: tokens fed at a time; None: all at once. logits: (rows, vocabulary), float32, after the last token. length:
    tokens in the cache, padding included.
    """

    def __init__(self, model: nn.Module, texts: Sequence[Sequence[int]], *, chunk: int | None = None) -> None:
        self.model, self.chunk = model, chunk
        self.device: torch.device = next(model.parameters()).device
        self.cache: Any = None
        self.length: int = 0
        self.logits: Tensor
        rows = [torch.tensor(text) for text in texts]
        ids = pad_sequence(rows, batch_first=True, padding_side="left")
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left")
        self.padding: Tensor | None = None if mask.all() else mask.to(self.device)
        self.read(ids)

    def read(self, ids: Tensor) -> None:
        """Append tokens (rows, n); only the logits after the last one are computed where the model can leave the others
        out: over a long prompt they take more memory than the model."""
        last = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        count = ids.shape[1]
        for low, high in pairwise([*range(0, count, self.chunk or count), count]):
            self.feed(ids[:, low:high], **({"logits_to_keep": 1} if last else {}))

    def feed(self, ids: Tensor, **options: Any) -> Tensor:
        """Append tokens (rows, n): the logits after each of them, (rows, n, vocabulary), float32."""
        inputs: dict[str, Any] = {"input_ids": ids.to(self.device), cache_name(): self.cache}
        total = self.length + ids.shape[1]
        check_rows(self.model, total)
        if self.padding is not None:
            self.padding = F.pad(self.padding, (0, max(total - self.padding.shape[1], 0)), value=1)
            mask = self.padding[:, :total]
            inputs |= {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)[:, self.length :]}
        output = self.model(**inputs, **options, use_cache=True)
        self.cache = getattr(output, cache_name())
        self.length += ids.shape[1]
        logits: Tensor = output.logits.float()
        self.logits = logits[:, -1]
        return logits

    @property
    def rewinds(self) -> bool:
        """Whether the cache can be cut: each layer keeps all keys and values, in order. Windows and states forget."""
        from transformers.cache_utils import DynamicLayer

        return all(type(layer) is DynamicLayer for layer in getattr(self.cache, "layers", (None,)))

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens; `logits` change with the next tokens only."""
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]
        self.length = length
        if self.padding is not None:
            self.padding = self.padding[:, :length]

    def fork(self) -> Self:
        """The same rows with a copy of the cache, of whatever kind it is."""
        other = copy.copy(self)
        other.cache = copy.deepcopy(self.cache)
        return other
