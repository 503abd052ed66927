# SPDX-License-Identifier: Apache-2.0
"""From documents to a corpus: cut in two, and tokenized piece by piece; tokenizers are bytes, byte pairs learned from the text, or
those of Hugging Face models."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from posenc.errors import InputError, needs
from posenc.lab.data.corpus_text import HELD_OUT, Corpus, Text
from posenc.lab.messages import first_line

BYTES, LARGEST = 256, 1_000_000
"""The ids of bytes, and more ids than any tokenizer in use has."""
SEPARATOR = b"\n\n"
"""Between the documents of a running text, where the tokenizer has no token for the end of one."""
PIECE, BATCH = 1 << 16, 1 << 19
"""Characters of one piece, and bytes of those that are encoded together: encoders need hundreds of bytes for each. A longer document
is cut at the end of a line, or else of a word."""
HEAD = 16 << 20
"""Bytes from which byte pairs are learned, at most."""
MOST_HELD_OUT = 0.2
"""The share that is held out at most, for the cut to come where a document starts."""


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
    needs("tokenizers", "lab")
    from tokenizers import Tokenizer as Fast
    from tokenizers import decoders, models, pre_tokenizers, trainers

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
    needs("transformers", "lab")
    from transformers import AutoTokenizer

    try:
        hf: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        vocabulary = hf.get_vocab()
    except Exception as error:  # each kind of tokenizer raises others
        remedy = "give bytes, bpe:4096, or the name or folder of a Hugging Face tokenizer"
        raise InputError(first_line(error).rstrip("."), remedy, tokenizer=name) from error
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
    documents: Iterable[bytes],
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
    bpe = bpe_size(tokenizer)
    known = None if tokenizer == "bytes" or bpe else pretrained(tokenizer)
    running = not packed and (known is None or known.eos is None) and first_held_out is None
    stream, read = filter(None, documents), list[bytes]()

    def up_to(limit: int) -> list[bytes]:
        """The documents so far, without what exceeds so many bytes; a running text is one."""
        size = sum(map(len, read))
        while size < limit and (document := next(stream, None)):
            read.append(document)
            size += len(document)
        whole = [SEPARATOR.join(read)] if running else read
        return _cut(whole, _boundary(whole, limit))[0]

    made, limit = known, data_tokens
    if tokenizer != "bytes":
        # data_tokens byte-level tokens spell as many bytes or more: what is learned from is never held out
        head = up_to(max(HEAD, data_tokens if first_held_out is not None else 0))
        learned = _cut(head, _boundary(head, min(data_tokens, HEAD)))[0] if first_held_out is None else head
        training = _split(learned, packed, first_held_out)[0]
        made = known or learn_bpe(tokenizer, bpe or 0, (p for d in _texts(training, name) for p in d))
        limit = round(data_tokens * _bytes_per_token(head, made, name))
    whole = up_to(limit)
    if sum(map(len, whole)) < 2:
        raise InputError("the text is empty", data=name)
    shortened = next(stream, None) is not None or sum(map(len, whole)) < sum(map(len, read))
    if shortened and first_held_out is not None:
        why = f"is read to its end, more than {limit} bytes"
        raise InputError(why, "give more data_tokens, or leave them out", data=name)
    train, test = _split(whole, packed, first_held_out)
    divided = sum(map(len, train)) not in accumulate(map(len, whole))  # within a document
    by_file = packed or first_held_out is not None
    if made is None:
        joined = bytearray().join(whole)
        digest, tokens, cut = hashlib.sha256(joined), torch.frombuffer(joined, dtype=torch.uint8), sum(map(len, train))
        bytes_of = []
        for ids, of, by_document in ((tokens[:cut], train, packed), (tokens[cut:], test, by_file)):
            starts = torch.tensor([0, *accumulate(map(len, of))][:-1], dtype=torch.long) if by_document else None
            bytes_of.append(Text(ids, starts))
            if by_document:
                digest.update(b"starts" + bytes_of[-1].edges.numpy().tobytes())
        return Corpus(name, digest.hexdigest(), bytes_of[0], bytes_of[1], packed=packed)
    digest = hashlib.sha256(f"{made.fingerprint} {packed}".encode())
    parts = (
        _encode(train, _texts(train, name), made, packed, divided, digest.update),
        _encode(test, _texts(test, name), made, by_file, False, digest.update),
    )
    return Corpus(name, digest.hexdigest(), *parts, made.name, made.vocab_size, packed)


def _boundary(documents: Sequence[bytes], offset: int) -> int:
    """The start of the character that a byte of documents, end to end, belongs to."""
    start = 0
    for document in documents:
        if start <= offset < start + len(document):
            before = document[max(0, offset - start - 3) : offset - start + 1]
            return offset - next((i for i, byte in enumerate(reversed(before)) if byte & 0xC0 != 0x80), 0)
        start += len(document)
    return min(offset, start)


def _cut(documents: Sequence[bytes], offset: int) -> tuple[list[bytes], list[bytes]]:
    """What is before a byte of documents, end to end, and what is not."""
    before: list[bytes] = []
    after: list[bytes] = []
    for end, document in zip(accumulate(map(len, documents)), documents, strict=True):
        at = min(max(offset - end + len(document), 0), len(document))
        before += [document[:at]] if at else []
        after += [document[at:]] if at < len(document) else []
    return before, after


def _split(documents: list[bytes], packed: bool, first_held_out: int | None) -> tuple[list[bytes], list[bytes]]:
    """The documents to train on and those of the last tenth. Packed, it starts with the document that the cut would divide,
    unless that is too long."""
    if first_held_out is not None:
        return documents[:first_held_out], documents[first_held_out:]
    size = sum(map(len, documents))
    cut = _boundary(documents, int(size * (1 - HELD_OUT)))
    start = max((s for s in accumulate(map(len, documents), initial=0) if s <= cut), default=0) if packed else 0
    return _cut(documents, start if start > size * (1 - MOST_HELD_OUT) else cut)


def _texts(documents: Iterable[bytes], name: str) -> Iterator[list[str]]:
    """Each document in pieces that are not too long to encode.

    Raises:
        InputError: not UTF-8.
    """
    for number, document in enumerate(documents, 1):
        try:
            text = document.decode()
        except UnicodeDecodeError as error:
            why = f"byte {error.start} of document {number} is not UTF-8, which only tokenizer='bytes' reads"
            raise InputError(why, data=name) from None
        yield re.findall(rf"(?s).{{1,{PIECE}}}(?:(?<=\n)|\Z)|.{{1,{PIECE}}}(?= )|.{{1,{PIECE}}}", text)


def _bytes_per_token(documents: Sequence[bytes], tokenizer: Tokenizer, name: str) -> float:
    """Measured on the first piece of the text."""
    first = b"".join(_cut(documents, _boundary(documents, PIECE))[0])
    (pieces,) = _texts([first], name) if first else ([""],)
    return len(first) / max(1, sum(map(len, tokenizer.encode(pieces))))


def _encode(
    documents: Sequence[bytes],
    texts: Iterable[list[str]],
    tokenizer: Tokenizer,
    known: bool,
    unfinished: bool,
    update: Callable[[bytes], object],
) -> Text:
    """Documents as ids; the end of each has the token for it, but not that of the last one if it is unfinished."""
    size = tokenizer.vocab_size
    dtype = torch.uint8 if size <= 1 << 8 else torch.uint16 if size <= 1 << 16 else torch.int32
    starts, count, parts, batch, waiting = [], 0, [torch.empty(0, dtype=dtype)], list[list[str]](), 0
    for number, pieces in enumerate(texts, 1):
        batch.append(pieces)
        waiting += len(documents[number - 1])
        if waiting < BATCH and number < len(documents):
            continue
        encoded, ids = iter(tokenizer.encode([piece for of in batch for piece in of])), list[int]()
        for index, of in enumerate(batch, number - len(batch) + 1):
            starts.append(count + len(ids))
            for _ in of:
                ids += next(encoded)
            if tokenizer.eos is not None and not (unfinished and index == len(documents)):
                ids.append(tokenizer.eos)
        if ids and not 0 <= min(ids) <= max(ids) < size:
            raise InputError(f"gives id {max(ids)}, but its vocabulary ends at {size - 1}", tokenizer=tokenizer.name)
        parts.append(torch.tensor(ids, dtype=torch.long).to(dtype))
        update(parts[-1].numpy().tobytes())
        count, batch, waiting = count + len(ids), [], 0
    edges = torch.tensor(starts, dtype=torch.long).unique()  # documents without a token are left out
    text = Text(torch.cat(parts), edges[edges < count] if known else None, sum(map(len, documents)))
    if text.starts is not None:
        update(b"starts" + text.starts.numpy().tobytes())
    update(count.to_bytes(8, "little"))
    return text
