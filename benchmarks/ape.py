# SPDX-License-Identifier: Apache-2.0
"""APE: read many contexts side by side at the same positions, and answer from all of them at once (Yang et al. 2025).

Each context is read by itself after the prompt's start, so that no position is beyond the longest of them. The question
and the answer attend to the keys of all contexts, with a temperature T and a scale S that bring the attention back to what
it is for one text read in sequence:

    a = (sum over contexts of e^(s / T))^(S T),  b = sum over other keys of e^s,  output = (a o_contexts + b o_others) / (a + b)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError, check_positive, check_sizes, not_none
from posenc.pretrained.attach import (
    INSTEAD,
    AttentionCall,
    attached,
    attend_instead,
    check_attention,
    register_attention,
    set_implementation,
)
from posenc.pretrained.inference import CachedBatch, check_tokens, end_tokens, evaluating
from posenc.pretrained.models import ModelStructure, cache_name, model_structure, unwrap
from posenc.pretrained.nbce import TEMPLATE


@dataclass(frozen=True)
class Parallel:
    """Keys [first, end) of the cache are those of the contexts; temperature and scale as in `ape_generate`."""

    first: int
    end: int
    temperature: float
    scale: float


@dataclass(frozen=True)
class APEAnswer:
    """The generated text and its tokens, without the one that ends a text. positions: one more than the largest position
    that was used. context_tokens: of all contexts together."""

    text: str
    tokens: tuple[int, ...]
    positions: int
    context_tokens: int


@contextmanager
def attending(structure: ModelStructure, function: Callable[[AttentionCall], Tensor]) -> Iterator[None]:
    """Let the layers of a model attend by a function, and afterwards as before.

    Raises:
        InputError: its classes do not allow it.
    """
    before, modules = structure.config._attn_implementation, [layer.module for layer in structure.layers]
    register_attention(INSTEAD, attend_instead, None)
    try:
        for module in modules:
            setattr(module, f"_{INSTEAD}", function)
        set_implementation(structure.model, INSTEAD)
        yield
    finally:
        set_implementation(structure.model, before)
        for module in modules:
            delattr(module, f"_{INSTEAD}")


def attend(q: Tensor, k: Tensor, v: Tensor, parallel: Parallel, scale: float) -> Tensor:
    """The attention of the last queries of a text to contexts side by side, and causally to all else.

    q: (batch, heads, n, d); k, v: (batch, kv_heads, keys, d), of which the last n are the queries' own. scale: of the scores.
    Returns (batch, heads, n, d). Source: llama_attention_prefill_query of the authors' code.
    """
    n, keys, precise = q.shape[2], k.shape[2], torch.promote_types(q.dtype, torch.float32)
    grouped = q.unflatten(1, (k.shape[1], -1)).to(precise)
    scores = grouped @ k.to(precise).mT[:, :, None] * scale
    order = torch.arange(keys, device=q.device)
    inside = (order >= parallel.first) & (order < parallel.end)
    later = order > order[keys - n :, None]
    of_contexts = (scores / parallel.temperature).masked_fill(~inside, -torch.inf)
    of_others = scores.masked_fill(inside | later, -torch.inf)
    masses = of_contexts.logsumexp(-1) * parallel.scale * parallel.temperature, of_others.logsumexp(-1)
    shares = torch.stack(masses).softmax(0)[..., None]
    weights = shares[0] * of_contexts.softmax(-1) + shares[1] * of_others.softmax(-1)
    return (weights.to(v.dtype) @ v[:, :, None]).flatten(1, 2)


def merged(rows: Sequence[tuple[Any, int]], lengths: Sequence[int], first: int) -> Any:
    """The keys and values of contexts that begin with the same `first` tokens, each in a row of a left-padded cache, as a cache
    of one row: these tokens once, and what follows them in each text."""
    from transformers import DynamicCache

    def joined(of: str, number: int) -> Tensor:
        texts = [
            getattr(cache.layers[number], of)[row : row + 1, :, -length:]
            for (cache, row), length in zip(rows, lengths, strict=True)
        ]
        return torch.cat((texts[0][:, :, :first], *(text[:, :, first:] for text in texts)), 2)

    one = DynamicCache()
    for number in range(len(rows[0][0].layers)):
        one.update(joined("keys", number), joined("values", number), number)
    return one


def _checked(model: Any) -> ModelStructure:
    """The structure of a model whose attention this can take the place of."""
    inner = unwrap(model)
    structure, extension = model_structure(inner), attached(inner)
    if extension is not None and (extension.design.encodings or extension.design.identity_layers):
        raise InputError(f"model is extended by {extension.report.method}: contexts in parallel need frequencies alone")
    check_attention(structure)
    if structure.family.latent or len(structure.layers) < structure.config.num_hidden_layers:
        raise InputError(
            f"{structure.model_type}: caches latents or states beside keys, which contexts in parallel do not join"
        )
    for layer in structure.layers:
        if (
            layer.window is not None
            or getattr(layer.module, "attn_logit_softcapping", None) is not None
            or hasattr(layer.module, "sinks")
        ):
            raise InputError(
                f"{structure.model_type}: has sliding windows, capped scores or sinks, which contexts in parallel do not know; "
                "nbce_generate takes any model"
            )
    return structure


def _tokens(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a part of a prompt, without what begins or ends a text."""
    return tokenizer(text, add_special_tokens=False).input_ids


@torch.no_grad()
def ape_generate(
    model: nn.Module,
    tokenizer: Any,
    contexts: Sequence[str],
    question: str,
    *,
    template: str = TEMPLATE,
    temperature: float = 0.9,
    scale: float = 0.9,
    max_new_tokens: int = 256,
    batch_size: int | None = None,
) -> APEAnswer:
    """Answer a question from several contexts that are read in parallel; each token is the most likely.

    Args:
        model: a causal language model of a type that `extend` knows, extended by frequencies or not.
        tokenizer: its tokenizer.
        contexts: contexts to read. Their order plays no part, and none sees another before the question.
        question: what follows the contexts, in the template.
        template: with {context} and {question}; what comes before {context} is read once and shared.
        temperature: T, of the scores of contexts: below 1 their attention is sharper. The authors' default is 0.9.
        scale: S, of the logarithm of their weight. T = S = 1 is one softmax over all keys.
        max_new_tokens: the answer's greatest length.
        batch_size: contexts per pass of the model, all by default; fewer take less memory.

    Raises:
        InputError: no contexts, a template without its fields, numbers that are not positive, or a model with sliding
            windows, capped scores, learned sinks, or under a position map.
    """
    if not contexts or isinstance(contexts, str):
        raise InputError("pass a list of at least one text", contexts=contexts)
    check_positive(temperature=temperature, scale=scale)
    check_sizes(max_new_tokens=max_new_tokens, **not_none(batch_size=batch_size))
    before, field, after = template.partition("{context}")
    if not field or "{question}" not in after:
        raise InputError("must have the field {context}, and {question} after it", template=template)
    structure = _checked(model)
    start: list[int] = tokenizer(before).input_ids
    # characters that a tokenizer merges over the border of two parts stay apart, as in the authors' code
    texts = [[*start, *_tokens(tokenizer, context)] for context in contexts]
    asked = _tokens(tokenizer, after.format(question=question))
    if not asked or min(map(len, texts)) == len(start):
        raise InputError("contexts, question: each must have a token")
    check_tokens(model, torch.tensor([max(max(row) for row in (*texts, asked))]))
    lengths = [len(text) for text in texts]
    size, device = batch_size or len(texts), next(model.parameters()).device
    tokens: list[int] = []
    with evaluating(model):
        groups = [CachedBatch(model, texts[at : at + size]).cache for at in range(0, len(texts), size)]
        cache = merged(
            [(cache, row) for cache in groups for row in range(cache.layers[0].keys.shape[0])], lengths, len(start)
        )
        end = sum(lengths) - len(start) * (len(texts) - 1)
        position, new, ending = max(lengths), asked, end_tokens(model, tokenizer)
        parallel = Parallel(len(start), end, temperature, scale)

        def attend_in_parallel(call: AttentionCall) -> Tensor:
            usual = call.query.shape[-1] ** -0.5 if call.scale is None else call.scale
            return attend(call.query, call.key, call.value, parallel, usual)

        with attending(structure, attend_in_parallel):
            while len(tokens) < max_new_tokens:
                ids = torch.tensor([new], device=device)
                where = torch.arange(position, position + len(new), device=device)[None]
                logits = model(input_ids=ids, position_ids=where, **{cache_name(): cache}, use_cache=True).logits[0, -1]
                position += len(new)
                token = int(logits.argmax())
                if token in ending:
                    break
                tokens.append(token)
                new = [token]
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    return APEAnswer(text, tuple(tokens), position, end - len(start))
