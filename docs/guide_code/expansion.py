# SPDX-License-Identifier: Apache-2.0
"""What codes added at the input do to a model, term by term: its Taylor expansion around codes of zero.

f(.., x_m + p_m, .., x_n + p_n, ..) = f + p_m^T d_m f + p_n^T d_n f + 1/2 p_m^T d_m^2 f p_m + 1/2 p_n^T d_n^2 f p_n
+ p_m^T H p_n + a remainder of third order: only p_m^T H p_n, H = d_m d_n f, depends on two positions at once, and were H the
identity it would be the dot product of two codes (Su 2021, kexue.fm/archives/8231). All is measured here, in float64,
by Hessian-vector products: the complete Hessian is never made.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from guide_code.model import VectorModel, vector_model
from guide_code.shared import bar_names, by_distance, legend_above
from posenc.analysis.codes import Codes, codes_of, make
from posenc.analysis.finding import INK, SOFT, Axes, Finding, image, plot
from posenc.encoding import Encoding
from posenc.errors import InputError, check_integers, check_sizes

Scalar = Callable[[Tensor], Tensor]
"""(batch, n, dim) vectors -> (batch,) numbers, each row's by itself."""

CHUNK = 64
"""Hessian-vector products that are computed together."""
AMPLITUDES = tuple(2.0**-k for k in range(12))
DISTANCES = 128
"""Distances under the mean H."""
ROUNDING = 1e-13
"""Of float64, relative to the sums that are taken."""
FITTED = 4
"""Amplitudes, the smallest ones, that the slope of the remainder is fitted on: larger ones feel the fourth order."""


def gradient(f: Scalar, x: Tensor) -> tuple[Tensor, Tensor]:
    """f and its gradient at x, (n, dim): a number and (n, dim).

    Raises:
        InputError: a value that does not depend on x as far as autograd can see.
    """
    with torch.enable_grad():
        at = x[None].clone().requires_grad_()
        value = f(at)
        if not value.requires_grad:
            raise InputError(
                "autograd finds no way from its value to its input", "compute it with torch alone", argument="model"
            )
        (slopes,) = torch.autograd.grad(value.sum(), at)
    return value.detach()[0], slopes[0]


def products(f: Scalar, x: Tensor, directions: Tensor, chunk: int = CHUNK) -> Tensor:
    """The Hessian of f at x, (n, dim), times each of (count, n, dim) directions: (count, n, dim).

    A function without curvature gives zeros.
    """
    columns = []
    for v in directions.split(chunk):
        with torch.enable_grad():
            at = x.expand(len(v), -1, -1).clone().requires_grad_()
            (first,) = torch.autograd.grad(f(at).sum(), at, create_graph=True)
            second = None
            if first.requires_grad:
                (second,) = torch.autograd.grad((first * v).sum(), at, allow_unused=True)
        columns.append(torch.zeros_like(v) if second is None else second)
    return torch.cat(columns)


def interactions(f: Scalar, x: Tensor, p: Tensor) -> Tensor:
    """p_m^T H_mn p_n for every pair, (n, n), with H_mn = d^2 f / dx_m dx_n at x; x, p: (n, dim). By n products."""
    return torch.einsum("ijd,jd->ij", products(f, x, torch.diag_embed(p.mT).permute(1, 2, 0)), p)


def column(f: Scalar, x: Tensor, n: int) -> Tensor:
    """The blocks H_mn of every m with one n, (len(x), dim, dim), by dim products."""
    size, dim = x.shape
    directions = x.new_zeros(dim, size, dim)
    directions[:, n] = torch.eye(dim, dtype=x.dtype)
    return products(f, x, directions).permute(1, 2, 0)


@dataclass(frozen=True)
class MatrixShape:
    """How far a matrix is from simpler ones: the Frobenius norm of what is missing over that of the matrix.

    identity: from the nearest multiple of the identity. diagonal: from its diagonal.
    """

    identity: float
    diagonal: float

    @property
    def on_diagonal(self) -> float:
        """The share of the matrix's squares on its diagonal."""
        return 1 - self.diagonal**2


def shape_of(matrix: Tensor) -> MatrixShape:
    """Of a square matrix that is not zero."""
    dim, total = len(matrix), float(matrix.square().sum())
    trace, diagonal = float(matrix.diagonal().sum()), float(matrix.diagonal().square().sum())
    return MatrixShape(math.sqrt(max(0.0, 1 - trace**2 / (dim * total))), math.sqrt(max(0.0, 1 - diagonal / total)))


@dataclass(frozen=True, eq=False)
class Decay:
    """p_m^T H p_n, m <= n, by distance n - m, under an H, its diagonal, and the identity times its mean diagonal entry.

    full, diagonal, identity: (distances,) from distance 0, means over m. relative: of each, by name, the share of the
    variance of p_m^T H p_n that the distance explains: 1 where it is a function of n - m alone.
    """

    full: Tensor
    diagonal: Tensor
    identity: Tensor
    relative: dict[str, float]


def decay(codes: Tensor, matrix: Tensor) -> Decay:
    """The codes of positions 0, 1, .., (n, dim), under H, (dim, dim)."""
    products = {
        "full": codes @ matrix @ codes.T,
        "diagonal": codes * matrix.diagonal() @ codes.T,
        "identity": matrix.diagonal().mean() * codes @ codes.T,
    }
    order = torch.ones(len(codes), len(codes), dtype=torch.bool).tril()
    curves, relative = {}, {}
    for name, table in products.items():
        _, means, explained = by_distance(table.T[None, None], order)
        curves[name], relative[name] = means[0], float(explained.nan_to_num(1.0))
    return Decay(**curves, relative=relative)


@dataclass(frozen=True)
class Terms:
    """Sizes of the terms, means of absolute values over what was tried.

    change: f with codes less f without. first: of first order. single: of second order in one position. interaction: of
    second order in two. remainder: what is left of the change.
    """

    change: float
    first: float
    single: float
    interaction: float
    remainder: float


@dataclass(frozen=True, eq=False)
class Blocks:
    """H_mn of pairs of positions m < n. count: of pairs. each: mean of their shapes; mean: shape of their mean. matrix:
    the mean, (dim, dim). A matrix of independent entries has 1 / dim of its squares on the diagonal."""

    count: int
    each: MatrixShape
    mean: MatrixShape
    matrix: Tensor


@dataclass(frozen=True, eq=False)
class Expansion(Finding):
    """What codes do to a scalar function of a model, f, term by term."""

    name: str
    """Of the model"""
    codes: str
    """Name of what is added to its input"""
    texts: int
    """Sequences that were tried"""
    length: int
    """Their tokens"""
    whole: Terms
    """Terms when every token has its code"""
    pair: Terms
    """When two have, means over pairs of positions and sequences"""
    amplitudes: list[float]
    """What the codes are multiplied by"""
    remainders: list[float]
    """|remainder| with the codes of all tokens times each amplitude, means over sequences"""
    exact: bool
    """The remainder is rounding at every amplitude"""
    slope: float | None
    """Of the logarithm of the remainder in that of the amplitude, over the smallest: 3, unless the third order is absent or f has kinks (ReLU); None: fewer than two remainders are more than rounding"""
    blocks: Blocks | None
    """None: nothing interacts"""
    decay: Decay | None
    """None: nothing interacts"""
    by_distance: list[float]
    """p_m^T H_mn p_n, each pair with its H, means over pairs at distance 1, 2, .."""
    word_norm: float | None
    """Mean over the vocabulary; None without one"""
    code_norm: float
    """Mean over positions"""

    def sentences(self) -> list[str]:
        one, every = self.pair, self.whole
        falls = "" if self.slope is None else f" The remainder falls as amplitude^{self.slope:.2f} for small codes."
        sentences = [
            f"{self.name} with {self.codes}, codes on two tokens, mean sizes over pairs in {self.texts} sequences: first-order "
            f"terms {one.first:.2g}, second-order terms of one position {one.single:.2g}, of both, p_m^T H p_n, "
            f"{one.interaction:.2g}; remainder {one.remainder:.2g}.",
            f"Codes on all {self.length} tokens change the value by {every.change:.2g}; the expansion to second order "
            f"leaves a remainder of {every.remainder:.2g}."
            + (" That is rounding: the expansion is exact." if self.exact else falls),
        ]
        if self.blocks is None:
            return [*sentences, "No two positions interact: H = 0."]
        b = self.blocks
        sentences.append(
            f"Over {b.count} pairs H is {b.each.identity:.1%} away from a multiple of the identity and "
            f"{b.each.diagonal:.1%} from diagonal (Frobenius norms): its diagonal has {b.each.on_diagonal:.1%} of "
            f"its squares, {b.mean.on_diagonal:.1%} in the mean H, {1 / len(b.matrix):.1%} in a random matrix."
        )
        if self.decay is not None:
            share = self.decay.relative
            sentences.append(
                f"The distance alone explains {share['identity']:.0%} of the variance of p_m^T H p_n under the identity, "
                f"{share['diagonal']:.0%} under the diagonal of the mean H, {share['full']:.0%} under the mean H."
            )
        if self.word_norm:
            sentences.append(f"Mean norms: {self.word_norm:.3g} of a word's vector, {self.code_norm:.3g} of a code.")
        return sentences


def expansion(
    model: Any,
    texts: Tensor | int = 4,
    *,
    codes: Any = None,
    layers: int | None = None,
    pairs: int = 32,
    columns: int = 1,
    length: int = 16,
    seed: int = 0,
) -> Expansion:
    """Expand a model in the codes that are added to its input, by autograd.

    Args:
        model: what `vector_model` takes: posenc's and transformers' models, a function of (batch, n, dim) vectors to
            (batch,) numbers or to (batch, n, width) vectors. It is not changed. Of vectors f is the mean over tokens,
            multiplied by a random unit vector.
        texts: (n,) or (batch, n) token ids, or (n, dim) or (batch, n, dim) vectors in a floating dtype; or how many
            sequences of `length` random tokens, of N(0, 1) vectors where there are no tokens.
        codes: what `codes_of` takes, per position. None: those that the model itself adds.
        layers: only the first ones of a posenc Transformer; None: all.
        pairs: at most so many pairs
            of positions a text. columns: positions n a text whose blocks H_mn with every m < n are made, by dim
            Hessian-vector products each. seed: of whatever is random.

    Raises:
        InputError: no codes, codes of another width than the model's, sequences that do not fit, a function that changes
            between calls, is not finite, not in float64 or has no derivative.
    """
    check_sizes(pairs=pairs, columns=columns)
    runner, draw = vector_model(model, layers=layers), torch.Generator().manual_seed(seed)
    x = _vectors(runner, texts, length, draw)
    count, n, width = x.shape
    added = _added_codes(runner, codes, width)
    p = added(torch.arange(max(n, min(DISTANCES, added.limit or DISTANCES))))
    if p.shape[1] != width:
        raise InputError(f"those of {added.name} are {p.shape[1]} wide, the model's vectors {width}", argument="codes")
    f, amplitudes = _scalar(runner, x, draw), torch.tensor(AMPLITUDES, dtype=torch.float64)
    expanded = [_expanded(f, text, p[:n], amplitudes, pairs, draw) for text in x]
    blocks = [
        column(f, text, j)[:j] for text in x for j in (1 + torch.randperm(n - 1, generator=draw)[:columns]).tolist()
    ]
    shapes = _blocks(torch.cat(blocks))
    remainders = torch.stack([one.remainders.abs() for one in expanded]).mean(0)
    rounding = ROUNDING * max(one.largest for one in expanded)
    each = torch.stack([one.interactions for one in expanded]).mean(0)
    return Expansion(
        name=runner.name,
        codes=added.name,
        texts=count,
        length=n,
        whole=_terms(torch.stack([one.whole for one in expanded])),
        pair=_terms(torch.cat([one.pairs for one in expanded])),
        amplitudes=list(AMPLITUDES),
        remainders=remainders.tolist(),
        exact=float(remainders.max()) <= rounding,
        slope=_slope(AMPLITUDES, remainders.tolist(), rounding),
        blocks=shapes,
        decay=None if shapes is None or not p.any() else decay(p[:DISTANCES], shapes.matrix),
        by_distance=[float(each.diagonal(distance).mean()) for distance in range(1, n)],
        word_norm=None if runner.words is None else float(runner.words.norm(dim=-1).mean()),
        code_norm=float(p[:DISTANCES].norm(dim=-1).mean()),
    )


@dataclass(frozen=True, eq=False)
class _OfText:
    """The expansion of one text. whole: (5,) as `Terms`, with signs; pairs: (pairs, 5). remainders: by amplitude.
    interactions: (n, n) p_m^T H_mn p_n. largest: number that went into a sum."""

    whole: Tensor
    pairs: Tensor
    remainders: Tensor
    interactions: Tensor
    largest: float


def _expanded(f: Scalar, x: Tensor, p: Tensor, amplitudes: Tensor, most: int, draw: torch.Generator) -> _OfText:
    value, slopes = gradient(f, x)
    second, first = interactions(f, x, p), (slopes * p).sum(-1)
    if not bool(first.isfinite().all() and second.isfinite().all()):
        raise InputError(
            "its derivatives are not finite at codes of zero", "expand it at other sequences", argument="model"
        )
    single, both = second.diagonal().sum() / 2, second.triu(1).sum()
    scale = torch.cat((amplitudes.new_ones(1), amplitudes))
    pairs = torch.combinations(torch.arange(len(x)))
    m, n = pairs[torch.randperm(len(pairs), generator=draw)[:most]].T
    only = torch.zeros(len(m), len(x), 1, dtype=x.dtype)
    only[torch.arange(len(m)), m] = only[torch.arange(len(m)), n] = 1
    with torch.no_grad():
        moved, two = f(x + scale[:, None, None] * p), f(x + only * p)
    rest = moved - value - scale * first.sum() - scale.square() * (single + both)
    ends, singles = first[m] + first[n], (second.diagonal()[m] + second.diagonal()[n]) / 2
    sizes = moved.abs().max(), scale.max() * first.abs().sum(), scale.max().square() * second.abs().sum()
    return _OfText(
        whole=torch.stack((moved[0] - value, first.sum(), single, both, rest[0])),
        pairs=torch.stack((two - value, ends, singles, second[m, n], two - value - ends - singles - second[m, n]), -1),
        remainders=rest[1:],
        interactions=second,
        largest=max(map(float, sizes)),
    )


def _vectors(model: VectorModel, texts: Tensor | int, length: int, draw: torch.Generator) -> Tensor:
    """(texts, n, dim) content."""
    if not isinstance(texts, Tensor):
        check_sizes(texts=texts)
        check_integers(2, length=length)
        if model.words is not None:
            return model.words[torch.randint(len(model.words), (texts, length), generator=draw)]
        if model.dim is None:
            raise InputError(
                f"{model.name} takes vectors of any width",
                "pass sequences of vectors (texts, n, dim)",
                argument="texts",
            )
        return torch.randn(texts, length, model.dim, generator=draw, dtype=torch.float64)
    vectors = texts.is_floating_point()
    x = texts if texts.dim() == 2 + vectors else texts[None]
    if x.dim() != 2 + vectors or not x.numel() or x.shape[1] < 2:
        raise InputError(f"sequences of shape {tuple(texts.shape)}: pass one or more, of at least 2 positions")
    if not vectors:
        return torch.stack([model.content(row) for row in x.cpu()])
    if x.shape[2] != (model.dim or x.shape[2]) or not bool(x.isfinite().all()):
        raise InputError(
            f"sequences of shape {tuple(texts.shape)}: pass finite vectors (texts, n, {model.dim or 'dim'})"
        )
    return x.detach().to("cpu", torch.float64)


def _added_codes(model: VectorModel, codes: Any, width: int) -> Codes:
    if codes is None:
        if model.codes is None:
            raise InputError(
                f"{model.name} adds none to its input", "pass an encoding, a table or a function", argument="codes"
            )
        return model.codes
    added = make(codes, dim=width, num_heads=1) if isinstance(codes, str) else codes
    if isinstance(added, Encoding) and "embed" not in added.sites():
        raise InputError("adds nothing to the input", "pass one that does, as sinusoidal or learned", codes=codes)
    return codes_of(added)


def _scalar(model: VectorModel, x: Tensor, draw: torch.Generator) -> Scalar:
    """The function that is expanded: (batch, n, dim) -> (batch,)."""
    at = torch.arange(x.shape[1])
    with torch.no_grad():
        out = model.checked(x[:1], at, model.run, dims=(1, 3))
    direction = None
    if out.dim() > 1:
        direction = torch.randn(out.shape[-1], generator=draw, dtype=torch.float64)
        direction = direction / direction.norm()

    def f(vectors: Tensor) -> Tensor:
        out = model.run(vectors, at)
        return out if direction is None else out.mean(1) @ direction

    return f


def _terms(rows: Tensor) -> Terms:
    return Terms(*rows.abs().mean(0).tolist())


def _slope(amplitudes: Sequence[float], remainders: Sequence[float], rounding: float) -> float | None:
    """Least squares in logarithms, over the smallest amplitudes whose remainder is not rounding."""
    points = [(a, r) for a, r in sorted(zip(amplitudes, remainders, strict=True)) if r > rounding]
    if len(points) < 2:
        return None
    x, y = torch.tensor(points[:FITTED], dtype=torch.float64).log().T
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def _blocks(blocks: Tensor) -> Blocks | None:
    sizes = blocks.flatten(1).norm(dim=-1)
    blocks = blocks[sizes > ROUNDING * sizes.max()] if float(sizes.max()) else blocks[:0]
    if not len(blocks):
        return None
    shapes = [shape_of(block) for block in blocks]
    each = MatrixShape(*(sum(getattr(s, name) for s in shapes) / len(shapes) for name in ("identity", "diagonal")))
    return Blocks(len(blocks), each, shape_of(blocks.mean(0)), blocks.mean(0))


TERMS = {
    "change": "all codes do",
    "first": "first order, p·∂f",
    "single": "second order, one position",
    "interaction": "second order, pₘ H pₙ",
    "remainder": "remainder",
}


@plot(
    "Only the fourth pair of bars depends on how far apart two tokens are: compare it with the terms of one position."
)
def plot_expansion_terms(ax: Axes, expansion: Expansion) -> None:
    """Every term by its size: with codes on two tokens, and on all."""
    rows = torch.arange(len(TERMS)).tolist()
    for shift, terms, label in (
        (-0.2, expansion.pair, "codes on two tokens"),
        (0.2, expansion.whole, f"codes on all {expansion.length}"),
    ):
        ax.barh([i + shift for i in rows], [getattr(terms, name) for name in TERMS], 0.38, label=label)
    bar_names(ax, list(TERMS.values()))
    ax.set(xscale="log", xlabel=f"mean size, of f of {expansion.name}")
    legend_above(ax, 0.4, ncols=2)


@plot("Were H the identity, only the diagonal would have colour.", (5.2, 4.4))
def plot_interaction_block(ax: Axes, expansion: Expansion) -> None:
    """The mean of H = ∂ₘ∂ₙ f over pairs of positions, channel by channel."""
    if expansion.blocks is None:
        raise InputError("no two positions interact, there is no H to draw", argument=expansion.name)
    image(ax, expansion.blocks.matrix)
    ax.set(xlabel="channel of pₙ", ylabel="channel of pₘ")


@plot("Under the identity the interaction decays as the codes' dot products do; under the model's H it need not.")
def plot_interaction_decay(ax: Axes, expansion: Expansion) -> None:
    """p_m^T H p_n by distance under three H, each over its largest value, so that it starts above zero."""
    decay = expansion.decay
    if decay is None:
        raise InputError("no two positions interact, there is no H to draw", argument=expansion.name)
    reach = 1 + 3 * len(decay.full) // 4  # few pairs are as far apart as the rest, their means scatter
    for name, curve in (("identity", decay.identity), ("diagonal", decay.diagonal), ("full", decay.full)):
        label = f"{name} H: distance explains {decay.relative[name]:.0%}"
        ax.plot((curve / _largest(curve).copysign(curve[0]))[:reach], label=label)
    each = torch.tensor(expansion.by_distance)
    ax.plot(range(1, 1 + len(each)), each / _largest(each), ".", color=INK, label="H of each pair")
    ax.axhline(0, color=SOFT, linewidth=1)
    ax.set(xlabel="distance n - m", ylabel="mean pₘ H pₙ, over its largest")
    legend_above(ax)


def _largest(curve: Tensor) -> Tensor:
    return curve.abs().max().clamp(min=torch.finfo(curve.dtype).tiny)
