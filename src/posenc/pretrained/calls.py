# SPDX-License-Identifier: Apache-2.0
"""How posenc calls a model of transformers: without a trace in it, and with what its forward understands."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError
from posenc.pretrained.anatomy import unwrapped
from posenc.pretrained.attach import attached


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout; each of its modules is then set back to train or eval as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def last_logits(model: nn.Module, **inputs: Any) -> tuple[Tensor, Any]:
    """The logits (batch, vocabulary) of the last column, in float32, and the cache that the call filled.

    A model whose forward can is told to compute no others: over a long prompt they take more memory than the model.
    """
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        inputs["logits_to_keep"] = 1
    output = model(**inputs, use_cache=True)
    return output.logits[:, -1].float(), output.past_key_values


def steady_length(model: Any) -> float:
    """How long texts may be for what a model has read to mean the same however they go on: without end, but where its
    own frequencies follow the length of each text."""
    body = unwrapped(model)
    record = attached(body)
    if record is not None and record.design.rotations:
        return inf
    config = body.config.get_text_config()
    given = getattr(config, "rope_parameters", None) or {}
    trained = getattr(config, "max_position_embeddings", inf)
    found = [inf]
    for kind in (given, *(value for value in given.values() if isinstance(value, dict))):
        if kind.get("rope_type") == "dynamic":
            found.append(trained)
        elif kind.get("rope_type") == "longrope" and kind["short_factor"] != kind["long_factor"]:
            own = getattr(config, "original_max_position_embeddings", None)  # Phi-3's
            found.append(own or kind.get("original_max_position_embeddings") or trained)
    return min(found)


@torch.no_grad()
def fed_at_a_time(model: Any, length: int, chunk: int) -> int:
    """How many tokens of a text of some length may be fed to a model at a time: `chunk`, but all of them where its
    frequencies follow the length, since those in its cache would have been turned by others."""
    if length <= steady_length(model):
        return chunk
    # transformers keeps the frequencies of the longest text until a short one comes
    model(torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device))
    return max(length, chunk)


def check_tokens(model: Any, ids: Tensor) -> None:
    """Refuse tokens that the model has no row for, which PyTorch says by an index and a GPU by a crash.

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
        InputError: another token after the first one changes what is predicted there.
    """
    ids = torch.tensor([[0, 0], [0, 1]], device=next(model.parameters()).device)
    with evaluating(model), torch.no_grad():
        one, other = (model(row[None]).logits[0, 0].float() for row in ids)
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-3):
        raise InputError(
            f"{type(model).__name__} is not a causal language model: what it predicts at a token depends on those after "
            "it; give one that reads from left to right"
        )


def ends(model: nn.Module, tokenizer: Any) -> set[int]:
    """The tokens that end a text."""
    told = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if told is None:
        told = tokenizer.eos_token_id
    return set() if told is None else {told} if isinstance(told, int) else set(told)
