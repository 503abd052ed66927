# SPDX-License-Identifier: Apache-2.0
"""NBCE: read many contexts at once without longer positions, by naive Bayes over one language model (Su 2023).

Each row of a batch reads one context and the question, and one row has no context. Token by token the context
whose prediction is surest is followed, less what the model would say anyway:

    log p(T | S_1, ..., S_n) = (1 + beta) P[log p(T | S_1), ..., log p(T | S_n)] - beta log p(T) + constant
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError, check_integers, check_numbers, check_sizes, not_none
from posenc.pretrained.attach import attached
from posenc.pretrained.inference import CachedBatch, check_tokens, end_tokens, evaluating
from posenc.pretrained.models import unwrap

__all__ = ["TEMPLATE", "NBCEAnswer", "combine", "nbce_generate"]

TEMPLATE = "User: {context}\n\n{question}\n\nAssistant:"
"""The prompt of the authors' code. Without a context it keeps its empty line."""
_FLOOR = -100.0


@dataclass(frozen=True)
class NBCEAnswer:
    """text: without the end-of-text token. contexts: the one followed at each token. entropies: of
    each context's prediction at each token, in nats, after top-p and before the bonus for the context followed last."""

    text: str
    tokens: list[int]
    contexts: list[int]
    entropies: list[tuple[float, ...]]


def combine(
    log_probs: Tensor, *, beta: float = 0.25, eta: float = 0.1, top_p: float = 0.95,
    previous: int | None = None,
) -> tuple[Tensor, int, Tensor]:  # fmt: skip
    """One step of NBCE: the predictions of all rows merged into one.

    Each row is cut to its top-p set, without normalising it again, and the context of least entropy is followed. A token that the
    row without a context has cut gets no bonus.

    Args:
        log_probs: (n + 1, vocabulary), natural logarithms; row 0 is the row without a context.
        beta: how much of the prediction without a context is subtracted. eta: taken off the entropy of the context followed
            last, `previous` (None at the first token). top_p: the share of probability that stays, in (0, 1].

    Returns:
        Log-probabilities (vocabulary,); the index of the context followed; the contexts'
        entropies (n,) in nats, without eta.

    Raises:
        InputError: a number out of range, or no context.

    Source: kexue.fm 9617; bojone/NBCE, test.py.
    """
    check_numbers(top_p=top_p, beta=beta, eta=eta)
    if not 0 < top_p <= 1:
        raise InputError("must lie in (0, 1]", "1 keeps every token", top_p=top_p)
    if log_probs.ndim != 2 or len(log_probs) < 2:
        raise InputError(f"log_probs of shape {tuple(log_probs.shape)}: pass (contexts + 1, vocabulary)")
    check_integers(0, len(log_probs) - 2, **not_none(previous=previous))
    likely = _top_p(log_probs, top_p)
    entropies = -(likely.exp() * likely.clamp(_FLOOR, 0)).sum(-1)[1:]
    sticky = entropies.clone()
    if previous is not None:
        sticky[previous] -= eta
    chosen = int(sticky.argmin())
    pooled, alone = likely[1 + chosen], likely[0]
    both = (alone > _FLOOR) & (pooled > -torch.inf)  # else one of them is -inf, and a difference may be NaN
    merged = torch.where(both, (1 + beta) * pooled - beta * torch.where(both, alone, 0), pooled)
    return merged.log_softmax(-1), chosen, entropies


def _top_p(log_probs: Tensor, top_p: float) -> Tensor:
    """-inf outside the smallest set of most likely tokens with `top_p` of each row's probability."""
    if top_p == 1:
        return log_probs
    ascending, order = log_probs.sort(-1)
    cut = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    cut[..., -1] = False
    return log_probs.masked_fill(cut.scatter(-1, order, cut), -torch.inf)


@torch.no_grad()
def nbce_generate(
    model: nn.Module, tokenizer: Any, contexts: Sequence[str], question: str, *,
    template: str | Callable[[str, str], str] = TEMPLATE, max_new_tokens: int = 256, batch_size: int | None = None, **options: Any,
) -> NBCEAnswer:  # fmt: skip
    """Answer a question from several contexts, each no longer than the model can read, by the most likely tokens.

    Args:
        model: any causal language model of transformers, extended ones too.
        contexts: the documents. Their order plays no part: what relates one to another is not seen.
        template: a text with {context} and {question}, or a function of both that returns the prompt.
        batch_size: rows per pass of the model, len(contexts) + 1 by default; fewer take less memory.
        options: of `combine`.

    Raises:
        InputError: no contexts, a number out of range, a template without its fields, or another model's tokenizer.
    """
    if not contexts or isinstance(contexts, str):
        raise InputError("pass a list of at least one text", contexts=contexts)
    check_sizes(max_new_tokens=max_new_tokens, **not_none(batch_size=batch_size))
    if isinstance(template, str) and not all(field in template for field in ("{context}", "{question}")):
        raise InputError("must have the fields {context} and {question}", template=template)
    write = template if callable(template) else lambda one, other: template.format(context=one, question=other)
    prompts = [_encode(tokenizer, write(context, question)) for context in ("", *contexts)]
    check_tokens(model, torch.tensor([max(map(max, prompts))]))
    limit, longest = getattr(model.config, "max_position_embeddings", None), max(map(len, prompts))
    if limit is not None and longest > limit and attached(unwrap(model)) is None:
        text = f"posenc: a context with its question takes {longest} tokens, more than max_position_embeddings={limit}"
        warnings.warn(f"{text}: make the contexts shorter, or posenc.extend the model", stacklevel=3)
    size, ending = batch_size or len(prompts), end_tokens(model, tokenizer)
    answer, previous = NBCEAnswer("", [], [], []), None
    with evaluating(model):
        groups = [CachedBatch(model, prompts[at : at + size]) for at in range(0, len(prompts), size)]
        while len(answer.tokens) < max_new_tokens:
            if answer.tokens:
                for group in groups:
                    group.read(torch.full((len(group.logits), 1), answer.tokens[-1]))
            log_probs = torch.cat([group.logits.log_softmax(-1) for group in groups])
            merged, previous, entropies = combine(log_probs, previous=previous, **options)
            if (token := int(merged.argmax())) in ending:
                break
            answer.tokens.append(token)
            answer.contexts.append(previous)
            answer.entropies.append(tuple(entropies.tolist()))
    text = tokenizer.decode(answer.tokens, skip_special_tokens=True)
    return NBCEAnswer(text, answer.tokens, answer.contexts, answer.entropies)


def _encode(tokenizer: Any, prompt: str) -> list[int]:
    """Token ids; a prompt that begins with the first token, as chat formats do, gets no second one."""
    begins = bool(tokenizer.bos_token) and prompt.startswith(tokenizer.bos_token)
    ids: list[int] = tokenizer(prompt, add_special_tokens=not begins).input_ids
    if not ids:
        raise InputError(f"the prompt {prompt!r} has no tokens", argument="template")
    return ids
