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
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from posenc.analysis.codes import Codes, at_least
from posenc.analysis.model import VectorModel, vector_model
from posenc.analysis.plotting import INK, PALETTE, SOFT, bar_names, image, legend_above, plot
from posenc.analysis.question import AnalysisQuestion, Finding
from posenc.analysis.reading import codes_of
from posenc.encoding import Encoding
from posenc.encodings import create
from posenc.errors import InputError, is_integer

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Scalar = Callable[[Tensor], Tensor]
"""(batch, n, dim) vectors -> (batch,) numbers, each row's by itself."""

CHUNK = 64
"""Hessian-vector products that are computed together."""


def gradient(f: Scalar, x: Tensor) -> tuple[Tensor, Tensor]:
    """f and its gradient at x, (n, dim): a number and (n, dim).

    Raises:
        InputError: a value that does not depend on x as far as autograd can see.
    """
    with torch.enable_grad():
        at = x[None].clone().requires_grad_()
        value = f(at)
        if not value.requires_grad:
            raise InputError("model: autograd finds no way from its value to its input; compute it with torch alone")
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
            if not first.requires_grad:
                columns.append(torch.zeros_like(v))
                continue
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
    """How far a matrix is from two simpler ones: the Frobenius norm of what is missing over that of the matrix.

    identity: from the nearest multiple of the identity. diagonal: from its own diagonal.
    """

    identity: float
    diagonal: float

    @property
    def on_diagonal(self) -> float:
        """The share of the matrix's squares that its diagonal holds."""
        return 1 - self.diagonal**2


def shape_of(matrix: Tensor) -> MatrixShape:
    """Of a square matrix that is not zero."""
    dim, total = len(matrix), float(matrix.square().sum())
    trace, diagonal = float(matrix.diagonal().sum()), float(matrix.diagonal().square().sum())
    return MatrixShape(math.sqrt(max(0.0, 1 - trace**2 / (dim * total))), math.sqrt(max(0.0, 1 - diagonal / total)))


def shape_of_noise(dim: int) -> MatrixShape:
    """What a matrix of independent entries with mean 0 has, as a root of the expected squares."""
    return MatrixShape(math.sqrt(1 - 1 / dim**2), math.sqrt(1 - 1 / dim))


ROUNDING = 1e-20
"""Of squares, relative to their sum: variance below this is rounding."""


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
    """The codes of positions 0, 1, .., (n, dim), under H, (dim, dim).

    Raises:
        InputError: a matrix that is not (dim, dim).
    """
    dim = codes.shape[1]
    if matrix.shape != (dim, dim):
        raise InputError(f"matrix of shape {tuple(matrix.shape)}: the codes need ({dim}, {dim})")
    of = {
        "full": codes @ matrix @ codes.T,
        "diagonal": codes * matrix.diagonal() @ codes.T,
        "identity": matrix.diagonal().mean() * codes @ codes.T,
    }
    curves = {name: by_distance(products) for name, products in of.items()}
    relative = {name: _explained(products, curves[name]) for name, products in of.items()}
    return Decay(**curves, relative=relative)


def by_distance(table: Tensor) -> Tensor:
    """The mean over m of entries (m, m + distance) of an (n, n) table: (n,)."""
    return torch.stack([table.diagonal(distance).mean() for distance in range(len(table))])


def _explained(table: Tensor, curve: Tensor) -> float:
    rest = sum(float((table.diagonal(d) - mean).square().sum()) for d, mean in enumerate(curve))
    pairs = table[*torch.triu_indices(*table.shape)]
    total = float((pairs - pairs.mean()).square().sum())
    return 1 - rest / total if total > ROUNDING * float(pairs.square().sum()) else 1.0


def diagonal_parts(
    diagonal: Tensor,
    frequencies: Tensor,
    m: Tensor,
    n: Tensor,
    layout: Literal["interleaved", "concat"] = "interleaved",
) -> tuple[Tensor, Tensor]:
    """What a diagonal H makes of sinusoidal codes, exactly: a part of m - n and a part of m + n, whose sum is p_m^T H p_n.

    sum_c 1/2 (C_c + S_c) cos((m - n) theta_c) and sum_c 1/2 (C_c - S_c) cos((m + n) theta_c), S and C the entries of H
    at sines and at cosines: the second is the absolute position's, and it is gone where each pair's entries are equal.

    Args:
        diagonal: (dim,) of H. frequencies: (dim / 2,) theta. m, n: positions, of any shapes that broadcast.
        layout: of sines and cosines, as `Sinusoidal` has it.
    """
    pairs = diagonal.unflatten(-1, (-1, 2)).T if layout == "interleaved" else diagonal.unflatten(-1, (2, -1))
    sines, cosines = pairs
    m, n = m[..., None].to(frequencies), n[..., None].to(frequencies)
    relative = 0.5 * (cosines + sines) * ((m - n) * frequencies).cos()
    absolute = 0.5 * (cosines - sines) * ((m + n) * frequencies).cos()
    return relative.sum(-1), absolute.sum(-1)


AMPLITUDES = tuple(2.0**-k for k in range(12))
ROUNDING = 1e-13
"""Of float64, relative to the sums that are taken."""
FITTED = 4
"""Amplitudes, the smallest ones, that the slope of the remainder is fitted on: larger ones feel the fourth order."""


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
    """H_mn of pairs of positions m < n. count: of pairs. each: mean of their shapes; mean: shape of their mean;
    noise: what a matrix of independent entries has. matrix: the mean, (dim, dim)."""

    count: int
    each: MatrixShape
    mean: MatrixShape
    noise: MatrixShape
    matrix: Tensor


@dataclass(frozen=True)
class TableStatistics:
    """A table of vectors. norm: mean. off_diagonal: Frobenius share of their covariance off its diagonal. dominance:
    mean |diagonal| over mean |off-diagonal| entry of the covariance."""

    norm: float
    off_diagonal: float
    dominance: float


@dataclass(frozen=True, eq=False)
class Expansion(Finding):
    """What codes do to a scalar function of a model, f, term by term.

    Attributes:
        name, codes: of the model and of what is added to its input. texts, length: tried.
        whole: terms when every token has its code. pair: when two have, means over pairs of positions and texts.
        amplitudes, remainders: |remainder| with the codes of the whole text times each amplitude, means over texts.
        exact: whether the remainder is rounding at every amplitude.
        slope: of its logarithm in that of the amplitude, over the smallest: 3, unless the third order is absent or f
            has kinks (ReLU). None: fewer than two remainders are more than rounding.
        blocks, decay: see there; None: nothing interacts.
        by_distance: p_m^T H_mn p_n, each pair with its own H, means over pairs at distance 1, 2, ..
        words, positions: tables of the model's words and of the codes. words None: a function has none.
    """

    name: str
    codes: str
    texts: int
    length: int
    whole: Terms
    pair: Terms
    amplitudes: list[float]
    remainders: list[float]
    exact: bool
    slope: float | None
    blocks: Blocks | None
    decay: Decay | None
    by_distance: list[float]
    words: TableStatistics | None
    positions: TableStatistics

    def sentences(self) -> list[str]:
        one, all_of = self.pair, self.whole
        falls = "" if self.slope is None else f" The miss falls as amplitude^{self.slope:.2f} for small codes."
        tried = f"{self.texts} text{'s' * (self.texts > 1)}"
        sentences = [
            f"{self.name} with {self.codes}, two tokens with codes, mean sizes over pairs in {tried}: the first-order terms "
            f"are {one.first:.2g}, the second-order terms of one position {one.single:.2g}, and of both, p_m^T H p_n, "
            f"{one.interaction:.2g}; {one.remainder:.2g} remain.",
            f"With codes on all {self.length} tokens the value changes by {all_of.change:.2g} and the expansion to "
            f"second order misses that by {all_of.remainder:.2g}, mean sizes over {tried}."
            + (" That is rounding: the expansion is exact." if self.exact else falls),
        ]
        if self.blocks is None:
            sentences.append("No two positions interact: H = 0.")
        else:
            b = self.blocks
            sentences.append(
                f"Over {b.count} pair{'s' * (b.count > 1)} H is {b.each.identity:.1%} away from a multiple of the identity and "
                f"{b.each.diagonal:.1%} from diagonal (Frobenius norms): its diagonal holds {b.each.on_diagonal:.1%} of "
                f"its squares, {b.mean.on_diagonal:.1%} in the mean H, {b.noise.on_diagonal:.1%} in a random matrix."
            )
        if not self.positions.norm:
            return [*sentences, "All codes are zero."]
        if self.decay is not None:
            share = self.decay.relative
            sentences.append(
                f"The distance alone explains {share['identity']:.0%} of the variance of p_m^T H p_n under the identity, "
                f"{share['diagonal']:.0%} under the diagonal of the mean H, {share['full']:.0%} under all of it."
            )
        if self.words is not None:
            sentences.append(
                f"A word's vector has norm {self.words.norm:.3g}, a code {self.positions.norm:.3g}, "
                f"{self.positions.norm / self.words.norm:.2f} of it; the entries on the diagonal of their covariances are "
                f"{self.words.dominance:.3g} and {self.positions.dominance:.3g} times those off it."
            )
        return sentences


def expansion(
    model: Any,
    texts: Tensor | int = 4,
    *,
    codes: Any = None,
    layers: int | None = None,
    readout: int | Literal["mean"] = "mean",
    direction: Tensor | None = None,
    amplitudes: Sequence[float] = AMPLITUDES,
    pairs: int = 32,
    columns: int = 1,
    distances: int = 128,
    length: int = 16,
    dim: int | None = None,
    seed: int = 0,
) -> Expansion:
    """Expand a model in the codes that are added to its input, by autograd.

    Args:
        model: what `vector_model` takes: posenc's and transformers' models, torch's layers, a function of (batch, n,
            dim) vectors to (batch,) numbers, or to (batch, width) or (batch, n, width) vectors. It stays as it is.
        texts: (n,) or (texts, n) token ids, or (n, dim) or (texts, n, dim) vectors in a floating dtype; or how many
            texts of `length` random tokens, of N(0, 1) vectors where there are no tokens.
        codes: what `codes_of` takes, per position. None: those that the model adds itself.
        layers: only the first ones of a model with several; None: all.
        readout: whose representation f reads, a token's or the mean's. direction: (width,) what it is multiplied by;
            None: a random unit vector. f is their product.
        amplitudes: factors of the codes to measure the remainder at, falling or rising. pairs: at most so many pairs
            of positions a text. columns: positions n a text whose blocks H_mn with every m < n are made, by dim
            Hessian-vector products each. distances: of `Decay`. length, dim: of random texts.
        seed: of whatever is random.

    Raises:
        InputError: no codes, codes of another width than the model's, texts that do not fit, a function that changes
            between calls, mixes the rows of its batch, is not finite, not in float64 or has no derivative, or
            amplitudes that are not positive.
    """
    if len(set(amplitudes)) < 2 or not all(0 < a < math.inf for a in amplitudes):
        raise InputError(f"amplitudes={list(amplitudes)}: pass two or more different positive numbers")
    for option, value, least in (("pairs", pairs, 1), ("columns", columns, 1), ("distances", distances, 2)):
        at_least(option, value, least)
    runner, draw = vector_model(model, layers=layers), torch.Generator().manual_seed(seed)
    x = _vectors(runner, texts, length, dim, draw)
    count, n, width = x.shape
    added = _added_codes(runner, codes, width, max(n, distances))
    p = _first_rows(added, n, width)
    f = _scalar(runner, x, readout, direction, draw)
    expanded = [_expanded(f, text, p, torch.tensor(amplitudes, dtype=torch.float64), pairs, draw) for text in x]
    blocks = [
        column(f, text, j)[:j] for text in x for j in (1 + torch.randperm(n - 1, generator=draw)[:columns]).tolist()
    ]
    shapes = _blocks(torch.cat(blocks))
    rows = _first_rows(added, min(distances, added.limit or distances), width)
    remainders = torch.stack([one.remainders.abs() for one in expanded]).mean(0)
    rounding = ROUNDING * max(one.largest for one in expanded)
    return Expansion(
        name=runner.name,
        codes=added.name,
        texts=count,
        length=n,
        whole=_terms(torch.stack([one.whole for one in expanded])),
        pair=_terms(torch.cat([one.pairs for one in expanded])),
        amplitudes=list(amplitudes),
        remainders=remainders.tolist(),
        exact=float(remainders.max()) <= rounding,
        slope=_slope(amplitudes, remainders.tolist(), rounding),
        blocks=shapes,
        decay=None if shapes is None else decay(rows, shapes.matrix),
        by_distance=by_distance(torch.stack([one.interactions for one in expanded]).mean(0))[1:].tolist(),
        words=None if runner.words is None else statistics(runner.words),
        positions=statistics(rows),
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
        raise InputError("model: its derivatives are not finite at codes of zero; expand it at other texts")
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
    return _OfText(
        whole=torch.stack((moved[0] - value, first.sum(), single, both, rest[0])),
        pairs=torch.stack((two - value, ends, singles, second[m, n], two - value - ends - singles - second[m, n]), -1),
        remainders=rest[1:],
        interactions=second,
        largest=float(
            torch.stack(
                (moved.abs().max(), scale.max() * first.abs().sum(), scale.max().square() * second.abs().sum())
            ).max()
        ),
    )


def statistics(table: Tensor) -> TableStatistics:
    """Of a table's rows, (n, dim)."""
    centred = table.double() - table.double().mean(0)
    covariance = centred.T @ centred / max(1, len(table) - 1)
    apart = covariance - covariance.diagonal().diag()
    norm, off = float(covariance.norm()), float(apart.abs().sum()) / max(1, apart.numel() - len(apart))
    return TableStatistics(
        norm=float(table.norm(dim=-1).mean()),
        off_diagonal=float(apart.norm()) / norm if norm else 0.0,
        dominance=float(covariance.diagonal().mean()) / off if off else math.inf,
    )


def _vectors(model: VectorModel, texts: Tensor | int, length: int, dim: int | None, draw: torch.Generator) -> Tensor:
    """(texts, n, dim) content."""
    width = model.dim if dim is None else dim
    if not isinstance(texts, Tensor):
        at_least("texts", texts)
        at_least("length", length, 2)
        if model.words is not None:
            return model.words[torch.randint(len(model.words), (texts, length), generator=draw)]
        if width is None:
            raise InputError(f"dim: {model.name} takes vectors of any width; pass dim=, or texts of vectors")
        return torch.randn(texts, length, width, generator=draw, dtype=torch.float64)
    vectors = texts.is_floating_point()
    x = texts if texts.dim() == 2 + vectors else texts[None]
    if x.dim() != 2 + vectors or not x.numel() or x.shape[1] < 2:
        raise InputError(f"texts of shape {tuple(texts.shape)}: pass one or more, of at least 2 positions")
    if not vectors:
        return torch.stack([model.content(row) for row in x.cpu()])
    if x.shape[2] != (width or x.shape[2]) or not bool(x.isfinite().all()):
        raise InputError(f"texts of shape {tuple(texts.shape)}: pass finite vectors (texts, n, {width or 'dim'})")
    return x.detach().to("cpu", torch.float64)


def _added_codes(model: VectorModel, codes: Any, width: int, positions: int) -> Codes:
    if codes is None:
        if model.codes is None:
            raise InputError(f"codes: {model.name} adds none to its input; pass an encoding, a table or a function")
        return model.codes
    added = create(codes, dim=width, num_heads=1, max_positions=positions) if isinstance(codes, str) else codes
    if isinstance(added, Encoding) and "embed" not in added.sites():
        raise InputError(f"codes={codes}: adds nothing to the input; pass one that does, as sinusoidal or learned")
    return codes_of(added, name=codes if isinstance(codes, str) else None)


def _first_rows(codes: Codes, count: int, width: int) -> Tensor:
    rows = codes(torch.arange(count))
    if rows.shape[1] != width:
        raise InputError(f"codes: those of {codes.name} are {rows.shape[1]} wide, the model's vectors {width}")
    return rows


def _scalar(
    model: VectorModel, x: Tensor, readout: int | str, direction: Tensor | None, draw: torch.Generator
) -> Scalar:
    """The function that is expanded: (batch, n, dim) -> (batch,)."""
    name, at = model.name, torch.arange(x.shape[1])
    token = is_integer(readout) and -x.shape[1] <= readout < x.shape[1]
    if not (token or readout == "mean"):
        raise InputError(f"readout={readout!r}: pass 'mean' or a token of a text of {x.shape[1]}")
    with torch.no_grad():
        alone, double = model.run(x[:1], at), model.run(x[[0, -1]], at)
    if not isinstance(alone, Tensor) or not 1 <= alone.dim() <= 3 or len(alone) != 1 or len(double) != 2:
        shape = tuple(alone.shape) if isinstance(alone, Tensor) else type(alone).__name__
        raise InputError(
            f"{name}: gave {shape} for {tuple(x[:1].shape)}; it must give (batch,), (batch, width) or (batch, n, width)"
        )
    if alone.dtype != x.dtype:
        raise InputError(f"{name}: gave {alone.dtype} for {x.dtype}; let it compute in the dtype of its input")
    if not bool(alone.isfinite().all() and double.isfinite().all()):
        raise InputError(f"{name}: its value is not finite")
    if not torch.allclose(alone[0], double[0], rtol=1e-9, atol=1e-12):
        raise InputError(
            f"{name}: gave two different values for the same text; turn off its noise, and let no row of the batch see another"
        )
    if alone.dim() > 1:
        if direction is None:
            direction = torch.randn(alone.shape[-1], generator=draw, dtype=torch.float64)
            direction = direction / direction.norm()
        if direction.shape != alone.shape[-1:]:
            raise InputError(f"direction of shape {tuple(direction.shape)}: {name} gives {tuple(alone.shape[-1:])}")
    along = None if direction is None else direction.detach().to("cpu", torch.float64)

    def f(vectors: Tensor) -> Tensor:
        out = model.run(vectors, at)
        if out.dim() == 3:
            out = out.mean(1) if isinstance(readout, str) else out[:, readout]
        return out if along is None else out @ along

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
    matrix = blocks.mean(0)
    return Blocks(len(blocks), each, shape_of(matrix), shape_of_noise(len(matrix)), matrix)


TERMS = {
    "change": "all codes do",
    "first": "first order, p·∂f",
    "single": "second order, one position",
    "interaction": "second order, pₘ H pₙ",
    "remainder": "what is left",
}


@plot(
    "Only the fourth pair of bars depends on how far apart two tokens are: compare it with the terms of one position."
)
def plot_expansion_terms(ax: "Axes", expansion: Expansion) -> None:
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


@plot("On logarithmic axes the remainder runs along the dashed line of slope 3 as soon as the codes are small enough.")
def plot_expansion_remainder(ax: "Axes", expansion: Expansion) -> None:
    """What the expansion to second order misses, against the amplitude of the codes."""
    amplitudes, remainders = expansion.amplitudes, expansion.remainders
    ax.plot(amplitudes, remainders, "o-", label="measured")
    if expansion.slope is not None:
        least, there = min(zip(amplitudes, remainders, strict=True))
        ax.plot(
            amplitudes,
            [there * (a / least) ** 3 for a in amplitudes],
            "--",
            color=SOFT,
            linewidth=1.2,
            label="amplitude³",
        )
    ax.axvline(1, color=SOFT, linewidth=1)
    ax.set(
        xscale="log", yscale="log", xlabel="amplitude of the codes (1: as the model adds them)", ylabel="|remainder|"
    )
    ax.legend(title=None if expansion.slope is None else f"slope at the small end {expansion.slope:.2f}")


@plot("Were H the identity, only the diagonal would have colour.", (5.2, 4.4))
def plot_interaction_block(ax: "Axes", expansion: Expansion) -> None:
    """The mean of H = ∂ₘ∂ₙ f over pairs of positions, channel by channel."""
    matrix = _has_blocks(expansion).matrix
    image(ax, matrix)
    ax.set(xlabel="channel of pₙ", ylabel="channel of pₘ")


@plot("Diagonal entries (dots) that do not leave the band of the entries off the diagonal are no diagonal to speak of.")
def plot_interaction_diagonal(ax: "Axes", expansion: Expansion) -> None:
    """The diagonal of the mean H against the entries off it."""
    matrix = _has_blocks(expansion).matrix
    diagonal = matrix.diagonal()
    off = float((matrix - diagonal.diag()).square().sum() / (matrix.numel() - len(matrix))) ** 0.5
    ax.axhspan(-2 * off, 2 * off, color=PALETTE[0], alpha=0.15, label="off the diagonal, twice the root mean square")
    ax.axhline(float(diagonal.mean()), color=PALETTE[1], label="mean of the diagonal: H as a multiple of the identity")
    ax.plot(diagonal, ".", color=INK, label="diagonal")
    ax.set(xlabel="channel", ylabel="entry of H")
    legend_above(ax)


@plot("Under the identity the interaction decays as the codes' dot products do; under the model's own H it need not.")
def plot_interaction_decay(ax: "Axes", expansion: Expansion) -> None:
    """p_m^T H p_n by distance under three H, each over its largest value, so that it starts above zero."""
    _has_blocks(expansion)
    decay = expansion.decay
    assert decay is not None
    reach = 1 + 3 * len(decay.full) // 4  # few pairs are as far apart as the rest, their means scatter
    for name, curve in (("identity", decay.identity), ("diagonal", decay.diagonal), ("full", decay.full)):
        label = f"{name} H: distance explains {decay.relative[name]:.0%}"
        ax.plot((curve / _largest(curve).copysign(curve[0]))[:reach], label=label)
    each = torch.tensor(expansion.by_distance)
    ax.plot(range(1, 1 + len(each)), each / _largest(each), ".", color=INK, label="each pair its own H")
    ax.axhline(0, color=SOFT, linewidth=1)
    ax.set(xlabel="distance n - m", ylabel="mean pₘ H pₙ, over its largest")
    legend_above(ax)


def _largest(curve: torch.Tensor) -> torch.Tensor:
    return curve.abs().max().clamp(min=torch.finfo(curve.dtype).tiny)


def _has_blocks(expansion: Expansion) -> "Blocks":
    if expansion.blocks is None:
        raise InputError(f"{expansion.name}: no two positions interact, there is no H to draw")
    return expansion.blocks


EXPANSION = AnalysisQuestion(
    "Which term of the Taylor expansion around p = 0 depends on the distance?",
    lambda t: expansion(t.adding_model, t.texts(4, 16), seed=t.seed),
    lambda t, finding: [
        each.of(finding) for each in (plot_expansion_terms, plot_interaction_block, plot_interaction_decay)
    ],
)
