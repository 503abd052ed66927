# SPDX-License-Identifier: Apache-2.0
"""Tokens as they are trained on: a corpus and its documents, the batches drawn from them, the held-out passages."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc.positions import Positions

HELD_OUT = 0.1
"""The share at the end of the text that is reserved for testing."""
IGNORED = -100
"""The target that `torch.nn.functional.cross_entropy` leaves out."""


@dataclass(frozen=True, eq=False)
class Text:
    """Tokens of documents, end to end.

    tokens: (n,) ids. starts: (documents,) where each document starts, 0 first; None: one running text.
    num_bytes: bytes of UTF-8 that the tokens spell; None: one each.
    """

    tokens: Tensor
    starts: Tensor | None = None
    num_bytes: int | None = None

    @classmethod
    def of(cls, text: "Text | Tensor") -> "Text":
        """A text unchanged; (n,) ids as one running text."""
        return cls(text) if isinstance(text, Tensor) else text

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def bytes(self) -> int:
        """Bytes that the tokens spell."""
        return len(self) if self.num_bytes is None else self.num_bytes

    @cached_property
    def edges(self) -> Tensor:
        """(documents + 1,): where the documents start, and the end of the last."""
        starts = torch.zeros(1, dtype=torch.long) if self.starts is None else self.starts
        return torch.cat((starts, torch.tensor([len(self)])))

    def document(self, index: Tensor) -> Tensor:
        """The number of the document that the tokens with these indices belong to."""
        return torch.searchsorted(self.edges, index, right=True) - 1


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text to train on and one that is held out.

    digest: identifies tokens, tokenizer and boundaries: equal digests, equal tokens. For running text in bytes it is the
    SHA-256 of the complete text. tokenizer, vocab_size: of the ids. packed: whether documents are known.
    """

    name: str
    digest: str
    train: Text
    test: Text
    tokenizer: str = "bytes"
    vocab_size: int = 256
    packed: bool = False

    @property
    def bytes_per_token(self) -> float:
        """Of the held-out text: turns nats per token into nats per byte, by which tokenizers can be compared."""
        return self.test.bytes / max(1, len(self.test))

    @cached_property
    def by_frequency(self) -> float:
        """The loss, in nats per held-out token, of predicting each token by its frequency in the training part; each is counted
        once more than it occurs, so that none is impossible."""
        counts = self.train.tokens.long().bincount(minlength=self.vocab_size).double() + 1
        return -(counts / counts.sum()).log()[self.test.tokens.long()].mean().item()

    def facts(self) -> dict[str, object]:
        """The data, as results.json describes them."""
        return {
            "name": self.name,
            "sha256": self.digest,
            "tokenizer": self.tokenizer,
            "vocab_size": self.vocab_size,
            "train_bytes": self.train.bytes,
            "test_bytes": self.test.bytes,
            "train_tokens": len(self.train),
            "test_tokens": len(self.test),
            "bytes_per_token": round(self.bytes_per_token, 6),
            "documents": None if not self.packed else len(self.train.edges) + len(self.test.edges) - 2,
        }


class TextBatch(NamedTuple):
    """Sequences of one step.

    tokens: (batch, length + 1), the last one a target only. documents: likewise, the document of each token; None: one
    running text.
    """

    tokens: Tensor
    documents: Tensor | None = None

    def to(self, device: torch.device) -> "TextBatch":
        """On a device; the program does not wait for a GPU to have received them."""
        documents = None if self.documents is None else self.documents.to(device, non_blocking=True)
        return TextBatch(self.tokens.to(device, non_blocking=True), documents)

    @property
    def inputs(self) -> Tensor:
        return self.tokens[:, :-1]

    @property
    def targets(self) -> Tensor:
        """(batch, length): the next token, or IGNORED where that is another document's, which cannot be predicted."""
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


def draw(text: Text | Tensor, settings: Any, generator: torch.Generator) -> TextBatch:
    """The sequences of one training step, by the length, batch_size and packed of settings: a function of its arguments alone.

    Running text is cut anywhere. Packed, a sequence starts where a document does, goes on with the documents after it,
    and ends in the middle of one, whose rest it leaves to other sequences. A document longer than a sequence counts
    as several: those that start at multiples of the length, each at position 0. Every token of the text is as likely as
    any other to select the sequence that starts at or nearest before it.
    """
    text, length = Text.of(text), settings.length
    starts = torch.randint(len(text) - length, (settings.batch_size,), generator=generator)
    if settings.packed:
        first = text.edges[text.document(starts)]
        starts = first + (starts - first) // length * length
    index = starts[:, None] + torch.arange(length + 1)
    return TextBatch(text.tokens[index].long(), text.document(index) if settings.packed else None)


def window_ends(text: Text | Tensor, settings: Any) -> Tensor:
    """(windows,): the last token of each held-out passage, evenly spread, by the windows, longest and targets of settings. Where the documents are known, a passage lies in one
    if there are enough such passages, and else anywhere, see `inside_documents`."""
    text, s = Text.of(text), settings
    if text.starts is None or not inside_documents(text, s):
        return torch.linspace(s.longest, len(text) - 1, s.windows, dtype=torch.float64).long()
    room = _room(text, s)
    through = room.cumsum(0)
    index = torch.linspace(0, int(through[-1]) - 1, s.windows, dtype=torch.float64).long()
    document = torch.searchsorted(through, index, right=True)
    return text.edges[document] + s.longest + index - (through - room)[document]


def inside_documents(text: Text, settings: Any) -> bool:
    """Whether the documents that are longer than the longest test length have room for all targets."""
    return int(_room(text, settings).sum()) > settings.windows * settings.targets


def _room(text: Text, settings: Any) -> Tensor:
    """(documents,): how many of a document's tokens have the longest context before them."""
    return (text.edges.diff() - settings.longest).clamp(min=0)
