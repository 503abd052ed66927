# SPDX-License-Identifier: Apache-2.0
"""Overlap of the vectors of tokens and positions: angles between their vectors, against those of random ones, and what
adding the two costs against concatenating them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from guide_code.model import tables
from posenc.analysis.codes import codes_of
from posenc.analysis.finding import PALETTE, SOFT, Axes, Finding, plot
from posenc.errors import InputError, check_integers, not_none

BINS = 200
"""Of the histograms of cosines."""


ENERGY = 0.9
"""Share of the codes' energy in their leading dimensions."""
DRAWS = 20
"""Pairs of random subspaces."""
TOKENS, LENGTH = 256, 128
"""Sizes of random tables."""


@dataclass(frozen=True, eq=False)
class RandomDots(Finding):
    """Dot products of independent random unit vectors. mean, variance: of the sample; theory says 0 and 1 / dim. edges,
    density: a histogram of the sample."""

    dim: int
    samples: int
    seed: int
    mean: float
    variance: float
    edges: Tensor
    density: Tensor

    def sentences(self) -> list[str]:
        return [
            f"The dot product of two random directions of {self.dim} dimensions has mean {self.mean:.4f} and variance "
            f"{self.variance:.5f} over {self.samples} pairs; theory says 0 and 1/{self.dim} = {1 / self.dim:.5f}. "
            f"They are 90 degrees apart, give or take {math.degrees(math.asin(self.dim**-0.5)):.0f}.",
        ]


def random_dots(dim: int, *, samples: int = 20000, seed: int = 0) -> RandomDots:
    """Sample the dot product of two independent unit vectors, uniform on the sphere.

    dim: at least 2. samples: pairs.

    Raises:
        InputError: sizes below 2.
    """
    check_integers(2, dim=dim, samples=samples)
    draws = torch.Generator().manual_seed(seed)
    dots = torch.cat(
        [
            _random_units(count, dim, draws).mul(_random_units(count, dim, draws)).sum(-1)
            for count in (min(4096, samples - start) for start in range(0, samples, 4096))
        ]
    )
    edges, density = _histogram(dots)
    return RandomDots(dim, samples, seed, float(dots.mean()), float(dots.var()), edges, density)


def dot_density(dots: Tensor, dim: int) -> Tensor:
    """Density of the dot product of two random unit vectors: (1 - dot^2)^((dim - 3) / 2), normalised."""
    norm = math.lgamma(dim / 2) - math.lgamma((dim - 1) / 2) - 0.5 * math.log(math.pi)
    return torch.exp(norm + (dim - 3) / 2 * torch.log1p(-dots.double().square()))


def _random_units(count: int, dim: int, draws: torch.Generator) -> Tensor:
    return nn.functional.normalize(torch.randn(count, dim, generator=draws, dtype=torch.float64))


def _histogram(values: Tensor) -> tuple[Tensor, Tensor]:
    histogram = torch.histogram(values.double(), BINS, range=(-1.0, 1.0), density=True)
    return histogram.bin_edges, histogram.hist


@dataclass(frozen=True, eq=False)
class Subspaces(Finding):
    """How the vectors of tokens and of positions lie to each other."""

    name: str
    tokens: int
    positions: int
    dim: int
    cosine: Mapping[str, tuple[float, float]]
    """Mean and spread of the cosine over all pairs, as they are and with each table's mean taken away"""
    expected: float
    """dim^-1/2, the spread of random vectors, whose mean is 0"""
    means_cosine: float
    """Between the two mean vectors"""
    mean_energy: Mapping[str, float]
    """The share of each table's energy that is its mean vector"""
    rank: int
    """Leading dimensions, with 90 % of the centred codes' energy"""
    angles: Tensor
    """Degrees between the leading `rank` dimensions of both, smallest first"""
    random_angles: Tensor
    """Of random subspaces, mean over draws"""
    overlap: float
    """Share of the centred tokens' energy inside the positions' leading dimensions"""
    random_overlap: float
    """rank / dim, that of a random subspace"""
    edges: Tensor
    """Of the bins of the histograms of the cosines"""
    raw: Tensor
    """The histogram of the vectors as they are"""
    centred: Tensor
    """That of the vectors less their table's mean"""

    def sentences(self) -> list[str]:
        (mean, spread), (_, centred) = self.cosine["raw"], self.cosine["centred"]
        return [
            f"{self.name}: over {self.tokens} tokens and {self.positions} positions of {self.dim} dimensions the cosine "
            f"is {mean:+.3f} on average, with a standard deviation of {spread:.3f}; random vectors have 0 and "
            f"{self.expected:.3f}.",
            f"The mean vectors have {self.mean_energy['tokens']:.0%} of the tokens' energy and "
            f"{self.mean_energy['positions']:.0%} of the positions', with a cosine of {self.means_cosine:+.2f} between "
            f"them; without them the standard deviation is {centred:.3f}.",
            f"{self.rank} dimensions have {ENERGY:.0%} of the positions' energy, and {self.overlap:.1%} of the tokens'; "
            f"random ones have {self.random_overlap:.1%}.",
            f"The smallest angle between the leading {self.rank} dimensions of both is {self.angles[0]:.0f} degrees; "
            f"between random subspaces of that size it is {self.random_angles[0]:.0f}.",
        ]


@torch.no_grad()
def subspaces(subject: Any, *, length: int | None = None, seed: int = 0, name: str | None = None) -> Subspaces:
    """Compare the vectors of tokens with the codes of positions.

    Args:
        subject: a model that adds codes to its input (a posenc Transformer, a transformers model with a learned table),
            or a pair (token table, codes), the codes as `codes_of` takes them. length: positions, None: all of a table,
            or 512. seed: of random subspaces.

    Raises:
        InputError: a subject without such tables, tables of different widths.
    """
    words, codes, read_name = _both(subject, length)
    dim = words.shape[1]
    centred_words, centred_codes = _centred("tokens", words), _centred("codes", codes)
    raw, centred = _cosines(words, codes), _cosines(centred_words, centred_codes)
    of_words, of_codes = (torch.linalg.svd(x, full_matrices=False) for x in (centred_words, centred_codes))
    shares = of_codes.S.square().cumsum(0) / of_codes.S.square().sum()
    rank = min(int((shares < ENERGY).sum()) + 1, len(of_words.S))
    word_basis, code_basis = of_words.Vh[:rank].T, of_codes.Vh[:rank].T
    draws = torch.Generator().manual_seed(seed)
    random = [_angles(_random_basis(dim, rank, draws), _random_basis(dim, rank, draws)) for _ in range(DRAWS)]
    edges, raw_density = _histogram(raw)
    return Subspaces(
        name=name or read_name,
        tokens=len(words),
        positions=len(codes),
        dim=dim,
        cosine={k: (float(x.mean()), float(x.std())) for k, x in (("raw", raw), ("centred", centred))},
        expected=dim**-0.5,
        means_cosine=float(_cosines(words.mean(0)[None], codes.mean(0)[None])),
        mean_energy={k: _mean_energy(x) for k, x in (("tokens", words), ("positions", codes))},
        rank=rank,
        angles=_angles(word_basis, code_basis),
        random_angles=torch.stack(random).mean(0),
        overlap=float((centred_words @ code_basis).square().sum() / centred_words.square().sum()),
        random_overlap=rank / dim,
        edges=edges,
        raw=raw_density,
        centred=_histogram(centred)[1],
    )


def _both(subject: Any, length: int | None) -> tuple[Tensor, Tensor, str]:
    if isinstance(subject, nn.Module) and not isinstance(subject, nn.Embedding):
        encoding = getattr(subject, "encoding", None)
        kind = getattr(encoding, "name", None) or getattr(getattr(subject, "config", None), "model_type", "model")
        return *tables(subject, length), str(kind)
    if not isinstance(subject, tuple) or len(subject) != 2:
        raise InputError("pass a model, or a pair (token table, codes)", argument="subject")
    words, codes = subject
    words = words.weight if isinstance(words, nn.Embedding) else words
    if words.dim() != 2 or len(words) < 2 or not bool(words.isfinite().all()):
        raise InputError("token table: pass finite vectors, a tensor (vocabulary, dim) of two rows or more")
    words = words.detach().to("cpu", torch.float64)
    check_integers(2, **not_none(length=length))
    read = codes_of(codes, dim=words.shape[1]) if isinstance(codes, str) else codes_of(codes)
    if read.of != "position":
        raise InputError("it has no code per position, so there is nothing to compare with tokens", argument=read.name)
    vectors = read(torch.arange(read.limit or 512 if length is None else length))
    if vectors.shape[1] != words.shape[1]:
        raise InputError(f"codes are {vectors.shape[1]} wide and token vectors {words.shape[1]}: give both one width")
    return words, vectors, read.name


def _centred(name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(0)
    if float(centred.norm()) <= 1e-12 * float(x.norm()):
        raise InputError("all alike, so that they have no directions to compare", argument=name)
    return centred


def _cosines(one: Tensor, other: Tensor) -> Tensor:
    return nn.functional.normalize(one) @ nn.functional.normalize(other).T


def _mean_energy(x: Tensor) -> float:
    return float(x.mean(0).square().sum() / x.square().sum(-1).mean())


def _angles(one: Tensor, other: Tensor) -> Tensor:
    """Principal angles in degrees, smallest first (Bjorck and Golub 1973)."""
    return torch.linalg.svdvals(one.T @ other).clamp(0, 1).acos().rad2deg()


def _random_basis(dim: int, rank: int, draws: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(dim, rank, generator=draws, dtype=torch.float64)).Q


@dataclass(frozen=True, eq=False)
class ReadBack(Finding):
    """How well the sum x + p gives its two parts back.

    explained: share of the variance of tokens and of positions that the best linear map recovers, over all pairs of a
    token and a position. accuracy: share of `pairs` random ones whose token, and whose position, is the one nearest to what
    that map gives. Of the concatenation [x, p] both are 1.
    """

    name: str
    dim: int
    tokens: int
    positions: int
    pairs: int
    explained: Mapping[str, float]
    accuracy: Mapping[str, float]

    def sentences(self) -> list[str]:
        return [
            f"{self.name}, {self.dim} dimensions: from the sum a linear map recovers {self.explained['tokens']:.0%} of the "
            f"tokens' variance and {self.explained['positions']:.0%} of the positions'. It identifies {self.tokens} tokens "
            f"in {self.accuracy['tokens']:.0%} and {self.positions} positions in {self.accuracy['positions']:.0%} of "
            f"{self.pairs} random pairs."
        ]


@dataclass(frozen=True, eq=False)
class AddOrConcat(Finding):
    """Adding codes against concatenating them. given: what adding costs with the subject's tables; None: there was no
    subject. random: with random tables, by dim."""

    given: ReadBack | None
    random: tuple[ReadBack, ...]

    def sentences(self) -> list[str]:
        small, large = self.random[0], self.random[-1]
        return [
            *([] if self.given is None else self.given.sentences()),
            f"With random tables the sum identifies the right token in {small.accuracy['tokens']:.0%} of pairs at "
            f"{small.dim} dimensions and in {large.accuracy['tokens']:.0%} at {large.dim}; concatenation always does.",
        ]


@torch.no_grad()
def add_or_concat(
    subject: Any = None, *, dims: Sequence[int] = (8, 16, 32, 64, 128, 256), pairs: int = 1024, seed: int = 0
) -> AddOrConcat:
    """What is lost when codes are added to tokens and not concatenated.

    The best linear map back from the sum is known in closed form, since tokens and positions are drawn independently:
    x is read back as Sx (Sx + Sp)^-1 (x + p), with the covariances of both tables.

    Args:
        subject: as in `subspaces`, or None. dims: of random tables, with unit vectors. pairs: on which it is counted how
            often the nearest vector is the right one. seed: of tables and pairs.

    Raises:
        InputError: sizes below 2, or what `subspaces` raises.
    """
    check_integers(2, dims=min(dims, default=0), pairs=pairs)
    draws = torch.Generator().manual_seed(seed)
    given = None
    if subject is not None:
        words, codes, name = _both(subject, None)
        given = _read_back(name, words, codes, pairs, draws)
    random = tuple(
        _read_back("random tables", _random_units(TOKENS, dim, draws), _random_units(LENGTH, dim, draws), pairs, draws)
        for dim in dims
    )
    return AddOrConcat(given, random)


def _read_back(name: str, words: Tensor, codes: Tensor, pairs: int, draws: torch.Generator) -> ReadBack:
    chosen = {
        kind: torch.randint(len(table), (pairs,), generator=draws)
        for kind, table in (("tokens", words), ("positions", codes))
    }
    centred = {"tokens": _centred("tokens", words), "positions": _centred("codes", codes)}
    covariance = {kind: x.T @ x / len(x) for kind, x in centred.items()}
    inverse = torch.linalg.pinv(covariance["tokens"] + covariance["positions"], hermitian=True)
    sums = centred["tokens"][chosen["tokens"]] + centred["positions"][chosen["positions"]]
    explained, accuracy = {}, {}
    for kind, x in centred.items():
        back = inverse @ covariance[kind]
        explained[kind] = float((covariance[kind] @ back).trace() / covariance[kind].trace())
        nearest = torch.cat([torch.cdist(part, x).argmin(-1) for part in (sums @ back).split(512)])
        accuracy[kind] = float((nearest == chosen[kind]).double().mean())
    return ReadBack(name, words.shape[1], len(words), len(codes), pairs, explained, accuracy)


@plot("Where the words' line falls as that of the positions rises, training has cleared channels for the positions.")
def plot_energy_by_channel(ax: Axes, subject: Any) -> None:
    """The variance of the words' and of the positions' vectors in each channel. subject: as `subspaces` takes it."""
    for table, label in zip(_both(subject, None)[:2], ("words", "positions"), strict=True):
        ax.plot(table.var(0), lw=1.2, label=label)
    ax.set(xlabel="channel", ylabel="variance", ylim=(0, None))
    ax.legend()


_INSIDE = torch.linspace(-0.999, 0.999, 1001, dtype=torch.float64)
"""Where densities are drawn."""


@plot("Nearly all random directions are close to orthogonal: the more dimensions, the narrower the bell.")
def plot_random_dots(ax: Axes, finding: RandomDots) -> None:
    """Histogram of the dot products of random unit vectors, with the exact density."""
    ax.stairs(finding.density, finding.edges, fill=True, color=PALETTE[0], alpha=0.35, label="sampled")
    ax.plot(_INSIDE, dot_density(_INSIDE, finding.dim), color=PALETTE[1], label="exact")
    widest = min(1.0, 5 * finding.dim**-0.5)
    ax.set(xlabel=f"dot product of two random unit vectors, {finding.dim} dimensions", ylabel="density")
    ax.set(xlim=(-widest, widest))
    ax.legend()


@plot(
    "A histogram narrower than the random curve: tokens and positions are more nearly orthogonal than chance makes them."
)
def plot_cosine_histogram(ax: Axes, finding: Subspaces) -> None:
    """Cosines of all token-position pairs, raw and less the mean vectors, against random vectors."""
    ax.stairs(finding.raw, finding.edges, color=SOFT, label="raw")
    ax.stairs(finding.centred, finding.edges, fill=True, color=PALETTE[0], alpha=0.35, label="less the mean vectors")
    ax.plot(_INSIDE, dot_density(_INSIDE, finding.dim), color=PALETTE[1], label="random vectors")
    most = float(finding.edges[1:][(finding.raw + finding.centred) > 0].abs().max())
    widest = max(most, 4 * finding.expected)
    ax.set(xlabel="cosine between a token's and a position's vector", ylabel="density", xlim=(-widest, widest))
    ax.legend(fontsize="small")


@plot("Angles above the grey ones: the leading directions of tokens and positions overlap less than random ones.")
def plot_principal_angles(ax: Axes, finding: Subspaces) -> None:
    """Principal angles between the leading dimensions of tokens and of positions, against random subspaces."""
    order = torch.arange(1, len(finding.angles) + 1)
    ax.plot(order, finding.random_angles, color=SOFT, linestyle="--", label="random subspaces")
    ax.plot(order, finding.angles, "o-", color=PALETTE[0], markersize=3, label=finding.name)
    ax.set(xlabel=f"principal angle, of {finding.rank}", ylabel="degrees", ylim=(0, 92))
    ax.legend(fontsize="small")


@plot(
    "Adding costs little where there is room: with more dimensions the sum identifies both its token and its position."
)
def plot_read_back(ax: Axes, finding: AddOrConcat) -> None:
    """How often a linear map names the right token and position from their sum, by dimension."""
    dims = [one.dim for one in finding.random]
    for colour, kind in zip(PALETTE, ("tokens", "positions"), strict=False):
        ax.plot(
            dims, [one.accuracy[kind] for one in finding.random], "o-", color=colour, label=f"{kind}, random tables"
        )
        if finding.given is not None:
            label = f"{kind}, {finding.given.name}"
            ax.plot(finding.given.dim, finding.given.accuracy[kind], "*", color=colour, markersize=12, label=label)
    ax.axhline(1, color=SOFT, linestyle="--", linewidth=1, label="concatenated")
    ax.set(xlabel="dimensions", ylabel="identified from the sum", ylim=(0, 1.05))
    ax.set_xscale("log", base=2)
    ax.legend(fontsize="small")
