# SPDX-License-Identifier: Apache-2.0
"""Texts that a model reads side by side, its cache kept: read a prompt once, try a continuation, take it back."""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn

from posenc.pretrained.calls import last_logits


class Rows:
    """Texts (tokens each), left-padded to one length and fed to a model with their own positions, so that padding shifts
    nothing. chunk: tokens fed at a time; None: all at once.

    logits: (rows, vocabulary), float32, of the token after each text. length: tokens in the cache, padding included.
    """

    def __init__(self, model: nn.Module, texts: Sequence[Sequence[int]], *, chunk: int | None = None) -> None:
        self.model = model
        self.chunk = chunk
        self.device: torch.device = next(model.parameters()).device
        self.cache: Any = None
        self.length: int = 0
        longest = max(map(len, texts))
        ids = torch.zeros(len(texts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, longest - len(text) :] = torch.tensor(text)
            mask[row, longest - len(text) :] = 1
        self.logits: Tensor
        self.padding: Tensor | None = None if mask.all() else mask.to(self.device)
        self.read(ids)

    def read(self, ids: Tensor) -> None:
        """Go on with tokens (rows, n), of which only the last one's logits are wanted."""
        count = ids.shape[1]
        for low, high in pairwise([*range(0, count, self.chunk or count), count]):
            self.logits, self.cache = last_logits(self.model, **self._inputs(ids[:, low:high]))
            self.length += high - low

    def feed(self, ids: Tensor) -> Tensor:
        """Go on with tokens (rows, n): the logits after each of them, (rows, n, vocabulary)."""
        output = self.model(**self._inputs(ids), use_cache=True)
        self.cache = output.past_key_values
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
        """Forget all but the first `length` tokens; `logits` are those of what was fed last until something is fed."""
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]
        self.length = length
        if self.padding is not None:
            self.padding = self.padding[:, :length]

    def fork(self) -> Self:
        """The same rows with a cache of their own, whatever kind it is."""
        found = copy.copy(self)
        found.cache = copy.deepcopy(self.cache)
        return found

    def _inputs(self, ids: Tensor) -> dict[str, Any]:
        inputs: dict[str, Any] = {"input_ids": ids.to(self.device), "past_key_values": self.cache}
        if self.padding is None:
            return inputs
        seen = self.length + ids.shape[1]
        more = seen - self.padding.shape[1]
        if more > 0:
            self.padding = nn.functional.pad(self.padding, (0, more), value=1)
        mask = self.padding[:, :seen]
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, self.length :]
        return inputs | {"attention_mask": mask, "position_ids": positions}
