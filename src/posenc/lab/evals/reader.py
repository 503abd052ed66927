# SPDX-License-Identifier: Apache-2.0
"""Texts in, outcomes out: by likelihood and by greedy decoding, from one pass over the prompt."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, takewhile
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.errors import InputError
from posenc.pretrained.inference import (
    CachedBatch,
    check_tokens,
    chunk_size,
    end_tokens,
    evaluating,
    scores_by_position,
    steady_length,
)
from posenc.tasks import Sample, Task

CHUNK = 512
"""Tokens that are fed at a time, and of which logits exist at a time."""
BLOCKS = 16
"""Parts of a length for which the losses on running text are reported."""


@dataclass(frozen=True)
class TextOutcome:
    """What a model gave for one document."""

    tokens: int
    """Of the document, as it was read"""
    needle: float | None
    """Mean index of the answer's tokens in the document; None: the task has none"""
    loss: float
    """In nats per token"""
    accuracy: float
    """Share of the scored tokens that were the most likely, given those before them"""
    exact: int
    """1 if all of them were, else 0"""
    generated: str | None = None
    """The answer by greedy decoding, if requested"""
    score: float | None = None
    """Of that answer"""
    blocks: tuple[float | None, ...] = ()
    """For running text, the mean loss in each of `BLOCKS` equal parts of the length; None where nothing is scored"""


_Text = tuple[list[int], list[int]]
"""The tokens before the scored ones, and these."""
_Scores = tuple[Tensor, Tensor, list[int] | None]
"""The losses and hits of a text's scored tokens, and the tokens of greedy decoding in their place."""


@dataclass(eq=False)
class Reader:
    """Reads documents with a model.

    generate: whether answers are generated if a task can score them. batch_size: documents side by side. With 1, a text's
    common beginning with the one before is not read again, unless layers forget (windows, states): the cache is truncated to
    it. fed: tokens that the model has been given so far.
    """

    model: nn.Module
    tokenizer: Any
    generate: bool = True
    batch_size: int = 1
    chunk: int = CHUNK
    fed: int = 0
    _previous: tuple[list[int], CachedBatch] | None = field(init=False, default=None)

    @torch.no_grad()
    def read(
        self,
        task: Task,
        samples: Sequence[Sample],
        length: int,
        *,
        window: int | None = None,
        on_sample: Callable[[int], None] = lambda index: None,
    ) -> list[TextOutcome]:
        """The outcome of each text, in order.

        Args:
            task: that made the samples, and scores them.
            samples: the documents.
            length: the requested length in tokens, of which `TextOutcome.blocks` are parts.
            window: truncate to so many tokens: the last ones of a prompt, with room for the answer and with the token that
                begins every text, if there is one; running text is read through windows.
            on_sample: called with the index of each text when it is done.

        Raises:
            InputError: tokens beyond the model's vocabulary, or a loss that is not a number.
        """
        new_tokens = task.new_tokens if self.generate else 0
        windows = [_window(sample, window) for sample in samples]
        texts = [_text(sample, window, new_tokens, self.tokenizer.bos_token_id) for sample in samples]
        for sample in samples:
            check_tokens(self.model, sample.ids)
        order = sorted(range(len(texts)), key=lambda i: texts[i][0])  # neighbours have the most in common
        outcomes: dict[int, TextOutcome] = {}
        with evaluating(self.model), self._counted():
            while order:
                size = 1 if windows[order[0]] else self.batch_size
                batch, order = order[:size], order[size:]
                if windows[batch[0]]:
                    scores = [self._windows(samples[batch[0]], windows[batch[0]])]
                else:
                    scores = self._continued([texts[i] for i in batch], new_tokens)
                for index, score in zip(batch, scores, strict=True):
                    tokens = sum(map(len, texts[index]))
                    outcomes[index] = self._outcome(task, samples[index], tokens, length, *score)
                    on_sample(index)
        self._previous = None
        return [outcomes[index] for index in range(len(samples))]

    def _windows(self, sample: Sample, window: int | None) -> _Scores:
        stride = sample.stride if window == sample.window else None
        losses, hits = scores_by_position(self.model, sample.ids, chunk=self.chunk, window=window, stride=stride)
        first = _first(sample)
        return losses[first:], hits[first:], None

    def _continued(self, texts: Sequence[_Text], new_tokens: int) -> list[_Scores]:
        steady = steady_length(self.model) == inf
        rows = self._read([prompt for prompt, _ in texts], steady)
        start, longest = rows.length, max(len(scored) for _, scored in texts)
        scored = torch.zeros(len(texts), longest, dtype=torch.long, device=rows.device)
        is_scored = torch.zeros_like(scored, dtype=torch.bool)
        for row, (_, tokens) in enumerate(texts):
            scored[row, : len(tokens)] = torch.tensor(tokens)
            is_scored[row, : len(tokens)] = True
        greedy = rows if not new_tokens or (rows.rewinds and steady) else rows.fork()
        losses, likeliest = self._forced(rows, scored)
        hits = (likeliest == scored) & is_scored
        generated: list[list[int]] | list[None] = [None] * len(texts)
        if new_tokens:
            # tokens that all answers share with greedy decoding need not be decoded
            same = int(hits.long().cumprod(1).sum(1).min()) if greedy is rows else 0
            known = likeliest[:, : same + 1]
            if greedy is rows:
                rows.rewind(start + known.shape[1] - 1)
            generated = self._greedy(greedy, known, new_tokens)
        return [
            (losses[row, : len(tokens)], hits[row, : len(tokens)], generated[row])
            for row, (_, tokens) in enumerate(texts)
        ]

    def _read(self, prompts: Sequence[list[int]], steady: bool) -> CachedBatch:
        """The prompts in a cache. The common beginning of the last prompt and a single new one is reused. steady: whether
        cached keys stay valid as a text grows."""
        if len(prompts) > 1 or not steady:
            chunk = chunk_size(self.model, max(map(len, prompts)), self.chunk)
            return CachedBatch(self.model, prompts, chunk=chunk)
        (prompt,) = prompts
        before, rows = self._previous or ([], None)
        self._previous = None  # frees its cache before the next one
        shared = _common(before, prompt[:-1])  # the last token is always read, for its logits
        if rows is not None and shared:
            rows.rewind(shared)
            rows.read(torch.tensor([prompt[shared:]]))
        else:
            rows = CachedBatch(self.model, [prompt], chunk=self.chunk)
        if rows.rewinds:
            self._previous = prompt, rows
        return rows

    def _forced(self, rows: CachedBatch, scored: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each scored token (rows, n), and the most likely token at its position."""
        pieces = scored[:, :-1].split(self.chunk, 1) if scored.shape[1] > 1 else ()
        losses, likeliest, at = [], [], 0
        for logits in chain([rows.logits[:, None]], (rows.feed(piece) for piece in pieces)):
            wanted = scored[:, at : at + logits.shape[1]]
            at += logits.shape[1]
            losses.append(F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none"))
            likeliest.append(logits.argmax(-1))
        return torch.cat(losses, 1), torch.cat(likeliest, 1)

    def _greedy(self, rows: CachedBatch, known: Tensor, new_tokens: int) -> list[list[int]]:
        """Each row's most likely tokens, up to `new_tokens` or the end of its text. known: the first ones, of which the cache
        has all but the last."""
        ending = torch.tensor(sorted(end_tokens(self.model, self.tokenizer)), device=known.device)
        while known.shape[1] < new_tokens and not torch.isin(known, ending).any(1).all():
            rows.read(known[:, -1:])
            known = torch.cat((known, rows.logits.argmax(-1, keepdim=True)), 1)
        over = set(ending.tolist())
        return [list(takewhile(lambda token: token not in over, row)) for row in known[:, :new_tokens].tolist()]

    def _outcome(
        self,
        task: Task,
        sample: Sample,
        tokens: int,
        length: int,
        losses: Tensor,
        hits: Tensor,
        generated: list[int] | None,
    ) -> TextOutcome:
        losses = losses.float().cpu()
        if not bool(losses.isfinite().all()):
            raise InputError(
                f"{task.text}: the model's loss on a text of {len(sample.ids)} tokens is not a number; float16 overflows: "
                "load the model in bfloat16 or float32"
            )
        decoded = None if generated is None else self.tokenizer.decode(generated, skip_special_tokens=True)
        # by position only for running text that is processed in one pass and scored over some of its length
        by_position = sample.window is None and BLOCKS * (len(sample.ids) - _first(sample)) >= 4 * length
        return TextOutcome(
            tokens=tokens,
            needle=None if sample.needle is None else (sample.needle[0] + sample.needle[1] - 1) / 2,
            loss=task.loss(losses, sample),
            accuracy=float(hits.float().mean()),
            exact=int(hits.all()),
            generated=decoded,
            score=None if decoded is None else task.score(decoded, sample),
            blocks=_blocks(losses, _first(sample), length) if by_position else (),
        )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the tokens that the model is given."""

        def count(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.fed += (args[0] if args else kwargs["input_ids"]).numel()

        handle = self.model.register_forward_pre_hook(count, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _first(sample: Sample) -> int:
    """The first scored token; nothing predicts a text's first."""
    return max(sample.prompt_tokens, 1)


def _text(sample: Sample, window: int | None, new_tokens: int, bos: int | None) -> _Text:
    """The text, truncated on the left to a window; a beginning-of-text token is not removed."""
    ids, first = sample.ids.tolist(), _first(sample)
    prompt, scored = ids[:first], ids[first:]
    if window is not None and (over := len(prompt) + max(len(scored), new_tokens) - window) > 0:
        start = prompt[:1] if prompt[0] == bos else []
        over = min(over + len(start), len(prompt) - 1)
        prompt = start + prompt[over:]
    return prompt, scored


def _window(sample: Sample, window: int | None) -> int | None:
    """The window that a text is read through; None: in one pass. If only the end is scored, truncating is enough."""
    if sample.window is None and (window is None or 2 * (len(sample.ids) - _first(sample)) <= window):
        return None
    return min(w for w in (sample.window, window) if w is not None)


def _blocks(losses: Tensor, first: int, length: int) -> tuple[float | None, ...]:
    """Means over equal parts of the length of the losses from token `first` on."""
    part = (torch.arange(first, first + len(losses)) * BLOCKS // length).clamp(max=BLOCKS - 1)
    return tuple(
        float(losses[part == block].mean()) if bool((part == block).any()) else None for block in range(BLOCKS)
    )
