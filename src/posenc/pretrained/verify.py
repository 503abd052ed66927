# SPDX-License-Identifier: Apache-2.0
"""Verify an extension: the loss on a text by position, of the model as it was, of that model on a truncated text, and of
the extended one."""

import math
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from posenc.errors import InputError
from posenc.pretrained.inference import Progress, loss_by_position

BLOCKS = 8
SECONDS = 60.0
A_MINUTE = "about a minute's work"
"""Why not all tokens are read by default."""
AS_LOADED, EXTENDED, TUNED = "as loaded", "extended", "fine-tuned"


@dataclass(eq=False)
class Verification:
    """Losses on one text, in nats a token, of several states of a model.

    text: its name. ids: (N,), the tokens to read. trained_length, wanted: tokens that the model was made for before and now.
    stopped: why fewer are read. losses: state -> (N,), seconds: state -> time.
    """

    text: str
    ids: Tensor
    trained_length: int
    wanted: int
    stopped: str
    losses: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def truncated(self) -> str:
        """The state in which the model as loaded reads the text in windows of the context length."""
        return f"cut to {self.trained_length}"

    @property
    def past_training(self) -> bool:
        """Whether the text is longer than the context length."""
        return len(self.ids) > self.trained_length

    def read(self, state: str, model: nn.Module, progress: Progress | None = None) -> None:
        """Measure the model in a state."""
        started = time.perf_counter()
        window = self.trained_length if state == self.truncated else None
        self.losses[state] = loss_by_position(model, self.ids, window=window, progress=progress).cpu()
        self.seconds[state] = round(time.perf_counter() - started, 2)

    @property
    def edges(self) -> tuple[int, ...]:
        """The edges of blocks of positions; one is at the context length, and no very short block beside it."""
        count, at = len(self.ids), self.trained_length
        step = max(math.ceil(count / BLOCKS), 2)
        marks = {*range(0, count, step), count}
        if self.past_training:
            marks = {mark for mark in marks if mark in (0, count) or abs(mark - at) > step // 2} | {at}
        return tuple(sorted(marks))

    def means(self) -> dict[str, tuple[float, ...]]:
        """State -> the mean loss of each block."""
        blocks = list(pairwise(self.edges))
        return {s: tuple(float(loss[low:high].nanmean()) for low, high in blocks) for s, loss in self.losses.items()}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = "text", "trained_length", "wanted", "stopped", "edges", "seconds"
        return {name: getattr(self, name) for name in names} | {"losses": self.means()}

    def __str__(self) -> str:
        width = max(map(len, self.losses))
        columns = "  ".join(f"{state:>{width}}" for state in self.losses)
        lines = [f"nats a token by position, on {self.text}", f"{'positions':>15}  {columns}"]
        for (low, high), *means in zip(pairwise(self.edges), *self.means().values(), strict=True):
            lines.append(f"{f'{low}-{high}':>15}  {'  '.join(f'{mean:>{width}.3f}' for mean in means)}")
        if not self.past_training:
            lines.append(f"all within the {self.trained_length} tokens that the model read before")
        if len(self.ids) < self.wanted:
            lines.append(f"read {len(self.ids)} of {self.wanted} tokens: {self.stopped}")
        return "\n".join(lines)


def verification(
    model: Any, tokenizer: Any, name: str, text: str, trained: int, wanted: int, tokens: int | None = None
) -> Verification:
    """Prepare to read a text, called `name`, with the model as it was loaded.

    trained, wanted: tokens that the model was made for, and is to be. tokens: tokens to read; None: as many of those wanted as a minute
    allows, by the model's speed on a short piece, and at least 1024.

    Raises:
        InputError: the text is too short.
    """
    ids = torch.tensor(tokenizer(text[: 16 * (tokens or wanted)], verbose=False).input_ids)
    if len(ids) < 2:
        raise InputError(f"has {len(ids)} tokens", "give a longer one", text=name)
    count = min(len(ids), tokens or wanted)
    stopped = "the text has no more" if count == len(ids) else "as asked for"
    if tokens is None:
        piece = ids[: min(count, trained, 256)]
        loss_by_position(model, piece)  # the first call of a model is slower
        started = time.perf_counter()
        loss_by_position(model, piece)
        speed = len(piece) / (time.perf_counter() - started)
        passes = 4 if count > trained else 2  # windows that overlap by half read everything twice
        allowed = max(1024, int(speed * SECONDS / passes) // 256 * 256)
        if allowed < count:
            count, stopped = allowed, A_MINUTE
    return Verification(name, ids[:count], trained, wanted, stopped)
