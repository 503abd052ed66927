# SPDX-License-Identifier: Apache-2.0
"""The engine: texts in, what a model makes of each out, by likelihood and by greedy decoding from one pass over the prompt."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
"""Parts of a length in which the losses on running text are told."""


@dataclass(frozen=True)
class TextOutcome:
    """What a model made of one text.

    tokens: of the text, as it was read. needle: mean index of the tokens that hold what is asked for; None: no such place.
    loss: in nats a token. accuracy: share of the scored tokens that were the likeliest, given those before them. exact:
    1 where all of them were, else 0. generated, score: the answer by greedy decoding, where one was wanted. blocks: for
    running text, the mean loss in each of `BLOCKS` equal parts of the length; None where nothing is scored.
    """

    tokens: int
    needle: float | None
    loss: float
    accuracy: float
    exact: int
    generated: str | None = None
    score: float | None = None
    blocks: tuple[float | None, ...] = ()


@dataclass(frozen=True, eq=False)
class _Text:
    """A sample as it is read: what comes before the scored tokens, and those."""

    prompt: list[int]
    scored: list[int]


_Read = tuple[Tensor, Tensor, list[int] | None]
"""The losses and hits of a text's scored tokens, and what greedy decoding says instead of them."""


@dataclass(eq=False)
class Reader:
    """Reads texts with a model as it stands.

    generate: whether answers are generated where a task can score them. batch_size: texts side by side. One at a time,
    what a text begins with in common with the one before is not read again, where the model's cache can be cut exactly.
    fed: tokens that the model has been given so far.
    """

    model: nn.Module
    tokenizer: Any
    generate: bool = True
    batch_size: int = 1
    chunk: int = CHUNK
    fed: int = 0

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
        """What the model makes of each text, in their order.

        Args:
            task: that made the samples, and scores them.
            samples: the texts.
            length: tokens that were asked for, of which `TextOutcome.blocks` are parts.
            window: let the model see no more than so many tokens: the last ones of a prompt, with room for the answer and
                with the token that begins every text, if there is one; running text is read through windows.
            on_sample: told the index of each text when it is done.

        Raises:
            InputError: tokens beyond the model's vocabulary, or a loss that is not a number.
        """
        new_tokens = task.new_tokens if self.generate else 0
        through = [_window(sample, window) for sample in samples]
        begins = self.tokenizer.bos_token_id
        texts = [_text(sample, window, new_tokens, begins) for sample in samples]
        for sample in samples:
            check_tokens(self.model, sample.ids)
        order = sorted(range(len(texts)), key=lambda i: texts[i].prompt)  # neighbours have the most in common
        found: dict[int, TextOutcome] = {}
        self._kept: tuple[list[int], CachedBatch] | None = None
        with evaluating(self.model), self._counted():
            while order:
                size = 1 if through[order[0]] else self.batch_size
                batch, order = order[:size], order[size:]
                if through[batch[0]]:
                    read = [self._windows(samples[batch[0]], through[batch[0]])]
                else:
                    read = self._continued([texts[i] for i in batch], new_tokens)
                for index, (losses, hits, generated) in zip(batch, read, strict=True):
                    found[index] = self._outcome(task, samples[index], texts[index], length, losses, hits, generated)
                    on_sample(index)
        self._kept = None
        return [found[index] for index in range(len(samples))]

    def _windows(self, sample: Sample, window: int | None) -> _Read:
        """The losses and hits of a text's scored tokens, read through windows."""
        stride = sample.stride if window == sample.window else None
        losses, hits = scores_by_position(self.model, sample.ids, chunk=self.chunk, window=window, stride=stride)
        first = _first(sample)
        return losses[first:], hits[first:], None

    def _continued(self, texts: Sequence[_Text], new_tokens: int) -> list[_Read]:
        """For each text the losses and hits of its scored tokens, and what greedy decoding says instead of them."""
        steady = steady_length(self.model) == inf
        rows = self._read([text.prompt for text in texts], steady)
        start, longest = rows.length, max(len(text.scored) for text in texts)
        scored = torch.zeros(len(texts), longest, dtype=torch.long, device=rows.device)
        there = torch.zeros_like(scored, dtype=torch.bool)
        for row, text in enumerate(texts):
            scored[row, : len(text.scored)] = torch.tensor(text.scored)
            there[row, : len(text.scored)] = True
        greedy = rows if not new_tokens or (rows.rewinds and steady) else rows.fork()
        losses, likeliest = self._forced(rows, scored)
        hits = (likeliest == scored) & there
        generated: list[list[int]] | list[None] = [None] * len(texts)
        if new_tokens:
            # as far as all answers go as greedy decoding would, they need not be decoded
            same = int(hits.long().cumprod(1).sum(1).min()) if greedy is rows else 0
            known = likeliest[:, : same + 1]
            if greedy is rows:
                rows.rewind(start + known.shape[1] - 1)
            generated = self._greedy(greedy, known, new_tokens)
        return [
            (losses[row, : len(text.scored)], hits[row, : len(text.scored)], generated[row])
            for row, text in enumerate(texts)
        ]

    def _read(self, prompts: Sequence[list[int]], steady: bool) -> CachedBatch:
        """The prompts in a cache: what the last one has in common with a single new one is taken over. steady: whether it
        means the same there."""
        if len(prompts) > 1 or not steady:
            chunk = chunk_size(self.model, max(map(len, prompts)), self.chunk)
            return CachedBatch(self.model, prompts, chunk=chunk)
        (prompt,) = prompts
        shared = 0
        if self._kept is not None:
            before, rows = self._kept
            pairs = zip(before, prompt[:-1], strict=False)  # the last token is always read: its logits are wanted
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if shared and rows.rewinds:
            rows.rewind(shared)
            rows.read(torch.tensor([prompt[shared:]]))
        else:
            self._kept = None  # its cache goes before the next one comes
            rows = CachedBatch(self.model, prompts, chunk=self.chunk)
        self._kept = prompt, rows
        return rows

    def _forced(self, rows: CachedBatch, scored: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each scored token (rows, n), and the token that was the likeliest in its place."""
        pieces = scored[:, :-1].split(self.chunk, 1) if scored.shape[1] > 1 else ()
        losses, likeliest, at = [], [], 0
        for logits in chain([rows.logits[:, None]], (rows.feed(piece) for piece in pieces)):
            wanted = scored[:, at : at + logits.shape[1]]
            at += logits.shape[1]
            losses.append(F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none"))
            likeliest.append(logits.argmax(-1))
        return torch.cat(losses, 1), torch.cat(likeliest, 1)

    def _greedy(self, rows: CachedBatch, known: Tensor, new_tokens: int) -> list[list[int]]:
        """Each row's likeliest tokens, up to `new_tokens` or the end of its text. known: the first ones, of which the cache
        holds all but the last."""
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
        text: _Text,
        length: int,
        losses: Tensor,
        hits: Tensor,
        generated: list[int] | None,
    ) -> TextOutcome:
        losses = losses.float().cpu()
        if not bool(losses.isfinite().all()):
            raise InputError(
                f"{task.text}: the model's loss on a text of {len(sample.ids)} tokens is not a number; numbers that are "
                "too large for float16 do that: load it in bfloat16 or float32"
            )
        said = None if generated is None else self.tokenizer.decode(generated, skip_special_tokens=True)
        return TextOutcome(
            tokens=len(text.prompt) + len(text.scored),
            needle=None if sample.needle is None else (sample.needle[0] + sample.needle[1] - 1) / 2,
            loss=task.loss(losses, sample),
            accuracy=float(hits.float().mean()),
            exact=int(hits.all()),
            generated=said,
            score=None if said is None else task.score(said, sample),
            blocks=_blocks(losses, _first(sample), length) if _runs(sample, length) else (),
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


def _first(sample: Sample) -> int:
    """The first scored token; nothing predicts a text's first."""
    return max(sample.prompt_tokens, 1)


def _runs(sample: Sample, length: int) -> bool:
    """Whether the losses tell something by position: those of running text, in one pass, over some of its length."""
    return sample.window is None and BLOCKS * (len(sample.ids) - _first(sample)) >= 4 * length


def _text(sample: Sample, window: int | None, new_tokens: int, begins: int | None) -> _Text:
    """begins: a token that stays where it is when the prompt is cut."""
    ids, first = sample.ids.tolist(), _first(sample)
    prompt, scored = ids[:first], ids[first:]
    if window is not None and (over := len(prompt) + max(len(scored), new_tokens) - window) > 0:
        kept = prompt[:1] if prompt[0] == begins else []
        over = min(over + len(kept), len(prompt) - 1)
        prompt = kept + prompt[over:]
    return _Text(prompt, scored)


def _window(sample: Sample, window: int | None) -> int | None:
    """The window that a text is read through; None: in one pass. Where little is scored, at the end, it is enough to
    leave out the beginning."""
    if sample.window is None and (window is None or 2 * (len(sample.ids) - _first(sample)) <= window):
        return None
    return min(w for w in (sample.window, window) if w is not None)


def _blocks(losses: Tensor, first: int, length: int) -> tuple[float | None, ...]:
    """Means over equal parts of the length of the losses from token `first` on."""
    part = (torch.arange(first, first + len(losses)) * BLOCKS // length).clamp(max=BLOCKS - 1)
    return tuple(
        float(losses[part == block].mean()) if bool((part == block).any()) else None for block in range(BLOCKS)
    )
