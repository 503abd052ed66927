# SPDX-License-Identifier: Apache-2.0
"""From documents to a corpus: streamed to disk, cut in two, turned into tokens a piece at a time."""

import hashlib
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from posenc.errors import InputError
from posenc.lab.data.sources import Document
from posenc.lab.data.text import HELD_OUT, Corpus, Text, dtype_for, mapped
from posenc.lab.data.tokenizers import Tokenizer, bpe_size, learn_bpe, pretrained

JOINT = b"\n\n"
"""Between the documents of a running text, where the tokenizer has no token for the end of one."""
PIECE, TOGETHER = 1 << 16, 1 << 19
"""Bytes of one piece, and of those that are encoded together: encoders hold hundreds of bytes for each. A longer document
is cut at the end of a line, or else of a word."""
HEAD = 16 << 20
"""Bytes from which byte pairs are learned, at most."""
MOST_HELD_OUT = 0.2
"""The share that is held out at most, for the cut to come where a document starts."""

Span = tuple[int, int, bool]
"""From where to where, and whether that is the end of a document."""


def build(name: str, documents: Iterable[Document], tokenizer: str, packed: bool, max_tokens: int) -> Corpus:
    """A corpus of about max_tokens tokens; the last tenth of the text's bytes is held out, by every tokenizer the same.

    Raises:
        InputError: no text, text that is not UTF-8 (but for bytes), or a tokenizer that cannot serve.
    """
    if max_tokens < 2:
        raise InputError(f"--data-tokens {max_tokens}: must be at least 2")
    size = bpe_size(tokenizer)
    known = None if tokenizer == "bytes" or size else pretrained(tokenizer)
    running = not packed and (known is None or known.eos is None)
    try:
        # an open mapping outlives its file; where that cannot be deleted yet, it stays for the system to clear
        with TemporaryDirectory(prefix="posenc-text-", ignore_cleanup_errors=True) as folder:
            spool = Spool(Path(folder) / "text", documents, JOINT if running else b"", name)
            if tokenizer == "bytes":
                spool.fill(max_tokens)
                return _as_bytes(spool.trim(max_tokens), packed)
            spool.fill(HEAD)
            # max_tokens byte-level tokens spell as many bytes or more: what is learned from is never held out
            head = spool.held_out(min(max_tokens, spool.size, HEAD), packed)
            learned = (text for start, end, _ in spool.spans(0, head) for text in spool.texts(start, end))
            made = known or learn_bpe(tokenizer, size or 0, learned)
            limit = round(max_tokens * _bytes_per_token(spool, made))
            spool.fill(limit)
            return _as_tokens(spool.trim(limit), made, packed)
    except OSError as error:
        raise InputError(f"--data {name}: {error.strerror or error}; free space where temporary files go") from None


class Spool:
    """Documents on disk, end to end, with `joint` between them. starts: where each begins."""

    def __init__(self, path: Path, documents: Iterable[Document], joint: bytes, name: str) -> None:
        self.path = path
        self.joint = joint
        self.name = name
        self.starts: array[int] = array("q")
        self.size: int = 0
        self._pieces = ((i == 0, piece) for document in documents for i, piece in enumerate(filter(None, document)))
        path.touch()

    def fill(self, limit: int) -> None:
        """Read on until there are `limit` bytes or more."""
        with self.path.open("ab") as file:
            while self.size < limit and (found := next(self._pieces, None)):
                first, piece = found
                if first and self.starts:
                    self.size += file.write(self.joint)
                if first:
                    self.starts.append(self.size)
                self.size += file.write(piece)

    def trim(self, limit: int) -> "Spool":
        """Leave nothing past `limit` bytes.

        Raises:
            InputError: there is no text.
        """
        if self.size > limit:
            self.size = self.boundary(limit)
            os.truncate(self.path, self.size)
            while self.starts and self.starts[-1] >= self.size:
                self.starts.pop()
        if self.size < 2:
            raise InputError(f"--data {self.name}: the text is empty")
        return self

    def read(self, start: int, end: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def boundary(self, place: int) -> int:
        """The start of the character that a place lies in."""
        before = self.read(max(0, place - 3), place + 1)
        back = next((i for i, byte in enumerate(reversed(before)) if byte & 0xC0 != 0x80), 0)
        return place - back if place < self.size else place

    def held_out(self, size: int, packed: bool) -> int:
        """Where the last tenth of the first `size` bytes starts. Packed, it starts with the document that the cut would
        part, unless that is too long."""
        cut = self.boundary(int(size * (1 - HELD_OUT)))
        start = self.starts[bisect_right(self.starts, cut) - 1] if packed and self.starts else 0
        return start if start > size * (1 - MOST_HELD_OUT) else cut

    def spans(self, start: int, end: int) -> Iterator[Span]:
        """What lies of each document between two places; documents that are joined are one."""
        if self.joint:
            yield start, end, True
            return
        ends = chain(self.starts[1:], (self.size,))
        for a, b in zip(self.starts, ends, strict=True):
            if a < end and b > start:
                yield max(a, start), min(b, end), b <= end

    def texts(self, start: int, end: int) -> Iterator[str]:
        """The text between two places, in pieces that are not too long to encode.

        Raises:
            InputError: not UTF-8.
        """
        while start < end:
            piece = self.read(start, min(start + PIECE, end))
            if start + len(piece) < end:
                words = piece.rfind(b"\n") + 1 or piece.rfind(b" ")
                piece = piece[: words if words > 0 else self.boundary(start + len(piece)) - start]
            try:
                yield piece.decode()
            except UnicodeDecodeError as error:
                number = bisect_right(self.starts, start + error.start)
                raise InputError(
                    f"--data {self.name}: byte {start + error.start - self.starts[number - 1]} of document {number} is not "
                    "UTF-8, which only --tokenizer bytes reads"
                ) from None
            start += len(piece)


def _bytes_per_token(spool: Spool, tokenizer: Tokenizer) -> float:
    """Measured on the first piece of the text."""
    text = next(spool.texts(0, spool.boundary(min(PIECE, spool.size))), "")
    return len(text.encode()) / max(1, len(tokenizer.encode([text])[0]))


def _as_bytes(spool: Spool, packed: bool) -> Corpus:
    cut = spool.held_out(spool.size, packed)
    tokens = mapped(spool.path, torch.uint8)
    digest = hashlib.sha256()
    for start in range(0, spool.size, PIECE):
        digest.update(spool.read(start, start + PIECE))
    if not packed:
        return Corpus(spool.name, digest.hexdigest(), Text(tokens[:cut]), Text(tokens[cut:]))
    train, test = (
        Text(tokens[a:b], torch.tensor([start - a for start, _, _ in spool.spans(a, b)], dtype=torch.long))
        for a, b in ((0, cut), (cut, spool.size))
    )
    for text in (train, test):
        digest.update(b"starts" + text.edges.numpy().tobytes())
    return Corpus(spool.name, digest.hexdigest(), train, test, packed=True)


def _as_tokens(spool: Spool, tokenizer: Tokenizer, packed: bool) -> Corpus:
    cut = spool.held_out(spool.size, packed)
    digest = hashlib.sha256(f"{tokenizer.fingerprint} {packed}".encode())
    train, test = (
        _encode(spool, spool.spans(a, b), tokenizer, packed, path, digest.update)
        for a, b, path in ((0, cut, spool.path.with_name("train")), (cut, spool.size, spool.path.with_name("test")))
    )
    return Corpus(spool.name, digest.hexdigest(), train, test, tokenizer.name, tokenizer.vocab_size, packed)


def _encode(
    spool: Spool,
    spans: Iterable[Span],
    tokenizer: Tokenizer,
    packed: bool,
    path: Path,
    update: Callable[[bytes], object],
) -> Text:
    """Documents as ids in a file, those that are whole with the token that ends them."""
    starts, size, num_bytes = array("q"), 0, 0
    with path.open("wb") as file:
        for batch in _batches(spool, spans):
            encoded = tokenizer.encode([text for text, _, _ in batch])
            ids: list[int] = []
            for (text, first, last), found in zip(batch, encoded, strict=True):
                if first:
                    starts.append(size + len(ids))
                ids += found
                if tokenizer.eos is not None and last:
                    ids.append(tokenizer.eos)
                num_bytes += len(text.encode())
            tokens = torch.tensor(ids, dtype=torch.long)
            if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < tokenizer.vocab_size:
                raise InputError(
                    f"--tokenizer {tokenizer.name}: gives id {int(tokens.max())}, but its vocabulary ends at "
                    f"{tokenizer.vocab_size - 1}"
                )
            raw = tokens.to(dtype_for(tokenizer.vocab_size)).numpy().tobytes()
            update(raw)
            file.write(raw)
            size += len(ids)
    kept = torch.tensor(starts, dtype=torch.long).unique()  # documents without a token leave no trace
    kept = kept[kept < size] if packed else None
    if kept is not None:
        update(b"starts" + kept.numpy().tobytes())
    update(size.to_bytes(8, "little"))
    return Text(mapped(path, dtype_for(tokenizer.vocab_size)), kept, num_bytes)


def _batches(spool: Spool, spans: Iterable[Span]) -> Iterator[list[tuple[str, bool, bool]]]:
    """Pieces of text, about TOGETHER characters: each with whether a document starts there, and ends."""
    batch: list[tuple[str, bool, bool]] = []
    held = 0
    for start, end, whole in spans:
        place = start
        for text in spool.texts(start, end):
            first, place = place == start, place + len(text.encode())
            batch.append((text, first, whole and place == end))
            held += len(text)
            if held >= TOGETHER:
                yield batch
                batch, held = [], 0
    if batch:
        yield batch
