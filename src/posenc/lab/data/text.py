# SPDX-License-Identifier: Apache-2.0
"""Tokens as they are trained on: a text with its documents, and a corpus of two, written and read as files."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

HELD_OUT = 0.1
"""The share at the end of the text that is kept for testing."""
DTYPES = {"uint8": torch.uint8, "uint16": torch.uint16, "int32": torch.int32}


def dtype_for(vocab_size: int) -> torch.dtype:
    """The smallest type that holds every id."""
    return torch.uint8 if vocab_size <= 1 << 8 else torch.uint16 if vocab_size <= 1 << 16 else torch.int32


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
        """A text as it is; (n,) ids as one running text."""
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
        """The number of the document that the tokens at these places belong to."""
        return torch.searchsorted(self.edges, index, right=True) - 1


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text to train on and one that is held out.

    digest: identifies tokens, tokenizer and boundaries: equal digests, equal tokens. For running text in bytes it is the
    SHA-256 of the whole text. tokenizer, vocab_size: what the ids are of. packed: whether boundaries are kept.
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

    def write(self, folder: Path) -> None:
        """Put the text where other processes can `read` it."""
        facts = {name: getattr(self, name) for name in ("name", "digest", "tokenizer", "vocab_size", "packed")}
        for part in ("train", "test"):
            text: Text = getattr(self, part)
            text.tokens.numpy().tofile(folder / part)
            if text.starts is not None:
                text.starts.numpy().tofile(folder / f"{part}.starts")
            facts[part] = {"dtype": str(text.tokens.dtype).removeprefix("torch."), "num_bytes": text.num_bytes}
        (folder / "corpus.json").write_text(json.dumps(facts), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Corpus":
        """The text that another process wrote, mapped into memory rather than loaded."""
        facts = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        for part in ("train", "test"):
            starts = folder / f"{part}.starts"
            about = facts[part]
            facts[part] = Text(
                mapped(folder / part, DTYPES[about["dtype"]]),
                mapped(starts, torch.long) if starts.exists() else None,
                about["num_bytes"],
            )
        return cls(**facts)

    def facts(self) -> dict[str, object]:
        """What results say of the text."""
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


def mapped(path: Path, dtype: torch.dtype) -> Tensor:
    """A file as a tensor, read as far as it is used."""
    size = path.stat().st_size // dtype.itemsize
    return torch.from_file(str(path), size=size, dtype=dtype) if size else torch.empty(0, dtype=dtype)
