# SPDX-License-Identifier: Apache-2.0
"""Text to token ids: byte pair encoding learned on the spot, and the tokenizers of Hugging Face models."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from posenc.errors import InputError, first_line

BYTES = 256
LARGEST = 1_000_000
"""More ids than any tokenizer in use has."""


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A way to turn texts into ids below vocab_size.

    eos: the id that ends a document, if there is one. fingerprint: equal for tokenizers that do the same.
    encode: texts -> ids of each, without special tokens. decode: ids -> text.
    """

    name: str
    vocab_size: int
    eos: int | None
    fingerprint: str
    encode: Callable[[list[str]], list[list[int]]]
    decode: Callable[[list[int]], str]


def bpe_size(name: str) -> int | None:
    """The vocabulary that "bpe:N" asks for; None for a tokenizer that is not learned on the spot.

    Raises:
        InputError: an empty name, or N that is no whole number above 256.
    """
    if not name.strip():
        raise InputError("--tokenizer '': give bytes, bpe:4096, or the name or folder of a Hugging Face tokenizer")
    if name != "bpe" and not name.startswith("bpe:"):
        return None
    size = name[4:]
    if not (size.isascii() and size.isdigit() and BYTES < int(size) <= LARGEST):
        raise InputError(f"--tokenizer {name}: write bpe:N, with N from {BYTES + 1} to {LARGEST}, as in bpe:4096")
    return int(size)


def learn_bpe(name: str, size: int, texts: Iterable[str]) -> Tokenizer:
    """Byte-level BPE (Sennrich et al. 2016, on bytes as GPT-2) learned from texts by the `tokenizers` library. A text
    that has too few pairs to merge gives fewer ids than `size`."""
    try:
        from tokenizers import Tokenizer as Fast
        from tokenizers import decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise InputError(f"--tokenizer {name}: needs the tokenizers package: pip install 'posenc[lab]'") from None
    fast = Fast(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    fast.train_from_iterator(texts, trainer)

    def encode(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in fast.encode_batch_fast(texts)]

    return Tokenizer(name, fast.get_vocab_size(), None, _hash(fast.to_str()), encode, fast.decode)


def pretrained(name: str) -> Tokenizer:
    """The tokenizer of a Hugging Face model, by its name or folder. No code that comes with it is run.

    Raises:
        InputError: it cannot be loaded, or has no ids.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise InputError(f"--tokenizer {name}: needs transformers: pip install 'posenc[lab]'") from None
    try:
        found: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        vocabulary = found.get_vocab()
    except Exception as error:  # each kind of tokenizer has its own
        reason = first_line(error)
        raise InputError(
            f"--tokenizer {name}: {reason.rstrip('.')}; give bytes, bpe:4096, or the name or folder of a Hugging Face "
            "tokenizer"
        ) from None
    if not vocabulary:
        raise InputError(f"--tokenizer {name}: its vocabulary is empty")

    def encode(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = found(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def decode(ids: list[int]) -> str:
        return str(found.decode(ids, clean_up_tokenization_spaces=False))

    backend = getattr(found, "backend_tokenizer", None)
    facts = json.dumps(sorted(vocabulary.items())) if backend is None else backend.to_str()
    # ids may have gaps, and added ones lie past what tokenizers call their vocabulary's size
    size = max(vocabulary.values()) + 1
    eos = found.eos_token_id
    if eos is not None and not 0 <= eos < size:
        raise InputError(f"--tokenizer {name}: its end of text is id {eos}, but its vocabulary ends at {size - 1}")
    return Tokenizer(name, size, eos, _hash(f"{type(found).__name__} {eos} {facts}"), encode, decode)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
