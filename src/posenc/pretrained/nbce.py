# SPDX-License-Identifier: Apache-2.0
"""NBCE: read many contexts at once without longer positions, by naive Bayes over one language model (Su 2023).

Each row of a batch reads one context and the question, and one row has no context. Token by token the context
whose prediction is surest is followed, less what the model would say anyway:

    log p(T | S_1, ..., S_n) = (1 + beta) P[log p(T | S_1), ..., log p(T | S_n)] - beta log p(T) + constant
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError, check_numbers, check_sizes, check_word
from posenc.pretrained.attach import attached
from posenc.pretrained.inference import CachedBatch, check_tokens, end_tokens, evaluating
from posenc.pretrained.models import unwrap

__all__ = ["combine", "nbce_generate", "nbce_steps"]

POOLINGS = ("min_entropy", "average")
TEMPLATE = "User: {context}\n\n{question}\n\nAssistant:"
"""The prompt of the authors' code. Without a context it keeps its empty line."""

Template = str | Callable[[str, str], str]
_FLOOR = -100.0


@dataclass(frozen=True)
class NBCEStep:
    """One generated token.

    text: what it adds, empty where it is the first part of a character. context: index of the context that was followed;
    None under average pooling. entropies: of each context's prediction, in nats, after top-p and before the bonus for the
    context followed last.
    """

    token: int
    text: str
    context: int | None
    entropies: tuple[float, ...]


@dataclass(frozen=True)
class NBCEAnswer:
    """The generated text, without the end-of-text token, and its steps."""

    text: str
    steps: tuple[NBCEStep, ...]

    @property
    def tokens(self) -> list[int]:
        return [step.token for step in self.steps]

    @property
    def contexts(self) -> list[int | None]:
        """The context that was followed at each token."""
        return [step.context for step in self.steps]


def combine(
    log_probs: Tensor,
    *,
    pooling: str = "min_entropy",
    beta: float = 0.25,
    eta: float = 0.1,
    top_p: float = 0.95,
    previous: int | None = None,
) -> tuple[Tensor, int | None, Tensor]:
    """One step of NBCE: the predictions of all rows merged into one.

    Min-entropy pooling cuts each row to its top-p set, without normalising it again, and follows the context of least
    entropy. Average pooling takes the mean of the contexts' log-probabilities and cuts that: cut before, a token that
    one context rules out would be ruled out by all. A token that the row without a context has cut gets no bonus.

    Args:
        log_probs: (n + 1, vocabulary), natural logarithms; row 0 is the row without a context.
        pooling: "min_entropy" or "average"; the latter with beta = n - 1 is naive Bayes itself.
        beta: how much of the prediction without a context is subtracted. -1 leaves that prediction alone, among the
            tokens of top_p.
        eta: taken off the entropy of the context followed last, so that the choice does not flicker.
        top_p: the share of probability that stays, in (0, 1].
        previous: index of the context followed last, None at the first token.

    Returns:
        Log-probabilities (vocabulary,); the index of the context followed (None for average pooling); the contexts'
        entropies (n,) in nats, without eta.

    Raises:
        InputError: an unknown pooling, a number out of range, or no context.

    Source: kexue.fm 9617; bojone/NBCE, test.py.
    """
    _check(pooling, top_p, beta, eta)
    if log_probs.ndim != 2 or len(log_probs) < 2:
        raise InputError(f"log_probs of shape {tuple(log_probs.shape)}: pass (contexts + 1, vocabulary)")
    likely = _top_p(log_probs, top_p)
    entropies = -(likely.exp() * likely.clamp(_FLOOR, 0)).sum(-1)[1:]
    if pooling == "average":
        chosen, pooled = None, _top_p(log_probs[1:].mean(0).log_softmax(-1), top_p)
    else:
        sticky = entropies.clone()
        if previous is not None:
            sticky[previous] -= eta
        chosen = int(sticky.argmin())
        pooled = likely[1 + chosen]
    alone = likely[0]
    both = (alone > _FLOOR) & (pooled > -torch.inf)  # else one of them is -inf, and a difference may be NaN
    merged = torch.where(both, (1 + beta) * pooled - beta * torch.where(both, alone, 0), pooled)
    return merged.log_softmax(-1), chosen, entropies


def nbce_generate(
    model: nn.Module, tokenizer: Any, contexts: Sequence[str], question: str, **options: Any
) -> NBCEAnswer:
    """Answer a question from several contexts, each no longer than the model can read.

    The arguments are those of `nbce_steps`, and `streamer`: an object with put(tokens) and end(), such as
    transformers' TextStreamer, which is given each token as it comes.
    """
    streamer, steps = options.pop("streamer", None), []
    for step in nbce_steps(model, tokenizer, contexts, question, **options):
        steps.append(step)
        if streamer is not None:
            streamer.put(torch.tensor([step.token]))
    if streamer is not None:
        streamer.end()
    return NBCEAnswer("".join(step.text for step in steps), tuple(steps))


@torch.no_grad()
def nbce_steps(
    model: nn.Module,
    tokenizer: Any,
    contexts: Sequence[str],
    question: str,
    *,
    template: Template = TEMPLATE,
    pooling: str = "min_entropy",
    beta: float = 0.25,
    eta: float = 0.1,
    top_p: float = 0.95,
    temperature: float = 0.0,
    max_new_tokens: int = 256,
    batch_size: int | None = None,
    seed: int | None = None,
) -> Iterator[NBCEStep]:
    """The tokens of the answer one by one, until the model ends its text or `max_new_tokens` have come.

    Args:
        model: any causal language model of transformers, extended ones too.
        tokenizer: its tokenizer.
        contexts: the documents. Their order plays no part: what relates one to another is not seen.
        question: put to each of them.
        template: a text with {context} and {question}, or a function of both that returns the prompt, such as
            `chat(tokenizer)`.
        pooling, beta, eta, top_p: see `combine`.
        temperature: 0 takes the most likely token (the authors draw at 0.01, which is nearly that).
        max_new_tokens: the answer's greatest length.
        batch_size: rows per pass of the model, len(contexts) + 1 by default; fewer take less memory.
        seed: of the draws, where temperature > 0.

    Prompts are padded on the left, and positions are passed to the model, so that padding shifts nothing. A prompt longer than max_position_embeddings gives a warning.

    Raises:
        InputError: no contexts, a number out of range, a template without its fields, or another model's tokenizer.
    """
    _check(pooling, top_p, beta, eta)
    if not contexts or isinstance(contexts, str):
        raise InputError("pass a list of at least one text", contexts=contexts)
    check_sizes(max_new_tokens=max_new_tokens, batch_size=batch_size)
    check_numbers(temperature=temperature)
    if temperature < 0:
        raise InputError("must be 0 (the most likely token) or more", temperature=temperature)
    device = next(model.parameters()).device
    if isinstance(template, str) and not all(field in template for field in ("{context}", "{question}")):
        raise InputError("must have the fields {context} and {question}", template=template)
    write = (
        template
        if callable(template)
        else lambda context, question: template.format(context=context, question=question)
    )
    prompts = [_encode(tokenizer, write(context, question)) for context in ("", *contexts)]
    check_tokens(model, torch.tensor([max(map(max, prompts))]))
    warn_of_length(model, max(map(len, prompts)))
    size = batch_size or len(prompts)
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    ending, text, tokens = end_tokens(model, tokenizer), "", list[int]()
    previous: int | None = None
    with evaluating(model):
        groups = [CachedBatch(model, prompts[at : at + size]) for at in range(0, len(prompts), size)]
        while True:
            log_probs = torch.cat([group.logits.log_softmax(-1) for group in groups])
            merged, previous, entropies = combine(
                log_probs, pooling=pooling, beta=beta, eta=eta, top_p=top_p, previous=previous
            )
            if temperature:
                token = int((merged / temperature).softmax(-1).multinomial(1, generator=generator))
            else:
                token = int(merged.argmax())
            if token in ending:
                return
            tokens.append(token)
            decoded = tokenizer.decode(tokens, skip_special_tokens=True)
            added = "" if decoded.endswith("\N{REPLACEMENT CHARACTER}") else decoded[len(text) :]
            text += added
            yield NBCEStep(token, added, previous, tuple(entropies.tolist()))
            if len(tokens) == max_new_tokens:
                return
            for group in groups:
                group.read(torch.full((len(group.logits), 1), token))


def chat(tokenizer: Any, system: str | None = None) -> Callable[[str, str], str]:
    """A template that asks in the tokenizer's own chat format."""

    def write(context: str, question: str) -> str:
        messages = [{"role": "system", "content": system}] if system is not None else []
        content = f"{context}\n\n{question}" if context else question
        messages.append({"role": "user", "content": content})
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    return write


def _check(pooling: str, top_p: float, beta: float, eta: float) -> None:
    check_numbers(top_p=top_p, beta=beta, eta=eta)
    check_word("pooling", pooling, POOLINGS)
    if not 0 < top_p <= 1:
        raise InputError("must lie in (0, 1]", "1 keeps every token", top_p=top_p)


def _top_p(log_probs: Tensor, top_p: float) -> Tensor:
    """-inf outside the smallest set of most likely tokens with `top_p` of each row's probability."""
    if top_p == 1:
        return log_probs
    ascending, order = log_probs.sort(-1)
    cut = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    cut[..., -1] = False
    return log_probs.masked_fill(cut.scatter(-1, order, cut), -torch.inf)


def _encode(tokenizer: Any, prompt: str) -> list[int]:
    """Token ids; a prompt that begins with the first token, as chat formats do, gets no second one."""
    begins = bool(tokenizer.bos_token) and prompt.startswith(tokenizer.bos_token)
    ids: list[int] = tokenizer(prompt, add_special_tokens=not begins).input_ids
    if not ids:
        raise InputError(f"the prompt {prompt!r} has no tokens", argument="template")
    return ids


def warn_of_length(model: Any, length: int) -> None:
    """Warn of a context with its question that is longer than a model reads."""
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and length > limit and attached(unwrap(model)) is None:
        warnings.warn(
            f"posenc: a context with its question takes {length} tokens, more than max_position_embeddings={limit}: "
            "make the contexts shorter, or posenc.extend the model",
            stacklevel=4,
        )
