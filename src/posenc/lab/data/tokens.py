# SPDX-License-Identifier: Apache-2.0
"""From documents to a corpus: written to disk, cut in two, and tokenized piece by piece; tokenizers are bytes, byte pairs
learned from the text, or those of Hugging Face models."""

import hashlib
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from posenc.errors import InputError
from posenc.lab.data.corpus_text import HELD_OUT, Corpus, Text
from posenc.lab.data.sources import Document
from posenc.lab.messages import first_line
from posenc.pretrained.scratch import scratch

BYTES, LARGEST = 256, 1_000_000
"""The ids of bytes, and more ids than any tokenizer in use has."""
SEPARATOR = b"\n\n"
"""Between the documents of a running text, where the tokenizer has no token for the end of one."""
PIECE, BATCH = 1 << 16, 1 << 19
"""Bytes of one piece, and of those that are encoded together: encoders need hundreds of bytes for each. A longer document
is cut at the end of a line, or else of a word."""
HEAD = 16 << 20
"""Bytes from which byte pairs are learned, at most."""
MOST_HELD_OUT = 0.2
"""The share that is held out at most, for the cut to come where a document starts."""


class Piece(NamedTuple):
    """A part of a document that is not too long to encode: its text, how many bytes it has, and whether the document begins
    with it, and ends."""

    text: str
    num_bytes: int
    begins: bool
    ends: bool


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A way to turn strings into ids below vocab_size.

    eos: the id that ends a document, if there is one. fingerprint: equal for tokenizers that do the same.
    encode: strings -> ids of each, without special tokens. decode: ids -> text.
    """

    name: str
    vocab_size: int
    eos: int | None
    fingerprint: str
    encode: Callable[[list[str]], list[list[int]]]
    decode: Callable[[list[int]], str]


def bpe_size(name: str) -> int | None:
    """The vocabulary size N of "bpe:N"; None for a tokenizer that is not learned from the text.

    Raises:
        InputError: an empty name, or N that is no integer above 256.
    """
    if not name.strip():
        raise InputError("give bytes, bpe:4096, or the name or folder of a Hugging Face tokenizer", tokenizer="")
    if name != "bpe" and not name.startswith("bpe:"):
        return None
    size = name[4:]
    if not (size.isascii() and size.isdigit() and BYTES < int(size) <= LARGEST):
        raise InputError(f"must be bpe:N, with N from {BYTES + 1} to {LARGEST}, as in bpe:4096", tokenizer=name)
    return int(size)


def learn_bpe(name: str, size: int, texts: Iterable[str]) -> Tokenizer:
    """Byte-level BPE (Sennrich et al. 2016, on bytes as GPT-2) learned from strings by the `tokenizers` library. A text
    that has too few pairs to merge gives fewer ids than `size`."""
    try:
        from tokenizers import Tokenizer as Fast
        from tokenizers import decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise InputError("needs the tokenizers package: pip install 'posenc[lab]'", tokenizer=name) from None
    fast = Fast(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    fast.train_from_iterator(texts, trainer)

    def encode(texts: list[str]) -> list[list[int]]:
        return [encoded.ids for encoded in fast.encode_batch_fast(texts)]

    return Tokenizer(name, fast.get_vocab_size(), None, _sha256(fast.to_str()), encode, fast.decode)


def pretrained(name: str) -> Tokenizer:
    """The tokenizer of a Hugging Face model, by its name or folder. No code that comes with it is run.

    Raises:
        InputError: it cannot be loaded, or has no ids.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise InputError("needs transformers: pip install 'posenc[lab]'", tokenizer=name) from None
    try:
        hf: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        vocabulary = hf.get_vocab()
    except Exception as error:  # each kind of tokenizer raises others
        raise InputError(
            first_line(error).rstrip("."),
            "give bytes, bpe:4096, or the name or folder of a Hugging Face tokenizer",
            tokenizer=name,
        ) from error
    # ids may have gaps, and added ones lie past what tokenizers call their vocabulary's size
    size = max(vocabulary.values(), default=-1) + 1
    eos = hf.eos_token_id
    if not size or (eos is not None and not 0 <= eos < size):
        raise InputError(f"has {size} ids, and its end of text is id {eos}", "give another", tokenizer=name)

    def encode(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = hf(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def decode(ids: list[int]) -> str:
        return str(hf.decode(ids, clean_up_tokenization_spaces=False))

    backend = getattr(hf, "backend_tokenizer", None)
    facts = json.dumps(sorted(vocabulary.items())) if backend is None else backend.to_str()
    return Tokenizer(name, size, eos, _sha256(f"{type(hf).__name__} {eos} {facts}"), encode, decode)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# -------------------------------------------------------------------- the corpus


def build(
    name: str,
    documents: Iterable[Document],
    tokenizer: str,
    packed: bool,
    data_tokens: int,
    first_held_out: int | None = None,
) -> Corpus:
    """A corpus of about data_tokens tokens; the last tenth of the text's bytes is held out, by every tokenizer the same.

    first_held_out: the number of the first document that is held out, of a text that is read to its end; the held-out part then
    knows its documents.

    Raises:
        InputError: no text, text that is not UTF-8 (but for bytes), or a tokenizer that does not exist or fit.
    """
    if data_tokens < 2:
        raise InputError("must be at least 2", data_tokens=data_tokens)
    size = bpe_size(tokenizer)
    known = None if tokenizer == "bytes" or size else pretrained(tokenizer)
    running = not packed and (known is None or known.eos is None) and first_held_out is None
    with scratch() as folder:  # an open mapping outlives its file
        spool = Spool(folder / "text", documents, SEPARATOR if running else b"", name, first_held_out)
        if tokenizer == "bytes":
            spool.fill(data_tokens)
            return _as_bytes(spool.trim(data_tokens), packed)
        spool.fill(HEAD)
        # data_tokens byte-level tokens spell as many bytes or more: what is learned from is never held out
        head = spool.held_out(min(data_tokens, spool.size, HEAD), packed)
        made = known or learn_bpe(tokenizer, size or 0, (piece.text for piece in spool.pieces(0, head)))
        limit = round(data_tokens * _bytes_per_token(spool, made))
        spool.fill(limit)
        return _as_tokens(spool.trim(limit), made, packed)


class Spool:
    """Documents on disk, end to end, with a separator between them. starts: where each begins. size: in bytes. first_held_out:
    see `build`."""

    def __init__(
        self, path: Path, documents: Iterable[Document], separator: bytes, name: str, first_held_out: int | None = None
    ) -> None:
        self.path = path
        self.separator = separator
        self.name = name
        self.first_held_out = first_held_out
        self.starts: array[int] = array("q")
        self.size: int = 0
        self._pieces = ((i == 0, piece) for document in documents for i, piece in enumerate(filter(None, document)))
        path.touch()

    def fill(self, limit: int) -> None:
        """Read on until there are `limit` bytes or more."""
        with self.path.open("ab") as file:
            while self.size < limit and (following := next(self._pieces, None)):
                first, piece = following
                if first and self.starts:
                    self.size += file.write(self.separator)
                if first:
                    self.starts.append(self.size)
                self.size += file.write(piece)

    def trim(self, limit: int) -> "Spool":
        """Cut off what exceeds `limit` bytes.

        Raises:
            InputError: there is no text, or less of one that is split by file.
        """
        if self.first_held_out is not None and limit < self.size:
            raise InputError(
                f"is read to its end, {self.size} bytes", "give more data_tokens, or leave them out", data=self.name
            )
        self.size = min(self.size, self.boundary(limit))
        os.truncate(self.path, self.size)
        while self.starts and self.starts[-1] >= self.size:
            self.starts.pop()
        if self.size < 2:
            raise InputError("the text is empty", data=self.name)
        return self

    def read(self, start: int, end: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def boundary(self, offset: int) -> int:
        """The start of the character that a byte belongs to."""
        before = self.read(max(0, offset - 3), offset + 1)
        back = next((i for i, byte in enumerate(reversed(before)) if byte & 0xC0 != 0x80), 0)
        return offset - back if offset < self.size else offset

    def held_out(self, size: int, packed: bool) -> int:
        """Where the last tenth of the first `size` bytes starts. Packed, it starts with the document that the cut would
        divide, unless that is too long."""
        if self.first_held_out is not None:
            return self.starts[self.first_held_out]
        cut = self.boundary(int(size * (1 - HELD_OUT)))
        start = self.starts[bisect_right(self.starts, cut) - 1] if packed and self.starts else 0
        return start if start > size * (1 - MOST_HELD_OUT) else cut

    def spans(self, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """The part of each document between two offsets: from where to where, and whether that is its end. Documents with a
        separator between them are one."""
        if self.separator:
            yield start, end, True
            return
        ends = chain(self.starts[1:], (self.size,))
        for a, b in zip(self.starts, ends, strict=True):
            if a < end and b > start:
                yield max(a, start), min(b, end), b <= end

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """The text between two offsets.

        Raises:
            InputError: not UTF-8.
        """
        for first, last, complete in self.spans(start, end):
            offset = first
            while offset < last:
                piece = self.read(offset, min(offset + PIECE, last))
                if offset + len(piece) < last:
                    words = piece.rfind(b"\n") + 1 or piece.rfind(b" ")
                    piece = piece[: words if words > 0 else self.boundary(offset + len(piece)) - offset]
                text, begins = self.decode(piece, offset), offset == first
                offset += len(piece)
                yield Piece(text, len(piece), begins, complete and offset == last)

    def decode(self, piece: bytes, offset: int) -> str:
        """Bytes that are at an offset, as text."""
        try:
            return piece.decode()
        except UnicodeDecodeError as error:
            number = bisect_right(self.starts, offset + error.start)
            raise InputError(
                f"byte {offset + error.start - self.starts[number - 1]} of document {number} is not UTF-8, which "
                "only tokenizer='bytes' reads",
                data=self.name,
            ) from None


def _bytes_per_token(spool: Spool, tokenizer: Tokenizer) -> float:
    """Measured on the first piece of the text."""
    piece = spool.read(0, spool.boundary(min(PIECE, spool.size)))
    return len(piece) / max(1, len(tokenizer.encode([spool.decode(piece, 0)])[0]))


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces that are encoded together."""
    batch: list[Piece] = []
    num_bytes = 0
    for piece in pieces:
        batch.append(piece)
        num_bytes += piece.num_bytes
        if num_bytes >= BATCH:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _as_bytes(spool: Spool, packed: bool) -> Corpus:
    cut = spool.held_out(spool.size, packed)
    tokens = torch.from_file(str(spool.path), size=spool.size, dtype=torch.uint8)
    with spool.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")  # the mapped tokens would stay in memory
    known = packed, packed or spool.first_held_out is not None
    parts = []
    for (a, b), documents in zip(((0, cut), (cut, spool.size)), known, strict=True):
        starts = torch.tensor([start - a for start, _, _ in spool.spans(a, b)], dtype=torch.long) if documents else None
        parts.append(Text(tokens[a:b], starts))
        if documents:
            digest.update(b"starts" + parts[-1].edges.numpy().tobytes())
    train, test = parts
    return Corpus(spool.name, digest.hexdigest(), train, test, packed=packed)


def _as_tokens(spool: Spool, tokenizer: Tokenizer, packed: bool) -> Corpus:
    cut = spool.held_out(spool.size, packed)
    digest = hashlib.sha256(f"{tokenizer.fingerprint} {packed}".encode())
    by_file = packed or spool.first_held_out is not None
    train, test = (
        _encode(spool.pieces(a, b), tokenizer, documents, spool.path.with_name(name), digest.update)
        for name, a, b, documents in (("train", 0, cut, packed), ("test", cut, spool.size, by_file))
    )
    return Corpus(spool.name, digest.hexdigest(), train, test, tokenizer.name, tokenizer.vocab_size, packed)


def _encode(
    pieces: Iterable[Piece], tokenizer: Tokenizer, documents: bool, path: Path, update: Callable[[bytes], object]
) -> Text:
    """Documents as ids in a file; the end of one that is not cut has the token for it."""
    size = tokenizer.vocab_size
    dtype = torch.uint8 if size <= 1 << 8 else torch.uint16 if size <= 1 << 16 else torch.int32
    starts, count, num_bytes = array("q"), 0, 0
    with path.open("wb") as file:
        for batch in _batches(pieces):
            ids: list[int] = []
            for piece, encoded in zip(batch, tokenizer.encode([piece.text for piece in batch]), strict=True):
                if piece.begins:
                    starts.append(count + len(ids))
                ids += encoded
                if tokenizer.eos is not None and piece.ends:
                    ids.append(tokenizer.eos)
                num_bytes += piece.num_bytes
            if ids and not 0 <= min(ids) <= max(ids) < size:
                raise InputError(
                    f"gives id {max(ids)}, but its vocabulary ends at {size - 1}", tokenizer=tokenizer.name
                )
            raw = torch.tensor(ids, dtype=torch.long).to(dtype).numpy().tobytes()
            update(raw)
            file.write(raw)
            count += len(ids)
    edges = torch.tensor(starts, dtype=torch.long).unique()  # documents without a token are left out
    edges = edges[edges < count] if documents else None
    if edges is not None:
        update(b"starts" + edges.numpy().tobytes())
    update(count.to_bytes(8, "little"))
    tokens = torch.from_file(str(path), size=count, dtype=dtype) if count else torch.empty(0, dtype=dtype)
    return Text(tokens, edges, num_bytes)
