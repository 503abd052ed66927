# SPDX-License-Identifier: Apache-2.0
"""The attention weights of a transformers model while it reads a text, a block of queries at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from posenc.attention import prepare
from posenc.backends.reference import Reference
from posenc.bias import SoftCap, sum_by_rows
from posenc.errors import InputError
from posenc.positions import Positions
from posenc.pretrained.attach import AttentionCall, LayerPlan, register_attention, set_implementation
from posenc.pretrained.masks import SlidingWindow
from posenc.pretrained.models import ModelStructure

NAME = "posenc_observed"
"""What transformers knows the observed attention by. It has no mask function of that name, and so makes no masks."""


class Observer(Protocol):
    """Who is shown what attention does, layer by layer."""

    def vectors(self, layer: int, q: Tensor, k: Tensor, scale: float) -> None:
        """Queries (heads, N, head_dim) and keys (kv_heads, N, head_dim) of a layer, and the factor of their product."""
        ...

    def block(self, layer: int, first: int, weights: Tensor) -> None:
        """What queries first, first + 1, .. give each key, (heads, queries, N), float32 or better."""
        ...


@dataclass(frozen=True, eq=False)
class View:
    """One layer as it is observed. chunk: queries of a block."""

    layer: int
    window: int | None
    observer: Observer
    chunk: int


@contextmanager
def observed(body: ModelStructure, observer: Observer, chunk: int) -> Iterator[None]:
    """Show an observer the attention of a model, extended or not, in every pass over one text without a cache; the model
    then attends as before. Memory is heads x chunk x N at a time, never N x N.

    Raises:
        InputError: a model whose attention cannot be set, or sees the future.
    """
    if any(not getattr(layer.module, "is_causal", True) for layer in body.layers):
        raise InputError(
            f"a {body.model_type} model whose tokens see those after them: observed are causal models alone"
        )
    register_attention(NAME, attend, None)
    before = body.config._attn_implementation
    try:
        for index, layer in enumerate(body.layers):
            layer.module._posenc_view = View(index, layer.window, observer, chunk)  # type: ignore[assignment]
        set_implementation(body.model, NAME)
        yield
    finally:
        for layer in body.layers:
            if hasattr(layer.module, "_posenc_view"):
                del layer.module._posenc_view
        set_implementation(body.model, before)


def attend(call: AttentionCall) -> Tensor:
    """What the model computes, shown to the observer on the way.

    An extended model attends by the encoding that `posenc.extend` gave the layer, a plain one by its window alone.
    """
    view: View = call.module._posenc_view  # type: ignore[assignment]
    plan: LayerPlan | None = getattr(call.module, "_posenc_plan", None)
    encoding = plan.windowed if plan is not None else None if view.window is None else SlidingWindow(view.window)
    query, key = call.query, call.key
    with torch.autocast(query.device.type, enabled=False):
        positions = Positions.arange(query.shape[2], causal=True, device=query.device)
        problem = prepare(query, key, call.value, encoding, positions, None, call.scale, call.sink, 0.0, 0)
        if call.softcap is not None:
            problem = replace(problem, modifiers=[SoftCap(call.softcap)])
        view.observer.vectors(view.layer, query[0], key[0], problem.scale)
        bias, outs = sum_by_rows(problem.bias, query.device), []
        for first in range(0, query.shape[2], view.chunk):
            end = min(first + view.chunk, query.shape[2])
            weights = Reference().weights(problem, first, end, bias(first, end))
            view.observer.block(view.layer, first, weights[0])
            outs.append(Reference().output(problem, weights, first))
    return torch.cat(outs, 2)
