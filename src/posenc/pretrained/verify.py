# SPDX-License-Identifier: Apache-2.0
"""Verify an extension: the loss on a text by position, of the model as it was, of that model on a truncated text, and of
the extended one."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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


@dataclass(frozen=True, eq=False)
class Verification:
    """Mean losses in nats a token, by blocks of positions.

    text: name of the text. trained_length, wanted: tokens that the model was made for before and now. stopped: why fewer
    were read. edges: of the blocks. losses: arm -> one mean a block.
    """

    text: str
    trained_length: int
    wanted: int
    stopped: str
    edges: tuple[int, ...]
    losses: Mapping[str, tuple[float, ...]]
    seconds: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        width = max(map(len, self.losses))
        columns = "  ".join(f"{arm:>{width}}" for arm in self.losses)
        lines = [f"nats a token by position, on {self.text}", f"{'positions':>15}  {columns}"]
        for block, (low, high) in enumerate(pairwise(self.edges)):
            cells = "  ".join(f"{means[block]:>{width}.3f}" for means in self.losses.values())
            lines.append(f"{f'{low}-{high}':>15}  {cells}")
        read = self.edges[-1]
        if read <= self.trained_length:
            lines.append(f"all within the {self.trained_length} tokens that the model read before")
        if read < self.wanted:
            lines.append(f"read {read} of {self.wanted} tokens: {self.stopped}")
        return "\n".join(lines)


@dataclass(eq=False)
class Verifier:
    """Reads one text with each arm. ids: (N,). Other fields: see `Verification`."""

    text: str
    ids: Tensor
    trained_length: int
    wanted: int
    stopped: str
    losses: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def cut(self) -> str:
        """The arm that reads the text in windows of the trained length."""
        return f"cut to {self.trained_length}"

    @property
    def past_training(self) -> bool:
        """Whether the text is longer than the trained length."""
        return len(self.ids) > self.trained_length

    def read(self, arm: str, model: nn.Module, progress: Progress | None = None) -> None:
        """Measure one arm; `cut` reads windows."""
        started = time.perf_counter()
        window = self.trained_length if arm == self.cut else None
        self.losses[arm] = loss_by_position(model, self.ids, window=window, progress=progress).cpu()
        self.seconds[arm] = round(time.perf_counter() - started, 2)

    def result(self) -> Verification:
        """The losses so far."""
        count = len(self.ids)
        step = max(math.ceil(count / BLOCKS), 2)
        marks = {*range(0, count, step), count}
        if self.past_training:  # an edge there, and no very short block beside it
            at = self.trained_length
            marks = {mark for mark in marks if mark in (0, count) or abs(mark - at) > step // 2} | {at}
        edges = tuple(sorted(marks))
        means = {
            arm: tuple(float(loss[low:high].nanmean()) for low, high in pairwise(edges))
            for arm, loss in self.losses.items()
        }
        return Verification(self.text, self.trained_length, self.wanted, self.stopped, edges, means, self.seconds)


def verifier(model: Any, tokenizer: Any, name: str, text: str, wanted: int, tokens: int | None = None) -> Verifier:
    """Prepare to read a text, called `name`, with the model as it was loaded.

    wanted: tokens that the model is to be made for. tokens: tokens to read; None: as many of those wanted as a minute
    allows, by the model's speed on a short piece, and at least 1024.

    Raises:
        InputError: the text is too short.
    """
    ids = torch.tensor(tokenizer(text[: 16 * (tokens or wanted)], verbose=False).input_ids)
    if len(ids) < 2:
        raise InputError(f"text={name}: has {len(ids)} tokens; give a longer one")
    count = min(len(ids), tokens or wanted)
    stopped = "the text has no more" if count == len(ids) else "as asked for"
    trained = int(model.config.max_position_embeddings)
    if tokens is None:
        piece = ids[: min(count, trained, 256)]
        loss_by_position(model, piece)  # the first call of a model is slower
        started = time.perf_counter()
        loss_by_position(model, piece)
        speed = len(piece) / (time.perf_counter() - started)
        arms = 4 if count > trained else 2  # windows that overlap by half read everything twice
        allowed = max(1024, int(speed * SECONDS / arms) // 256 * 256)
        if allowed < count:
            count, stopped = allowed, A_MINUTE
    return Verifier(name, ids[:count], trained, wanted, stopped)
