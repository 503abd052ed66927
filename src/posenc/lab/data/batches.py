# SPDX-License-Identifier: Apache-2.0
"""What is trained and tested on: batches of sequences, packed or of running text, and the ends of held-out passages."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from posenc.errors import InputError
from posenc.lab.data.text import HELD_OUT, Corpus, Text
from posenc.positions import Positions

if TYPE_CHECKING:
    from posenc.lab.text import Settings

IGNORED = -100
"""The target that `torch.nn.functional.cross_entropy` leaves out."""


class Batch(NamedTuple):
    """Sequences of one step; rows depend on nothing but themselves, so processes may share them out.

    tokens: (batch, length + 1), the last one a target only. documents: likewise, the document of each token; None: one
    running text.
    """

    tokens: Tensor
    documents: Tensor | None = None

    def rows(self, which: slice | Tensor) -> "Batch":
        """Some of the sequences."""
        return Batch(self.tokens[which], None if self.documents is None else self.documents[which])

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.tokens.to(device), None if self.documents is None else self.documents.to(device))

    @property
    def inputs(self) -> Tensor:
        return self.tokens[:, :-1]

    @property
    def targets(self) -> Tensor:
        """(batch, length): the next token, or IGNORED where that is another document's, which nothing foretells."""
        if self.documents is None:
            return self.tokens[:, 1:]
        return self.tokens[:, 1:].masked_fill(self.documents[:, 1:] != self.documents[:, :-1], IGNORED)

    @property
    def scored(self) -> int:
        """How many targets there are."""
        return self.inputs.numel() if self.documents is None else int((self.targets != IGNORED).sum())

    @property
    def positions(self) -> Positions | None:
        """Restarting with each document, which sees only itself; None: plain ones."""
        return None if self.documents is None else Positions.packed(document_ids=self.documents[:, :-1])


def draw(text: Text | Tensor, settings: "Settings", generator: torch.Generator) -> Batch:
    """The sequences of one training step: a function of its arguments alone.

    Running text is cut anywhere. Packed, a sequence starts where a document does, goes on with the documents after it,
    and ends in the middle of one, whose rest it leaves to other sequences. A document longer than a sequence is taken
    for several: those that start at multiples of the length, each at position 0. Every place of the text is as likely as
    any other to have the sequence drawn that starts at or nearest before it.
    """
    text, length = Text.of(text), settings.length
    starts = torch.randint(len(text) - length, (settings.batch_size,), generator=generator)
    if settings.packed:
        first = text.edges[text.document(starts)]
        starts = first + (starts - first) // length * length
    index = starts[:, None] + torch.arange(length + 1)
    return Batch(text.tokens[index].long(), text.document(index) if settings.packed else None)


def window_ends(text: Text | Tensor, settings: "Settings") -> Tensor:
    """(windows,): the last token of each held-out passage, evenly spread. Packed, a passage lies in one document, as
    long as there are enough such places, and else anywhere, see `inside_documents`."""
    text, s = Text.of(text), settings
    if not (s.packed and inside_documents(text, s)):
        return torch.linspace(s.longest, len(text) - 1, s.windows, dtype=torch.float64).long()
    room = _room(text, s)
    through = room.cumsum(0)
    place = torch.linspace(0, int(through[-1]) - 1, s.windows, dtype=torch.float64).long()
    document = torch.searchsorted(through, place, right=True)
    return text.edges[document] + s.longest + place - (through - room)[document]


def inside_documents(text: Text, settings: "Settings") -> bool:
    """Whether the documents that are longer than the longest test length have room for all targets."""
    return int(_room(text, settings).sum()) > settings.windows * settings.targets


def _room(text: Text, settings: "Settings") -> Tensor:
    """(documents,): how many of a document's tokens have a whole context before them."""
    return (text.edges.diff() - settings.longest).clamp(min=0)


def check_long_enough(corpus: Corpus, settings: "Settings") -> None:
    """Refuse a text in which the windows would not fit, or that is not made for the settings.

    Raises:
        InputError: with the number of tokens that the settings need, or the argument that differs.
    """
    for name in ("tokenizer", "vocab_size", "packed"):
        own, asked = getattr(corpus, name), getattr(settings, name)
        if own != asked:
            raise InputError(f"settings with {name}={asked!r}, a corpus with {own!r}: load it with {name}, see Corpus")
    need_test = settings.longest + settings.windows * settings.targets + 1
    need_train = settings.length * settings.batch_size + 1
    need = max(round(need_test / HELD_OUT), round(need_train / (1 - HELD_OUT)))
    have = len(corpus.train) + len(corpus.test)
    if len(corpus.test) < need_test or len(corpus.train) < need_train:
        raise InputError(
            f"--data {corpus.name}: {have} {settings.unit}s are too short to test at {settings.longest} tokens with "
            f"{settings.windows} windows; needs about {need} {settings.unit}s: give a longer text, more --data-tokens, a smaller "
            "--length, fewer --factors, --windows or --batch-size"
        )
    if corpus.packed and int(corpus.train.edges.diff().max()) < 2:
        raise InputError(
            f"--packed: no document of --data {corpus.name} has two {settings.unit}s, so there is nothing to predict; "
            "leave it out, and documents are joined"
        )
