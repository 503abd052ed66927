# SPDX-License-Identifier: Apache-2.0
"""Attention does not see the order of its tokens, and what does: permutations, and one word that a text has twice."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, cosine_similarity

from posenc.analysis.codes import at_least, seeded
from posenc.analysis.model import BYTES, HOST, WORD, VectorModel, random_model, split_words, tokenized, vector_model
from posenc.analysis.plotting import INK, PALETTE, SOFT, bar_names, legend_above, plot
from posenc.analysis.question import AnalysisQuestion, Finding
from posenc.encodings import ENCODINGS, NoPE
from posenc.errors import InputError
from posenc.transformer import Transformer

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ROUNDING = 1e-9
"""Differences below this, of representations of size one in float64, are rounding: hundreds of sums of terms of 1e-16."""
SHIFT = 3
EVERY = tuple({"step_temperature": "step_temperature:train_length=4"}.get(name, name) for name in ENCODINGS)
"""Every encoding; one that acts past its training length only is given a short one."""


@dataclass(frozen=True, eq=False)
class Equivariance(Finding):
    """What a model keeps when its tokens are permuted. Every number is the largest change of any channel over what is
    tried, in units of the root mean square of the representations: 0 up to rounding (`ROUNDING`) where a symmetry holds.

    Attributes:
        name: of the model. length, permutations: of the texts, and how many random orders of each were tried.
        order: f(Px) against P f(x), P a random order of the tokens: 0 is permutation equivariance.
        pooled: the mean over tokens of f(Px) against that of f(x): 0 is permutation invariance.
        last: the last token's representation, when those before it are permuted.
        mirror: f of the reversed text against f reversed.
        causal: whether tokens see those before them, and none after.
        shift: f with every position moved on against f; None: the model takes no positions, or not those.
        sees_order: what the encoding of an encoder claims (`Encoding.sees_order`); None: there is none.
    """

    name: str
    length: int
    permutations: int
    order: float
    pooled: float
    last: float
    mirror: float
    causal: bool
    shift: float | None = None
    sees_order: bool | None = None

    @property
    def blind(self) -> bool:
        """Whether it cannot tell one order of the tokens from another."""
        return self.order < ROUNDING

    def sentences(self) -> list[str]:
        tried = f"{self.permutations} random orders of {self.length} tokens"
        if self.blind:
            sentences = [
                f"{self.name} does not see order: over {tried}, f(Px) and P f(x) differ by at most {self.order:.1e}, and "
                f"the mean over tokens by {self.pooled:.1e}. A text is to it a bag of words."
            ]
        else:
            sentences = [
                f"{self.name} sees order: over {tried}, f(Px) and P f(x) differ by up to {self.order:.2g} times the root "
                "mean square of f."
            ]
            if self.causal:
                sentences.append("No token sees those after it, which reveals order by itself, without any position.")
            if self.last < ROUNDING:
                sentences.append("The last token's representation is the same whatever the order of those before it.")
            if self.mirror < ROUNDING:
                sentences.append(f"It cannot tell a text from its mirror image: they differ by {self.mirror:.1e}.")
        if self.shift is not None:
            moved = (
                "changes nothing"
                if self.shift < ROUNDING
                else f"changes f by up to {self.shift:.2g} times its root mean square"
            )
            sentences.append(f"Moving every position by {SHIFT} {moved}.")
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
        module: what `vector_model` takes (posenc's and transformers' models, torch's attention modules, a function of
            (batch, n, dim) vectors), or the text of an encoding ("rope", "t5/none"), for a small random encoder with
            it, its learned parameters random, since zeros would hide them.
        length: tokens. dim: width of a function's vectors, where the module does not say. permutations: orders tried.
        seed: of the vectors and orders. name: for people.

    Raises:
        InputError: a width that is neither known nor given, fewer than 3 tokens, or results that are not finite, not in
            float64, that change between calls or that are not a vector per token.
    """
    at_least("length", length, 3)
    at_least("permutations", permutations)
    claimed = None
    if isinstance(module, str):
        name, module = name or module, random_model(module, seed=seed)
    if isinstance(module, Transformer) and not module.config.causal:
        claimed = module.encoding.sees_order
    f = vector_model(module, name=name)
    width = f.dim if dim is None else dim
    if width is None:
        raise InputError(f"dim: {f.name} takes vectors of any width; pass dim=")
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(1, length, width, dtype=torch.float64, generator=draw)
    at = torch.arange(length)
    base = f.checked(x, at)
    size = float(base.square().mean().sqrt()) or 1.0

    def far(a: Tensor, b: Tensor) -> float:
        return float((a - b).abs().max()) / size

    order = pooled = last = 0.0
    for _ in range(permutations):
        p = torch.randperm(length, generator=draw)
        moved = f(x[:, p], at)
        order, pooled = max(order, far(moved, base[:, p])), max(pooled, far(moved.mean(1), base.mean(1)))
        p = torch.cat((torch.randperm(length - 1, generator=draw), at[-1:]))
        last = max(last, far(f(x[:, p], at)[:, -1], base[:, -1]))
    mirror = far(f(x.flip(1), at), base.flip(1))
    return Equivariance(
        f.name,
        length,
        permutations,
        max(order, mirror),  # the reverse is an order too
        pooled,
        last,
        mirror,
        is_causal(f, x, at),
        shift=None if (shifted := _shifted(f, x, at)) is None else far(shifted, base),
        sees_order=claimed,
    )


def _shifted(f: VectorModel, x: Tensor, at: Tensor) -> Tensor | None:
    if not f.reads_positions:
        return None
    try:
        return f(x, at + SHIFT)
    except InputError:  # it has no such positions: past the end of its table, or defined from 0 on only
        return None


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
class Breakers(Finding):
    """What breaks the symmetry of attention, one thing at a time. rows: the first is attention with nothing added."""

    rows: Sequence[Equivariance]

    def __getitem__(self, name: str) -> Equivariance:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def sentences(self) -> list[str]:
        alone, others = self.rows[0], self.rows[1:]
        blind = [row.name for row in others if row.blind]
        least = min((row for row in others if not row.blind), key=lambda row: row.order, default=None)
        sentences = [f"{alone.name}: f(Px) and P f(x) differ by at most {alone.order:.1e}, which is rounding."]
        if least is not None:
            broken = len(others) - len(blind)
            sentences.append(
                f"{broken} of {len(others)} additions break the symmetry, by {least.order:.2g} ({least.name}) or more."
            )
        groups = {
            "Still blind to order": blind,
            "Cannot tell a text from its mirror image": [r.name for r in others if r.mirror < ROUNDING <= r.order],
            "Not as declared (sees_order)": [
                r.name for r in others if r.sees_order in (True, False) and r.sees_order == r.blind
            ],
        }
        return sentences + [f"{what}: {', '.join(names)}." for what, names in groups.items() if names]


def breakers(encodings: Sequence[str] = EVERY, *, length: int = 12, permutations: int = 8, seed: int = 0) -> Breakers:
    """Attention alone, then with one thing added at a time: a causal mask, a padding mask that moves with its tokens or
    stays where it is, a convolution, each encoding.

    Args and errors: as `equivariance`; encodings: their texts. Those that are for decoders only have its mask as well.
    """
    tried: dict[str, Any] = {
        "attention alone": random_model("none", seed=seed),
        "a causal mask, one layer": random_model("none", config=replace(HOST, num_layers=1, causal=True), seed=seed),
        "a causal mask, two layers": random_model("none", config=replace(HOST, causal=True), seed=seed),
        **_around(seed),
        **{text: random_model(text, seed=seed) for text in encodings if text != "none"},
    }
    options = {"length": length, "dim": HOST.dim, "permutations": permutations, "seed": seed}
    return Breakers([equivariance(model, name=name, **options) for name, model in tried.items()])


def _around(seed: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """What may distinguish positions without being an encoding, around one layer of torch."""
    with seeded(seed):
        layer = nn.TransformerEncoderLayer(HOST.dim, HOST.num_heads, 2 * HOST.dim, batch_first=True).double().eval()
        kernel = torch.randn(HOST.dim, 1, 3, dtype=torch.float64)

    def masked(x: Tensor, padding: Tensor) -> Tensor:
        return layer(x, src_key_padding_mask=padding)

    return {
        "padding that moves with its tokens": lambda x: masked(x, x[..., 0] > 0.5),  # a mark in the token itself
        "padding that stays where it is": lambda x: masked(x, (torch.arange(x.shape[1]) < 3).expand(x.shape[:2])),
        "a convolution over three tokens": lambda x: layer(x + conv1d(x.mT, kernel, padding=1, groups=HOST.dim).mT),
    }


@dataclass(frozen=True, eq=False)
class Twins(Finding):
    """The two representations of a word that occurs twice in a text.

    Attributes:
        name: of the model. text, word: what was read. tokens: of the text. first, second: which of them are compared, a
            word's last token where it has several.
        cosine, distance: between its two representations, with positions; the distance over their mean norm.
        cosine_without, distance_without: the same without positions.
        causal: whether a token sees those before it only, which distinguishes the two by itself.
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
        if self.distance_without < ROUNDING:
            without = (
                f"{text} have one representation without positions: cosine {self.cosine_without:.6f}, relative distance "
                f"{self.distance_without:.1e}, which is rounding."
            )
        else:
            other = "something other than its codes distinguishes positions"
            without = (
                f"{text} differ without positions, cosine {self.cosine_without:.3f}, relative distance "
                f"{self.distance_without:.2g}: {'the causal mask shows each another past' if self.causal else other}."
            )
        if self.distance < ROUNDING:
            return [without, "With positions too they are the same: nothing in this text distinguishes them."]
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
    layers: int | None = None,
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
        causal: of the small model: a decoder. layers: only the first ones; None: all. seed: of its weights.

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
        tokens, ids = [chr(byte) for byte in read.encode()], list(read.encode())
        words = split_words(read)
        spans = [match.end() for match in WORD.finditer(read)]
        occurrences = _pair(*words, word, read)
        word = words[0][occurrences[0]]
        pair = [len(read[: spans[place]].encode()) - 1 for place in occurrences]
    else:
        tokens, ids = tokenized(tokenizer, read)
        pair = _pair(tokens, ids, word, read)
    f = vector_model(model, layers=layers)
    x, at = f.content(torch.tensor(ids))[None], torch.arange(len(ids))
    cosine, distance = _apart(f.checked(x, at)[0, pair])
    bare = _without(model, layers)(x, at)
    if f.codes is None and not isinstance(model, Transformer) and torch.equal(bare, f(x, at)):
        raise InputError(f"model: no position ids change what {f.name} does, so its positions cannot be removed")
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


def _without(model: Any, layers: int | None) -> Callable[[Tensor, Tensor], Tensor]:
    """The model without positions."""
    if isinstance(model, Transformer):
        model = copy.deepcopy(model)
        model.encoding = NoPE()
        return vector_model(model, layers=layers)
    f = vector_model(model, layers=layers)
    return lambda x, at: f.run(x, torch.zeros_like(at))


def _pair(tokens: list[str], ids: list[int], word: str | None, text: str) -> list[int]:
    """The first two occurrences of the word."""
    wanted = [i for i, token in zip(ids, tokens, strict=True) if word is None or token.strip("Ġ▁ ") == word.lower()]
    twice = [i for i in wanted if ids.count(i) > 1]
    if not twice:
        what = "no token" if word is None else f"no token {word!r}"
        raise InputError(f"text={text!r}: {what} occurs twice, its tokens are {tokens}; give another text")
    first = ids.index(twice[0])
    return [first, ids.index(twice[0], first + 1)]


def _apart(pair: Tensor) -> tuple[float, float]:
    """Cosine and relative distance of two vectors, (2, dim)."""
    one, other = pair
    return float(cosine_similarity(one, other, dim=0)), float((one - other).norm() / pair.norm(dim=-1).mean())


FLOOR = 1e-17
"""Where a difference of exactly zero is drawn, on an axis of logarithms."""
KINDS = {
    "blind to order": SOFT,
    "sees order, not its direction": PALETTE[4],
    "sees order, and the same wherever the text begins": PALETTE[0],
    "sees order, and where the text begins": PALETTE[1],
    "sees order, takes no positions": PALETTE[2],
}


@plot(
    "Right of the line order is seen: without positions or a mask only rounding is left, 13 powers of ten lower.",
    (7, 9),
)
def plot_symmetry_bars(ax: "Axes", breakers: Breakers) -> None:
    """What breaks the symmetry of attention, by how much."""
    for at, row in enumerate(breakers.rows):
        ax.barh(at, max(row.order, FLOOR), 0.7, color=KINDS[_kind(row)])
    ax.axvline(ROUNDING, color=INK, linewidth=1)
    for name, colour in KINDS.items():
        ax.barh(0, 0, color=colour, label=name)
    bar_names(ax, [row.name for row in breakers.rows], fontsize=8)
    ax.set(xscale="log", xlim=(FLOOR, None), xlabel="largest difference of f(Px) and P f(x)")
    ax.margins(y=0.01)
    legend_above(ax, 0.4, fontsize=8)


def _kind(row: Equivariance) -> str:
    blind, even, direct, fixed, without = KINDS
    if row.blind:
        return blind
    if row.mirror < ROUNDING:
        return even
    if row.shift is None:
        return without
    return direct if row.shift < ROUNDING else fixed


@plot("Left end: the two tokens without positions, one vector but for rounding. Right end: with positions.")
def plot_twins_apart(ax: "Axes", *twins: Twins) -> None:
    """How far apart the two representations of one word are, without and with positions."""
    for at, pair in enumerate(twins):
        ends = [max(pair.distance_without, FLOOR), max(pair.distance, FLOOR)]
        ax.plot(ends, [at, at], color=SOFT, linewidth=1)
        for end, colour, label in zip(ends, PALETTE, ("without positions", "with positions"), strict=False):
            ax.plot(end, at, "o", color=colour, label=None if at else label)
    bar_names(ax, [f"{pair.name}{', causal' * pair.causal}\n{pair.word!r}" for pair in twins])
    ax.set(xscale="log", xlabel="distance of the two representations, over their norm")
    ax.margins(y=0.3)
    legend_above(ax, ncols=2)


SYMMETRY = AnalysisQuestion(
    "Does a model with it see token order?",
    lambda t: equivariance(t.host, seed=t.seed, name=t.name),
)
TWINS = AnalysisQuestion(
    "Do two occurrences of a word get different representations?",
    lambda t: twins("So can you open a can?", model=t.host, tokenizer=t.tokenize, seed=t.seed),
    lambda t, finding: (plot_twins_apart.of(finding),),
)
