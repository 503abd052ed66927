# SPDX-License-Identifier: Apache-2.0
"""One word at two places: "Can you open a can?" What attention makes of the two, with and without positions."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from posenc.analysis.body import body_of
from posenc.analysis.finding import Finding
from posenc.analysis.symmetry import HOST, ROUNDING, called, encoder, is_causal
from posenc.checks import checked
from posenc.encodings import NoPE
from posenc.errors import InputError
from posenc.transformer import Transformer

BYTES = 256
WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, eq=False)
class Twins(Finding):
    """The representations of a word that a text holds twice.

    Attributes:
        name: of the model. text, word: what was read. tokens: of the text. first, second: which of them are compared, a
            word's last token where it has several.
        cosine, distance: between its two representations, with positions; the distance over their mean norm.
        cosine_without, distance_without: the same once positions are taken away.
        causal: whether a token sees those before it only, which tells twins apart by itself.
    """

    name: str
    text: str
    word: str
    tokens: list[str]
    first: int
    second: int
    cosine: float
    distance: float
    cosine_without: float
    distance_without: float
    causal: bool

    def sentences(self) -> list[str]:
        text = f"{self.name}: the two {self.word!r} of {self.text!r}"
        why = (
            "the causal mask shows each another past"
            if self.causal
            else "something that is not its codes, and was not taken away, tells places apart"
        )
        without = (
            f"{text} have one representation without positions: cosine {self.cosine_without:.6f}, relative distance "
            f"{self.distance_without:.1e}, which is rounding."
            if self.distance_without < ROUNDING
            else f"{text} differ without positions, cosine {self.cosine_without:.3f}, relative distance "
            f"{self.distance_without:.2g}: {why}."
        )
        with_them = (
            "They are the same with positions too: in this text nothing tells the two places apart."
            if self.distance < ROUNDING
            else f"With positions: cosine {self.cosine:.3f}, relative distance {self.distance:.2g}."
        )
        return [without, with_them]


@checked
@torch.no_grad()
def twins(
    text: str = "Can you open a can?",
    encoding: str = "sinusoidal",
    *,
    word: str | None = None,
    model: Any = None,
    tokenizer: Any = None,
    causal: bool = False,
    layers: int | None = None,
    seed: int = 0,
) -> Twins:
    """Read a text in which a word stands twice, with positions and without, and hold the word's two representations
    against each other, in float64.

    Args:
        text: read in lower case, so that a word is one word wherever it stands.
        encoding: the text of one, for a small random model of two layers; words are its tokens.
        word: which one; None: the first that stands twice.
        model: instead of the small one: a transformers model, or a `posenc.Transformer`, which reads bytes unless there
            is a tokenizer. Without positions: its learned table zeroed, its encoding taken out, or all its tokens at
            position 0.
        tokenizer: a transformers tokenizer, or a function from a text to its tokens and their ids; needed for a
            transformers model.
        causal: of the small model: a decoder. layers: only the first ones; None: all. seed: of its weights.

    Raises:
        InputError: a text in which the word (or any word) does not stand twice, a model without a tokenizer, or one whose
            positions cannot be taken away, such as ALiBi's, which no position ids change.
    """
    read = text.lower()
    if model is None:
        tokens, ids = words_of(read)
        config = replace(HOST, vocab_size=max(ids) + 1, causal=causal)
        model = encoder(encoding, config=config, max_positions=max(64, len(ids)), seed=seed)
        pair = _pair(tokens, ids, word, read)
    elif tokenizer is None and isinstance(model, Transformer) and model.config.vocab_size == BYTES:
        tokens, ids = [chr(byte) for byte in read.encode()], list(read.encode())
        words = words_of(read)
        spans = [match.end() for match in WORD.finditer(read)]
        places = _pair(*words, word, read)
        word = words[0][places[0]]
        pair = [len(read[: spans[place]].encode()) - 1 for place in places]
    else:
        tokens, ids = tokenized(tokenizer, read)
        pair = _pair(tokens, ids, word, read)
    body = body_of(model, layers=layers)
    x, at = body.content(torch.tensor(ids))[None], torch.arange(len(ids))
    cosine, distance = _apart(called(body, x, at)[0, pair])
    bare = _without(model, layers)(x, at)
    if body.codes is None and not isinstance(model, Transformer) and torch.equal(bare, body(x, at)):
        raise InputError(f"model: no position ids change what {body.name} does, so its positions cannot be taken away")
    cosine_without, distance_without = _apart(bare[0, pair])
    return Twins(
        name=body.name,
        text=text,
        word=word or tokens[pair[0]],
        tokens=tokens,
        first=pair[0],
        second=pair[1],
        cosine=cosine,
        distance=distance,
        cosine_without=cosine_without,
        distance_without=distance_without,
        causal=is_causal(body, x, at),
    )


def _without(model: Any, layers: int | None) -> Callable[[Tensor, Tensor], Tensor]:
    """The model with its positions taken away."""
    if isinstance(model, Transformer):
        model = copy.deepcopy(model)
        model.encoding = NoPE()
        return body_of(model, layers=layers)
    body = body_of(model, layers=layers)
    return lambda x, at: body.run(x, torch.zeros_like(at))


def words_of(text: str) -> tuple[list[str], list[int]]:
    """Words and signs as tokens, numbered as they come.

    Raises:
        InputError: there are none.
    """
    tokens = WORD.findall(text)
    if not tokens:
        raise InputError(f"text={text!r}: has no words")
    numbers = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    return tokens, [numbers[token] for token in tokens]


def tokenized(tokenizer: Any, text: str) -> tuple[list[str], list[int]]:
    """Tokens and ids of a text, by a transformers tokenizer or a function that gives both.

    Raises:
        InputError: it is neither.
    """
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        # a text may be longer than the model reads at once: it is cut later
        ids = [int(i) for i in tokenizer(text, verbose=False)["input_ids"]]
        return list(tokenizer.convert_ids_to_tokens(ids)), ids
    if callable(tokenizer):
        tokens, ids = tokenizer(text)
        return list(tokens), [int(i) for i in ids]
    raise InputError(f"tokenizer={tokenizer!r}: pass the one that the model was trained with")


def _pair(tokens: list[str], ids: list[int], word: str | None, text: str) -> list[int]:
    """The first two places of the word."""
    wanted = [i for i, token in zip(ids, tokens, strict=True) if word is None or token.strip("Ġ▁ ") == word.lower()]
    twice = [i for i in wanted if ids.count(i) > 1]
    if not twice:
        what = "no token" if word is None else f"no token {word!r}"
        raise InputError(f"text={text!r}: {what} stands in it twice, its tokens are {tokens}; give another text")
    first = ids.index(twice[0])
    return [first, ids.index(twice[0], first + 1)]


def _apart(pair: Tensor) -> tuple[float, float]:
    """Cosine and relative distance of two vectors, (2, dim)."""
    one, other = pair
    return float(cosine_similarity(one, other, dim=0)), float((one - other).norm() / pair.norm(dim=-1).mean())
