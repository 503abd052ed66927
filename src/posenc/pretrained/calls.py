"""How posenc calls a model of transformers: without a trace in it, and with what its forward understands."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError


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


def check_tokens(model: Any, ids: Tensor) -> None:
    """Refuse tokens that the model has no row for, which PyTorch says by an index and a GPU by a crash.

    Raises:
        InputError: names the largest token.
    """
    rows, largest = model.get_input_embeddings().weight.shape[0], int(ids.max())
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
