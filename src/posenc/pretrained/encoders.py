# SPDX-License-Identifier: Apache-2.0
"""Encoders and T5's kind by `attn_implementation="posenc"`: padding and windows without a mask of N x N, and T5's bias from the
model's own table, in memory linear in the length."""

from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from posenc.encoding import Encoding
from posenc.encodings import T5
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.pretrained.masks import Visibility, visibility

T5_TYPES = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5"}
"""config.model_type (ByT5's and ProtT5's is t5) -> how the names of its classes begin."""


def read_tables(name: str) -> None:
    """Let the attention of `T5_TYPES` give its table in place of a bias of N x N, while its implementation is `name`."""
    for kind, prefix in T5_TYPES.items():
        attention = getattr(import_module(f"transformers.models.{kind}.modeling_{kind}"), f"{prefix}Attention")
        if not hasattr(attention.forward, "gives_table"):  # which others' wrappers of it have too
            _give_table(attention, name)


def _give_table(attention: Any, name: str) -> None:
    forward, compute_bias = attention.forward, attention.compute_bias

    @wraps(forward)
    def with_table(self: Any, *given: Any, **named: Any) -> Any:
        has = self.has_relative_attention_bias
        self.has_relative_attention_bias = has or self.config._attn_implementation == name  # else zeros of N x N
        try:
            return forward(self, *given, **named)
        finally:
            self.has_relative_attention_bias = has

    @wraps(compute_bias)
    def table(self: Any, *given: Any, **named: Any) -> Any:
        config = getattr(self, "config", None)  # what stands for a layer may have none
        return self if config and config._attn_implementation == name else compute_bias(self, *given, **named)

    attention.forward, attention.compute_bias = with_table, table
    attention.forward.gives_table = True


class TableOfModel(T5):
    """T5's bias from a table that a model of transformers owns, and trains."""

    table: Tensor  # type: ignore[assignment]

    def setup(self) -> None:
        pass


def bias_of(owner: Any) -> Encoding | None:
    """The bias of an attention layer of transformers. owner: what the layer was given as position_bias."""
    if isinstance(owner, Tensor):
        raise InputError("T5's bias is read from the tables of " + ", ".join(T5_TYPES), attn_implementation="posenc")
    if not hasattr(owner, "relative_attention_bias"):
        return None
    sizes = {name: getattr(owner, f"relative_attention_{name}") for name in ("num_buckets", "max_distance")}
    made = TableOfModel(owner.n_heads, bidirectional=not owner.is_decoder, **sizes)
    made.table = owner.relative_attention_bias.weight.t()
    return made


def seen_by_all(mask: Tensor | None, _: object, queries: int, keys: int, device: torch.device) -> Visibility:
    """`visibility` for attention that is not causal. mask: bool or additive, (batch, 1 or heads, 1 or queries, keys)."""
    q, k = (torch.arange(count, device=device)[None] for count in (queries, keys))
    allowed = mask if mask is None or mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    if allowed is None or allowed.shape[1:3] != (1, 1):
        return Visibility(Positions(q=q, k=k, q_order=q, k_order=k, causal=False), allowed)
    k = k.expand(len(allowed), -1)
    return Visibility(Positions(q=q, k=k, q_order=q, k_order=k, causal=False, valid=allowed[:, 0, 0]))


def of_model(module: Any, owner: Any) -> tuple[Any, Encoding | None, int | None]:
    """Who sees whom, the bias and the window in a layer that `posenc.extend` has not changed.

    Raises:
        InputError: a causal decoder, whose attention is of other kinds; a bias that is no table of T5's.
    """
    causal = getattr(module, "is_causal", True)
    if causal and owner is None:
        remedy = "load the model with another implementation, and extend it"
        raise InputError(f"posenc.extend sets it in a causal decoder: {remedy}", attn_implementation="posenc")
    return visibility if causal else seen_by_all, bias_of(owner), getattr(module, "sliding_window", None)
