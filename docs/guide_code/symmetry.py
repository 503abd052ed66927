# SPDX-License-Identifier: Apache-2.0
"""Whether a model sees the order of its tokens: permutations, and a word that occurs twice in a text."""

import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from guide_code.model import BYTES, HOST, WORD, VectorModel, random_model, split_words, tokenized, vector_model
from guide_code.shared import bar_names, legend_above
from posenc.analysis.finding import PALETTE, SOFT, Axes, Finding, plot
from posenc.encodings import NoPE
from posenc.errors import InputError, check_integers, check_sizes
from posenc.lab.transformer import Transformer

ROUNDING = 1e-9
"""Differences below this, of representations of size one in float64, are rounding: hundreds of sums of terms of 1e-16."""
SHIFT = 3
"""Positions by which a text is moved."""


@dataclass(frozen=True, eq=False)
class Equivariance(Finding):
    """What a model keeps when its tokens are permuted. Every number is the largest change of any channel over what is
    tried, in units of the root mean square of the representations: 0 up to rounding (`ROUNDING`) where a symmetry holds.
    """

    name: str
    """Of the model"""
    length: int
    """Tokens of a sequence"""
    permutations: int
    """How many random orders of each sequence were tried"""
    order: float
    """f(Px) against P f(x), P a random order of the tokens: 0 is permutation equivariance"""
    last: float
    """The last token's representation, when those before it are permuted"""
    mirror: float
    """f of the reversed sequence against f reversed"""
    causal: bool
    """Tokens see those before them, and none after"""
    shift: float | None = None
    """f with every position moved on against f; None: the model takes no positions, or not those"""

    @property
    def blind(self) -> bool:
        """Whether the order of the tokens changes nothing."""
        return self.order < ROUNDING

    def sentences(self) -> list[str]:
        tried = f"{self.permutations} random orders of {self.length} tokens"
        if self.blind:
            sentences = [
                f"{self.name} does not see order: over {tried}, f(Px) and P f(x) differ by at most {self.order:.1e}."
            ]
        else:
            sentences = [
                f"{self.name} sees order: over {tried}, f(Px) and P f(x) differ by up to {self.order:.2g} times the root "
                "mean square of f."
            ]
            if self.causal:
                sentences.append("No token sees those after it, which reveals order without any position.")
            if self.last < ROUNDING:
                sentences.append("The last token's representation does not depend on the order of those before it.")
            if self.mirror < ROUNDING:
                sentences.append(f"A text and its mirror image are the same to it, within {self.mirror:.1e}.")
        if self.shift is not None:
            change = "nothing" if self.shift < ROUNDING else f"f by up to {self.shift:.2g} times its root mean square"
            sentences.append(f"Moving every position by {SHIFT} changes {change}.")
        return sentences


@torch.no_grad()
def equivariance(
    module: Any,
    *,
    length: int = 12,
    dim: int | None = None,
    permutations: int = 16,
    seed: int = 0,
    name: str | None = None,
) -> Equivariance:
    """Compare a model under random orders of its tokens, in float64.

    Args:
        module: what `vector_model` takes (posenc's and transformers' models, a function of (batch, n, dim) vectors), or the text of an encoding ("rope", "t5/none"), for a small random encoder with
            it, its learned parameters random, since zeros would hide them.
        length: tokens. dim: width of a function's vectors, where the module does not say. permutations: orders tried.
        seed: of the vectors and orders. name: for people.

    Raises:
        InputError: a width that is neither known nor given, fewer than 3 tokens, or results that are not finite, not in
            float64, that change between calls or that are not a vector per token.
    """
    check_integers(3, length=length)
    check_sizes(permutations=permutations)
    if isinstance(module, str):
        name, module = name or module, random_model(module, seed=seed)
    f = vector_model(module, name=name)
    width = f.dim if dim is None else dim
    if width is None:
        raise InputError(f"{f.name} takes vectors of any width", "pass dim=", argument="dim")
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(1, length, width, dtype=torch.float64, generator=draw)
    at = torch.arange(length)
    base = f.checked(x, at)
    size = float(base.square().mean().sqrt()) or 1.0

    def far(a: Tensor, b: Tensor) -> float:
        return float((a - b).abs().max()) / size

    order = last = 0.0
    for _ in range(permutations):
        p = torch.randperm(length, generator=draw)
        order = max(order, far(f(x[:, p], at), base[:, p]))
        p = torch.cat((torch.randperm(length - 1, generator=draw), at[-1:]))
        last = max(last, far(f(x[:, p], at)[:, -1], base[:, -1]))
    mirror = far(f(x.flip(1), at), base.flip(1))
    shift = None
    if f.reads_positions:
        with suppress(InputError):  # no such positions: past the end of its table, or defined from 0 on only
            shift = far(f(x, at + SHIFT), base)
    return Equivariance(
        f.name,
        length,
        permutations,
        max(order, mirror),  # the reverse is an order too
        last,
        mirror,
        is_causal(f, x, at),
        shift,
    )


def is_causal(f: VectorModel, x: Tensor, at: Tensor) -> bool:
    """Whether tokens see those before them, and none after: another last token changes nothing but itself, another first
    one does."""
    base, other = f(x, at), x.clone()
    other[:, -1] *= -1
    back = (f(other, at) - base)[:, :-1].abs().max()
    other = x.clone()
    other[:, 0] *= -1
    on = (f(other, at) - base)[:, 1:].abs().max()
    return float(back) <= ROUNDING * float(base.square().mean().sqrt()) < float(on)


@dataclass(frozen=True, eq=False)
class Twins(Finding):
    """The two representations of a word that occurs twice in a sentence."""

    name: str
    """Of the model"""
    text: str
    """The sentence"""
    word: str
    tokens: list[str]
    """Of the sentence"""
    first: int
    """Token that is compared, the last of the word where it has several"""
    second: int
    """Likewise, of its second occurrence"""
    cosine: float
    """Of its two representations, with positions"""
    distance: float
    """Likewise, over their mean norm"""
    cosine_without: float
    """Without positions"""
    distance_without: float
    """Without positions"""
    causal: bool
    """A token sees those before it only, which distinguishes the two by itself"""

    def sentences(self) -> list[str]:
        text = f"{self.name}: the two {self.word!r} of {self.text!r}"
        if self.distance_without < ROUNDING:
            without = f"{text} have the same representation without positions, within {self.distance_without:.1e}."
        else:
            cause = "by the causal mask" if self.causal else "by something other than codes at the input"
            without = (
                f"{text} differ without positions, {cause}: cosine {self.cosine_without:.3f}, relative distance "
                f"{self.distance_without:.2g}."
            )
        if self.distance < ROUNDING:
            return [without, "With positions they are the same, too: nothing in this text distinguishes them."]
        return [without, f"With positions: cosine {self.cosine:.3f}, relative distance {self.distance:.2g}."]


@torch.no_grad()
def twins(
    text: str = "Can you open a can?",
    encoding: str = "sinusoidal",
    *,
    word: str | None = None,
    model: Any = None,
    tokenizer: Any = None,
    causal: bool = False,
    seed: int = 0,
) -> Twins:
    """Compare the two representations of a word that occurs twice in a text, with positions and without, in float64.

    Args:
        text: read in lower case, so that a word is the same at the start of a sentence.
        encoding: the text of one, for a small random model of two layers; words are its tokens.
        word: which one; None: the first that occurs twice.
        model: instead of the small one: a transformers model, or a `posenc.Transformer`, which reads bytes unless there
            is a tokenizer. Without positions: its learned table zeroed, its encoding taken out, or all its tokens at
            position 0.
        tokenizer: a transformers tokenizer, or a function from a text to its tokens and their ids; needed for a
            transformers model.
        causal: of the small model: a decoder. seed: of its weights.

    Raises:
        InputError: a text in which the word (or any word) does not occur twice, a model without a tokenizer, or one whose
            positions cannot be removed, such as ALiBi's, which no position ids change.
    """
    read = text.lower()
    if model is None:
        tokens, ids = split_words(read)
        config = replace(HOST, vocab_size=max(ids) + 1, causal=causal)
        model = random_model(encoding, config=config, max_positions=max(64, len(ids)), seed=seed)
        pair = _pair(tokens, ids, word, read)
    elif tokenizer is None and isinstance(model, Transformer) and model.config.vocab_size == BYTES:
        words, numbers = split_words(read)
        pair = _pair(words, numbers, word, read)
        word = words[pair[0]]
        ends = [match.end() for match in WORD.finditer(read)]
        pair = [len(read[: ends[at]].encode()) - 1 for at in pair]  # the last byte of each
        tokens, ids = [chr(byte) for byte in read.encode()], list(read.encode())
    else:
        tokens, ids = tokenized(tokenizer, read)
        pair = _pair(tokens, ids, word, read)
    f = vector_model(model)
    x, at = f.content(torch.tensor(ids))[None], torch.arange(len(ids))
    cosine, distance = _apart(f.checked(x, at)[0, pair])
    if isinstance(model, Transformer):
        model = copy.deepcopy(model)
        model.encoding = NoPE()
        bare = vector_model(model)(x, at)
    else:
        bare = f.run(x, torch.zeros_like(at))
        if f.codes is None and torch.equal(bare, f(x, at)):
            raise InputError(
                f"no position ids change what {f.name} does, so its positions cannot be removed", argument="model"
            )
    cosine_without, distance_without = _apart(bare[0, pair])
    return Twins(
        name=f.name,
        text=text,
        word=word or tokens[pair[0]],
        tokens=tokens,
        first=pair[0],
        second=pair[1],
        cosine=cosine,
        distance=distance,
        cosine_without=cosine_without,
        distance_without=distance_without,
        causal=is_causal(f, x, at),
    )


def _pair(tokens: list[str], ids: list[int], word: str | None, text: str) -> list[int]:
    """The first two occurrences of the word."""
    wanted = [i for i, token in zip(ids, tokens, strict=True) if word is None or token.strip("Ġ▁ ") == word.lower()]
    twice = [i for i in wanted if ids.count(i) > 1]
    if not twice:
        what = "no token" if word is None else f"no token {word!r}"
        raise InputError(f"{what} occurs twice, its tokens are {tokens}", "give another text", text=text)
    first = ids.index(twice[0])
    return [first, ids.index(twice[0], first + 1)]


def _apart(pair: Tensor) -> tuple[float, float]:
    """Cosine and relative distance of two vectors, (2, dim)."""
    one, other = pair
    return float(cosine_similarity(one, other, dim=0)), float((one - other).norm() / pair.norm(dim=-1).mean())


FLOOR = 1e-17
"""Where a difference of exactly zero is drawn, on an axis of logarithms."""


@plot("Left end: the two tokens without positions, one vector but for rounding. Right end: with positions.", (6.4, 2.2))
def plot_twins_apart(ax: Axes, twins: Twins) -> None:
    """How far apart the two representations of one word are, without and with positions."""
    ends = [max(twins.distance_without, FLOOR), max(twins.distance, FLOOR)]
    ax.plot(ends, [0, 0], color=SOFT, linewidth=1)
    for end, colour, label in zip(ends, PALETTE, ("without positions", "with positions"), strict=False):
        ax.plot(end, 0, "o", color=colour, label=label)
    bar_names(ax, [f"{twins.name}\n{twins.word!r}"])
    ax.set(xscale="log", xlabel="distance of the two representations, over their norm")
    legend_above(ax, ncols=2)
