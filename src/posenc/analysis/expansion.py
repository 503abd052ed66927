# SPDX-License-Identifier: Apache-2.0
"""What codes added at the input do to a model, term by term: its Taylor expansion around codes of zero.

f(.., x_m + p_m, .., x_n + p_n, ..) = f + p_m^T d_m f + p_n^T d_n f + 1/2 p_m^T d_m^2 f p_m + 1/2 p_n^T d_n^2 f p_n
+ p_m^T H p_n + a remainder of third order: only p_m^T H p_n, H = d_m d_n f, knows two positions at once, and were H the
identity it would be the dot product of two codes (Su 2021, kexue.fm/archives/8231). All is measured here, in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from posenc.analysis.body import Body, body_of
from posenc.analysis.codes import codes_of
from posenc.analysis.curvature import Scalar, Shape, column, gradient, interactions, shape_of, shape_of_noise
from posenc.analysis.finding import Finding
from posenc.analysis.interaction import Decay, by_distance, decay
from posenc.analysis.reading import Codes, whole
from posenc.checks import checked
from posenc.encoding import Encoding
from posenc.encodings import create
from posenc.errors import InputError

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
    each: Shape
    mean: Shape
    noise: Shape
    matrix: Tensor


@dataclass(frozen=True)
class Table:
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
    words: Table | None
    positions: Table

    def sentences(self) -> list[str]:
        one, all_of = self.pair, self.whole
        falls = "" if self.slope is None else f" The miss falls as amplitude^{self.slope:.2f} for small codes."
        tried = f"{self.texts} text{'s' * (self.texts > 1)}"
        found = [
            f"{self.name} with {self.codes}, two tokens with codes, mean sizes over pairs in {tried}: the first-order terms "
            f"are {one.first:.2g}, the second-order terms of one position {one.single:.2g}, and of both, p_m^T H p_n, "
            f"{one.interaction:.2g}; {one.remainder:.2g} remain.",
            f"With codes on all {self.length} tokens the value changes by {all_of.change:.2g} and the expansion to "
            f"second order misses that by {all_of.remainder:.2g}, mean sizes over {tried}."
            + (" That is rounding: the expansion is exact." if self.exact else falls),
        ]
        if self.blocks is None:
            found.append("No two positions interact: H = 0.")
        else:
            b = self.blocks
            found.append(
                f"Over {b.count} pair{'s' * (b.count > 1)} H is {b.each.identity:.1%} away from a multiple of the identity and "
                f"{b.each.diagonal:.1%} from diagonal (Frobenius norms): its diagonal holds {b.each.on_diagonal:.1%} of "
                f"its squares, {b.mean.on_diagonal:.1%} in the mean H, {b.noise.on_diagonal:.1%} in a random matrix."
            )
        if not self.positions.norm:
            return [*found, "All codes are zero."]
        if self.decay is not None:
            share = self.decay.relative
            found.append(
                f"The distance alone explains {share['identity']:.0%} of the variance of p_m^T H p_n under the identity, "
                f"{share['diagonal']:.0%} under the diagonal of the mean H, {share['full']:.0%} under all of it."
            )
        if self.words is not None:
            found.append(
                f"A word's vector has norm {self.words.norm:.3g}, a code {self.positions.norm:.3g}, "
                f"{self.positions.norm / self.words.norm:.2f} of it; the entries on the diagonal of their covariances are "
                f"{self.words.dominance:.3g} and {self.positions.dominance:.3g} times those off it."
            )
        return found


@checked
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
        model: what `body_of` understands: posenc's and transformers' models, torch's layers, a function of (batch, n,
            dim) vectors to (batch,) numbers, or to (batch, width) or (batch, n, width) vectors. It stays as it is.
        texts: (n,) or (texts, n) token ids, or (n, dim) or (texts, n, dim) vectors in a floating dtype; or how many
            texts of `length` random tokens, of N(0, 1) vectors where there are no tokens.
        codes: what `codes_of` understands, per position. None: those that the model adds itself.
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
        whole(option, value, least)
    body, draw = body_of(model, layers=layers), torch.Generator().manual_seed(seed)
    x = _vectors(body, texts, length, dim, draw)
    count, n, width = x.shape
    added = _codes(body, codes, width, max(n, distances))
    p = _checked(added, n, width)
    f = _scalar(body, x, readout, direction, draw)
    found = [_expanded(f, text, p, torch.tensor(amplitudes, dtype=torch.float64), pairs, draw) for text in x]
    blocks = [
        column(f, text, j)[:j] for text in x for j in (1 + torch.randperm(n - 1, generator=draw)[:columns]).tolist()
    ]
    shapes = _blocks(torch.cat(blocks))
    rows = _checked(added, min(distances, added.limit or distances), width)
    remainders = torch.stack([one.remainders.abs() for one in found]).mean(0)
    rounding = ROUNDING * max(one.largest for one in found)
    return Expansion(
        name=body.name,
        codes=added.name,
        texts=count,
        length=n,
        whole=_terms(torch.stack([one.whole for one in found])),
        pair=_terms(torch.cat([one.pairs for one in found])),
        amplitudes=list(amplitudes),
        remainders=remainders.tolist(),
        exact=float(remainders.max()) <= rounding,
        slope=_slope(amplitudes, remainders.tolist(), rounding),
        blocks=shapes,
        decay=None if shapes is None else decay(rows, shapes.matrix),
        by_distance=by_distance(torch.stack([one.interactions for one in found]).mean(0))[1:].tolist(),
        words=None if body.words is None else statistics(body.words),
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
    places = torch.combinations(torch.arange(len(x)))
    m, n = places[torch.randperm(len(places), generator=draw)[:most]].T
    only = torch.zeros(len(m), len(x), 1, dtype=x.dtype)
    only[torch.arange(len(m)), m] = only[torch.arange(len(m)), n] = 1
    with torch.no_grad():
        moved, two = f(x + scale[:, None, None] * p), f(x + only * p)
    rest = moved - value - scale * first.sum() - scale.square() * (single + both)
    ends, own = first[m] + first[n], (second.diagonal()[m] + second.diagonal()[n]) / 2
    return _OfText(
        whole=torch.stack((moved[0] - value, first.sum(), single, both, rest[0])),
        pairs=torch.stack((two - value, ends, own, second[m, n], two - value - ends - own - second[m, n]), -1),
        remainders=rest[1:],
        interactions=second,
        largest=float(
            torch.stack(
                (moved.abs().max(), scale.max() * first.abs().sum(), scale.max().square() * second.abs().sum())
            ).max()
        ),
    )


def statistics(table: Tensor) -> Table:
    """Of a table's rows, (n, dim)."""
    centred = table.double() - table.double().mean(0)
    covariance = centred.T @ centred / max(1, len(table) - 1)
    apart = covariance - covariance.diagonal().diag()
    whole, off = float(covariance.norm()), float(apart.abs().sum()) / max(1, apart.numel() - len(apart))
    return Table(
        norm=float(table.norm(dim=-1).mean()),
        off_diagonal=float(apart.norm()) / whole if whole else 0.0,
        dominance=float(covariance.diagonal().mean()) / off if off else math.inf,
    )


def _vectors(body: Body, texts: Tensor | int, length: int, dim: int | None, draw: torch.Generator) -> Tensor:
    """(texts, n, dim) content."""
    width = body.dim if dim is None else dim
    if isinstance(texts, Tensor) and not texts.numel():
        raise InputError(f"texts of shape {tuple(texts.shape)}: pass one or more")
    if not isinstance(texts, Tensor):
        whole("texts", texts)
        whole("length", length, 2)
        if body.words is not None:
            return body.words[torch.randint(len(body.words), (texts, length), generator=draw)]
        if width is None:
            raise InputError(f"dim: {body.name} does not say how wide its vectors are; pass dim=, or texts of vectors")
        return torch.randn(texts, length, width, generator=draw, dtype=torch.float64)
    if not texts.is_floating_point():
        rows = texts if texts.dim() == 2 else texts[None]
        if rows.shape[-1] < 2:
            raise InputError(f"texts of shape {tuple(texts.shape)}: two positions are needed to interact")
        return torch.stack([body.content(row) for row in rows.cpu()])
    x = (texts if texts.dim() == 3 else texts[None]).detach().to("cpu", torch.float64)
    if x.dim() != 3 or x.shape[2] != (width or x.shape[2]) or x.shape[1] < 2 or not bool(x.isfinite().all()):
        raise InputError(
            f"texts of shape {tuple(texts.shape)}: pass finite vectors (texts, n, {width or 'dim'}), n at least 2"
        )
    return x


def _codes(body: Body, codes: Any, width: int, positions: int) -> Codes:
    if codes is None:
        if body.codes is None:
            raise InputError(f"codes: {body.name} adds none to its input; pass an encoding, a table or a function")
        return body.codes
    made = create(codes, dim=width, num_heads=1, max_positions=positions) if isinstance(codes, str) else codes
    if isinstance(made, Encoding) and "embed" not in made.sites():
        raise InputError(f"codes={codes}: adds nothing to the input; pass one that does, as sinusoidal or learned")
    return codes_of(made, name=codes if isinstance(codes, str) else None)


def _checked(codes: Codes, count: int, width: int) -> Tensor:
    """The codes of positions 0 .. count-1."""
    found = codes(torch.arange(count))
    if found.shape[1] != width:
        raise InputError(
            f"{codes.name}: its codes are {found.shape[1]} wide, the model's vectors {width}; make them so"
        )
    return found


def _scalar(body: Body, x: Tensor, readout: int | str, direction: Tensor | None, draw: torch.Generator) -> Scalar:
    """The function that is expanded, once it has been found to be one."""
    at = torch.arange(x.shape[1])
    token = isinstance(readout, int) and not isinstance(readout, bool) and -x.shape[1] <= readout < x.shape[1]
    if not (token or readout == "mean"):
        raise InputError(f"readout={readout!r}: pass 'mean' or a token of a text of {x.shape[1]}")
    with torch.no_grad():
        alone, double = body.run(x[:1], at), body.run(x[[0, -1]], at)
    if not isinstance(alone, Tensor) or not 1 <= alone.dim() <= 3 or len(alone) != 1 or len(double) != 2:
        shape = tuple(alone.shape) if isinstance(alone, Tensor) else type(alone).__name__
        raise InputError(
            f"{body.name}: gave {shape} for {tuple(x[:1].shape)}; it must give (batch,), (batch, width) or "
            "(batch, n, width)"
        )
    if alone.dtype != x.dtype:
        raise InputError(f"{body.name}: gave {alone.dtype} for {x.dtype}; let it compute in the dtype of its input")
    if not bool(alone.isfinite().all() and double.isfinite().all()):
        raise InputError(f"{body.name}: its value is not finite; mend the function, or the texts")
    if not torch.allclose(alone[0], double[0], rtol=1e-9, atol=1e-12):
        raise InputError(
            f"{body.name}: gave two different values for the same text; turn off its noise, and let no row of the batch "
            "see another"
        )
    if alone.dim() > 1:
        width = alone.shape[-1]
        if direction is None:
            direction = torch.randn(width, generator=draw, dtype=torch.float64)
            direction = direction / direction.norm()
        if direction.shape != (width,):
            raise InputError(f"direction of shape {tuple(direction.shape)}: {body.name} gives ({width},)")
    along = None if direction is None else direction.detach().to("cpu", torch.float64)

    def f(vectors: Tensor) -> Tensor:
        out = body.run(vectors, at)
        if out.dim() == 3:
            out = out.mean(1) if isinstance(readout, str) else out[:, readout]
        return out if along is None else out @ along

    return f


def _terms(rows: Tensor) -> Terms:
    return Terms(*rows.abs().mean(0).tolist())


def _slope(amplitudes: Sequence[float], remainders: Sequence[float], rounding: float) -> float | None:
    """Least squares in logarithms, over the smallest amplitudes whose remainder is not rounding."""
    kept = [(a, r) for a, r in sorted(zip(amplitudes, remainders, strict=True)) if r > rounding]
    if len(kept) < 2:
        return None
    x, y = torch.tensor(kept[:FITTED], dtype=torch.float64).log().T
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def _blocks(found: Tensor) -> Blocks | None:
    sizes = found.flatten(1).norm(dim=-1)
    found = found[sizes > ROUNDING * sizes.max()] if float(sizes.max()) else found[:0]
    if not len(found):
        return None
    shapes = [shape_of(block) for block in found]
    each = Shape(*(sum(getattr(s, name) for s in shapes) / len(shapes) for name in ("identity", "diagonal")))
    matrix = found.mean(0)
    return Blocks(len(found), each, shape_of(matrix), shape_of_noise(len(matrix)), matrix)
