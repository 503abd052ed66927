# SPDX-License-Identifier: Apache-2.0
"""Overlap of the vectors of tokens and positions: angles between their vectors, against those of random ones, and what
adding the two costs against concatenating them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from posenc.analysis.model import tables
from posenc.analysis.plotting import PALETTE, SOFT, plot
from posenc.analysis.question import AnalysisQuestion, Finding
from posenc.analysis.reading import codes_of
from posenc.errors import InputError, check_integers, check_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


BINS = 200
"""Of the histograms of cosines."""


@dataclass(frozen=True, eq=False)
class RandomDots(Finding):
    """Dot products of independent random unit vectors.

    mean, variance: of the sample; theory says 0 and 1 / dim. epsilons, measured: how often |dot| > epsilon. exact: its
    probability, since (1 + dot) / 2 is Beta((dim-1)/2, (dim-1)/2) distributed. chebyshev: its bound 1 / (dim epsilon^2),
    at most 1. edges, density: a histogram of the sample.
    """

    dim: int
    samples: int
    seed: int
    mean: float
    variance: float
    epsilons: tuple[float, ...]
    measured: Tensor
    exact: Tensor
    chebyshev: Tensor
    edges: Tensor
    density: Tensor

    def sentences(self) -> list[str]:
        return [
            f"The dot product of two random directions of {self.dim} dimensions has mean {self.mean:.4f} and variance "
            f"{self.variance:.5f} over {self.samples} pairs; theory says 0 and 1/{self.dim} = {1 / self.dim:.5f}. "
            f"They are 90 degrees apart, give or take {math.degrees(math.asin(self.dim**-0.5)):.0f}.",
            f"|dot| > {self.epsilons[-1]:g} was seen in {self.measured[-1]:.3%} of pairs; exactly it is "
            f"{self.exact[-1]:.3%}, and Chebyshev allows up to {self.chebyshev[-1]:.1%}.",
        ]


def random_dots(
    dim: int, *, samples: int = 20000, epsilons: Sequence[float] = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4), seed: int = 0
) -> RandomDots:
    """Sample the dot product of two independent unit vectors, uniform on the sphere.

    dim: at least 2. samples: pairs. epsilons: for which to count |dot| > epsilon, between 0 and 1.

    Raises:
        InputError: sizes or epsilons out of range.
    """
    check_integers(2, dim=dim, samples=samples)
    if not epsilons or not all(0 < epsilon < 1 for epsilon in epsilons):
        raise InputError(f"epsilons={tuple(epsilons)}: numbers between 0 and 1")
    draws = torch.Generator().manual_seed(seed)
    dots = torch.cat(
        [_random_units(count, dim, draws).mul(_random_units(count, dim, draws)).sum(-1) for count in _chunks(samples)]
    )
    at = torch.tensor(epsilons, dtype=torch.float64)
    edges, density = _histogram(dots)
    return RandomDots(
        dim=dim,
        samples=samples,
        seed=seed,
        mean=float(dots.mean()),
        variance=float(dots.var()),
        epsilons=tuple(epsilons),
        measured=(dots.abs() > at[:, None]).double().mean(-1),
        exact=torch.stack([_tail(float(epsilon), dim) for epsilon in at]),
        chebyshev=(1 / (dim * at.square())).clamp(max=1),
        edges=edges,
        density=density,
    )


def dot_density(dots: Tensor, dim: int) -> Tensor:
    """Density of the dot product of two random unit vectors: (1 - dot^2)^((dim - 3) / 2), normalised."""
    norm = math.lgamma(dim / 2) - math.lgamma((dim - 1) / 2) - 0.5 * math.log(math.pi)
    return torch.exp(norm + (dim - 3) / 2 * torch.log1p(-dots.double().square()))


def _tail(epsilon: float, dim: int) -> Tensor:
    """P(|dot| > epsilon). Over the angle t = asin(dot) the density is cos(t)^(dim-2), smooth for every dim."""
    angles = torch.linspace(math.asin(epsilon), math.pi / 2, 20001, dtype=torch.float64)
    norm = math.lgamma(dim / 2) - math.lgamma((dim - 1) / 2) - 0.5 * math.log(math.pi)
    return 2 * math.exp(norm) * torch.trapezoid(angles.cos().clamp(min=0) ** (dim - 2), angles)


def _chunks(samples: int, size: int = 4096) -> list[int]:
    return [min(size, samples - start) for start in range(0, samples, size)]


def _random_units(count: int, dim: int, draws: torch.Generator) -> Tensor:
    return nn.functional.normalize(torch.randn(count, dim, generator=draws, dtype=torch.float64))


def _histogram(values: Tensor) -> tuple[Tensor, Tensor]:
    histogram = torch.histogram(values.double(), BINS, range=(-1.0, 1.0), density=True)
    return histogram.bin_edges, histogram.hist


@dataclass(frozen=True, eq=False)
class Subspaces(Finding):
    """How the vectors of tokens and of positions lie to each other.

    cosine: mean and spread of the cosine over all pairs, as they are and with each table's mean taken away; random
    vectors have mean 0 and spread `expected` = dim^-1/2. means_cosine: between the two mean vectors. mean_energy: the
    share of each table's energy that is its mean vector.
    rank: dimensions that hold `energy` of the centred codes' energy. angles: degrees between the leading `rank`
    dimensions of both, smallest first; random_angles: of random subspaces, mean over draws.
    overlap: share of the centred tokens' energy inside the positions' leading dimensions; a random subspace holds
    rank / dim, random_overlap. position_overlap: of the centred codes' energy inside the tokens' leading dimensions.
    edges, raw, centred: histograms of the cosines.
    """

    name: str
    tokens: int
    positions: int
    dim: int
    cosine: Mapping[str, tuple[float, float]]
    expected: float
    means_cosine: float
    mean_energy: Mapping[str, float]
    rank: int
    energy: float
    angles: Tensor
    random_angles: Tensor
    overlap: float
    position_overlap: float
    random_overlap: float
    edges: Tensor
    raw: Tensor
    centred: Tensor

    def sentences(self) -> list[str]:
        (mean, spread), (_, centred) = self.cosine["raw"], self.cosine["centred"]
        return [
            f"{self.name}: over {self.tokens} tokens and {self.positions} positions of {self.dim} dimensions the cosine "
            f"is {mean:+.3f} on average and spreads by {spread:.3f}; random vectors have 0 and {self.expected:.3f}.",
            f"The mean vectors hold {self.mean_energy['tokens']:.0%} of the tokens' energy and "
            f"{self.mean_energy['positions']:.0%} of the positions', with a cosine of {self.means_cosine:+.2f} between "
            f"them; without them the cosine spreads by {centred:.3f}.",
            f"{self.rank} dimensions hold {self.energy:.0%} of the positions' energy, and inside them lies "
            f"{self.overlap:.1%} of the tokens'; inside random ones {self.random_overlap:.1%} would lie.",
            f"The smallest angle between the leading {self.rank} dimensions of both is {self.angles[0]:.0f} degrees; "
            f"between random subspaces of that size it is {self.random_angles[0]:.0f}.",
        ]


@torch.no_grad()
def subspaces(
    subject: Any,
    *,
    tokens: Tensor | None = None,
    length: int | None = None,
    energy: float = 0.9,
    draws: int = 20,
    seed: int = 0,
    name: str | None = None,
) -> Subspaces:
    """Compare the vectors of tokens with the codes of positions.

    Args:
        subject: a model that adds codes to its input (a posenc Transformer, a transformers model with a learned table),
            or a pair (token table, codes), the codes as `codes_of` takes them. tokens: ids whose vectors count, None:
            all. length: positions, None: all of a table, or 512. energy: how much of the codes' the leading dimensions
            hold. draws: of random subspaces. seed: of these.

    Raises:
        InputError: a subject without such tables, tables of different widths, ids outside the vocabulary.
    """
    if not 0 < energy < 1:
        raise InputError(f"energy={energy}: a share between 0 and 1")
    check_sizes(draws=draws)
    words, codes, read_name = _both(subject, length)
    if tokens is not None:
        used = tokens.flatten().unique().long()
        if not len(used) or int(used.min()) < 0 or int(used.max()) >= len(words):
            raise InputError(f"tokens: ids must lie between 0 and {len(words) - 1}, the vocabulary")
        words = words[used]
    dim = words.shape[1]
    centred_words, centred_codes = _centred("tokens", words), _centred("codes", codes)
    raw, centred = _cosines(words, codes), _cosines(centred_words, centred_codes)
    of_words, of_codes = (torch.linalg.svd(x, full_matrices=False) for x in (centred_words, centred_codes))
    shares = of_codes.S.square().cumsum(0) / of_codes.S.square().sum()
    rank = min(int((shares < energy).sum()) + 1, len(of_words.S))
    word_basis, code_basis = of_words.Vh[:rank].T, of_codes.Vh[:rank].T
    generator = torch.Generator().manual_seed(seed)
    random = [_angles(_random_basis(dim, rank, generator), _random_basis(dim, rank, generator)) for _ in range(draws)]
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
        energy=energy,
        angles=_angles(word_basis, code_basis),
        random_angles=torch.stack(random).mean(0),
        overlap=_inside(centred_words, code_basis),
        position_overlap=_inside(centred_codes, word_basis),
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
        raise InputError("subject: pass a model, or a pair (token table, codes)")
    words, codes = subject
    words = words.weight if isinstance(words, nn.Embedding) else words
    if not isinstance(words, Tensor) or words.dim() != 2 or len(words) < 2 or not bool(words.isfinite().all()):
        raise InputError("token table: pass finite vectors, a tensor (vocabulary, dim) of two rows or more")
    words = words.detach().to("cpu", torch.float64)
    if length is not None and length < 2:
        raise InputError(f"length={length}: compare at least 2 positions")
    read = codes_of(codes, dim=words.shape[1]) if isinstance(codes, str) else codes_of(codes)
    if read.of != "position":
        raise InputError(f"{read.name}: it has no code per position, so there is nothing to compare with tokens")
    vectors = read(torch.arange(read.limit or 512 if length is None else length))
    if vectors.shape[1] != words.shape[1]:
        raise InputError(f"codes are {vectors.shape[1]} wide and token vectors {words.shape[1]}: give both one width")
    return words, vectors, read.name


def _centred(name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(0)
    if float(centred.norm()) <= 1e-12 * float(x.norm()):
        raise InputError(f"{name}: all alike, so that they have no directions to compare")
    return centred


def _cosines(one: Tensor, other: Tensor) -> Tensor:
    return nn.functional.normalize(one) @ nn.functional.normalize(other).T


def _mean_energy(x: Tensor) -> float:
    return float(x.mean(0).square().sum() / x.square().sum(-1).mean())


def _inside(x: Tensor, basis: Tensor) -> float:
    return float((x @ basis).square().sum() / x.square().sum())


def _angles(one: Tensor, other: Tensor) -> Tensor:
    """Principal angles in degrees, smallest first (Bjorck and Golub 1973)."""
    return torch.linalg.svdvals(one.T @ other).clamp(0, 1).acos().rad2deg()


def _random_basis(dim: int, rank: int, draws: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(dim, rank, generator=draws, dtype=torch.float64)).Q


@dataclass(frozen=True, eq=False)
class ReadBack(Finding):
    """How well the sum x + p gives its two parts back.

    explained: share of the variance of tokens and of positions that the best linear map recovers, over all pairs of a
    token and a position. found: share of `pairs` random ones whose token, and whose position, is the one nearest to what
    that map gives. Of the concatenation [x, p] both are 1.
    """

    name: str
    dim: int
    tokens: int
    positions: int
    pairs: int
    explained: Mapping[str, float]
    found: Mapping[str, float]

    def sentences(self) -> list[str]:
        return [
            f"{self.name}, {self.dim} dimensions: from the sum a linear map recovers {self.explained['tokens']:.0%} of the "
            f"tokens' variance and {self.explained['positions']:.0%} of the positions', enough to name the right one of "
            f"{self.tokens} tokens in {self.found['tokens']:.0%} and of {self.positions} positions in "
            f"{self.found['positions']:.0%} of {self.pairs} random pairs."
        ]


@dataclass(frozen=True, eq=False)
class AddOrConcat(Finding):
    """Adding codes against concatenating them.

    identity_error: largest difference between [x, p] [We; Wp] and x We + p Wp. given: what adding costs with the
    subject's own tables; None: there was no subject. random: with random tables, by dim.
    """

    identity_error: float
    given: ReadBack | None
    random: tuple[ReadBack, ...]

    def sentences(self) -> list[str]:
        small, large = self.random[0], self.random[-1]
        return [
            "[x, p] [We; Wp] = x We + p Wp: concatenation is addition with a projection of the position's own, and adding "
            f"is the case We = Wp (checked to {self.identity_error:.1g}).",
            *([] if self.given is None else self.given.sentences()),
            f"With random tables the sum names the right token in {small.found['tokens']:.0%} of pairs at {small.dim} "
            f"dimensions and in {large.found['tokens']:.0%} at {large.dim}; concatenation never loses one.",
        ]


@torch.no_grad()
def add_or_concat(
    subject: Any = None,
    *,
    dims: Sequence[int] = (8, 16, 32, 64, 128, 256),
    tokens: int = 256,
    length: int = 128,
    pairs: int = 1024,
    seed: int = 0,
) -> AddOrConcat:
    """What is lost when codes are added to tokens and not set beside them.

    The best linear map back from the sum is known in closed form, since tokens and positions are drawn independently:
    x is read back as Sx (Sx + Sp)^-1 (x + p), with the covariances of both tables.

    Args:
        subject: as in `subspaces`, or None. dims, tokens, length: of random tables, with unit vectors. pairs: on which
            it is counted how often the nearest vector is the right one. seed: of tables and pairs.

    Raises:
        InputError: sizes below 2, or what `subspaces` raises.
    """
    if not dims or min(*dims, tokens, length, pairs) < 2:
        raise InputError(f"dims={tuple(dims)}, tokens={tokens}, length={length}, pairs={pairs}: each at least 2")
    draws = torch.Generator().manual_seed(seed)
    given = None
    if subject is not None:
        words, codes, name = _both(subject, None)
        given = _read_back(name, words, codes, pairs, draws)
    random = tuple(
        _read_back("random tables", _random_units(tokens, dim, draws), _random_units(length, dim, draws), pairs, draws)
        for dim in dims
    )
    dim = dims[-1]
    x, p = _random_units(tokens, dim, draws), _random_units(tokens, dim, draws)
    of_x, of_p = (torch.randn(dim, dim, generator=draws, dtype=torch.float64) for _ in range(2))
    difference = torch.cat((x, p), -1) @ torch.cat((of_x, of_p)) - (x @ of_x + p @ of_p)
    return AddOrConcat(identity_error=float(difference.abs().max()), given=given, random=random)


def _read_back(name: str, words: Tensor, codes: Tensor, pairs: int, draws: torch.Generator) -> ReadBack:
    chosen = {
        kind: torch.randint(len(table), (pairs,), generator=draws)
        for kind, table in (("tokens", words), ("positions", codes))
    }
    centred = {"tokens": _centred("tokens", words), "positions": _centred("codes", codes)}
    covariance = {kind: x.T @ x / len(x) for kind, x in centred.items()}
    inverse = torch.linalg.pinv(covariance["tokens"] + covariance["positions"], hermitian=True)
    sums = centred["tokens"][chosen["tokens"]] + centred["positions"][chosen["positions"]]
    explained, named = {}, {}
    for kind, x in centred.items():
        back = inverse @ covariance[kind]
        explained[kind] = float((covariance[kind] @ back).trace() / covariance[kind].trace())
        nearest = torch.cat([torch.cdist(part, x).argmin(-1) for part in (sums @ back).split(512)])
        named[kind] = float((nearest == chosen[kind]).double().mean())
    return ReadBack(name, words.shape[1], len(words), len(codes), pairs, explained, named)


_INSIDE = torch.linspace(-0.999, 0.999, 1001, dtype=torch.float64)
"""Where densities are drawn."""


@plot("Nearly all random directions are close to orthogonal: the more dimensions, the narrower the bell.")
def plot_random_dots(ax: "Axes", finding: RandomDots) -> None:
    """Histogram of the dot products of random unit vectors, with the exact density."""
    ax.stairs(finding.density, finding.edges, fill=True, color=PALETTE[0], alpha=0.35, label="sampled")
    ax.plot(_INSIDE, dot_density(_INSIDE, finding.dim), color=PALETTE[1], label="exact")
    widest = min(1.0, 5 * finding.dim**-0.5)
    ax.set(xlabel=f"dot product of two random unit vectors, {finding.dim} dimensions", ylabel="density")
    ax.set(xlim=(-widest, widest))
    ax.legend(fontsize="small")


@plot("Chebyshev's bound holds, and promises far less than is true: the exact tail falls off like a bell's.")
def plot_random_tails(ax: "Axes", finding: RandomDots) -> None:
    """How often a dot product of random unit vectors exceeds epsilon: measured, exactly, and at most by Chebyshev."""
    ax.plot(finding.epsilons, finding.chebyshev, "v--", color=PALETTE[1], label="at most (Chebyshev)")
    ax.plot(finding.epsilons, finding.exact, "-", color=PALETTE[0], label="exactly")
    ax.plot(
        finding.epsilons,
        finding.measured.where(finding.measured > 0, torch.nan),
        "o",
        color=PALETTE[2],
        label="measured",
    )
    ax.set(xlabel="epsilon", ylabel="share of pairs with |dot| > epsilon", yscale="log")
    ax.legend(fontsize="small")


@plot(
    "A histogram narrower than the random curve: tokens and positions are more nearly orthogonal than chance makes them."
)
def plot_cosine_histogram(ax: "Axes", finding: Subspaces) -> None:
    """Cosines of all token-position pairs, as they are and less the mean vectors, against random vectors."""
    ax.stairs(finding.raw, finding.edges, color=SOFT, label="as they are")
    ax.stairs(finding.centred, finding.edges, fill=True, color=PALETTE[0], alpha=0.35, label="less the mean vectors")
    ax.plot(_INSIDE, dot_density(_INSIDE, finding.dim), color=PALETTE[1], label="random vectors")
    most = float(finding.edges[1:][(finding.raw + finding.centred) > 0].abs().max())
    widest = max(most, 4 * finding.expected)
    ax.set(xlabel="cosine between a token's and a position's vector", ylabel="density", xlim=(-widest, widest))
    ax.legend(fontsize="small")


@plot("Angles above the grey ones: the leading directions of tokens and positions overlap less than random ones.")
def plot_principal_angles(ax: "Axes", finding: Subspaces) -> None:
    """Principal angles between the leading dimensions of tokens and of positions, against random subspaces."""
    order = torch.arange(1, len(finding.angles) + 1)
    ax.plot(order, finding.random_angles, color=SOFT, linestyle="--", label="random subspaces")
    ax.plot(order, finding.angles, "o-", color=PALETTE[0], markersize=3, label=finding.name)
    ax.set(xlabel=f"principal angle, of {finding.rank}", ylabel="degrees", ylim=(0, 92))
    ax.legend(fontsize="small")


@plot(
    "Adding costs little where there is room: with more dimensions the sum identifies both its token and its position."
)
def plot_read_back(ax: "Axes", finding: AddOrConcat) -> None:
    """How often a linear map names the right token and position from their sum, by dimension."""
    dims = [one.dim for one in finding.random]
    for colour, kind in zip(PALETTE, ("tokens", "positions"), strict=False):
        ax.plot(dims, [one.found[kind] for one in finding.random], "o-", color=colour, label=f"{kind}, random tables")
        if finding.given is not None:
            ax.plot(finding.given.dim, finding.given.found[kind], "*", color=colour, markersize=12, label=f"{kind}, {finding.given.name}")  # fmt: skip
    ax.axhline(1, color=SOFT, linestyle="--", linewidth=1, label="concatenated")
    ax.set(xlabel="dimensions", ylabel="named rightly from the sum", ylim=(0, 1.05))
    ax.set_xscale("log", base=2)
    ax.legend(fontsize="small")


SUBSPACES = AnalysisQuestion(
    "Do tokens and positions use separate subspaces?",
    lambda t: subspaces(t.adding_model, seed=t.seed, name=t.name),
    lambda t, finding: (plot_cosine_histogram.of(finding), plot_principal_angles.of(finding)),
)
SUM = AnalysisQuestion(
    "What does adding codes cost, against concatenating them?",
    lambda t: add_or_concat(t.adding_model, seed=t.seed),
    lambda t, finding: (plot_read_back.of(finding),),
)
