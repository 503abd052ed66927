# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals: of a mean over seeds and windows, and of a share of hits; which of many means differ, and how probably
each is near the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import torch
from torch import Tensor

from posenc.errors import InputError, check_tensor

__all__ = ["Estimate", "average", "chances", "compared", "estimate", "found", "moderated", "near_best", "wilson"]

Z_975 = 1.959964
"""The normal distribution's 97.5 % quantile."""
DRAWS = 4000
"""Of a bootstrap."""


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error, and the 95 % interval [low, high]."""

    mean: float
    error: float
    low: float
    high: float


def estimate(values: Tensor, comparisons: int = 1) -> Estimate:
    """The mean of (seeds, windows) values and its interval, over the sequences and over the trainings that might have been.

    Seeds and windows are crossed: every model is evaluated on the same windows. The variance of the mean is that of the window
    means plus that of the seed means (which counts the residual twice: on the safe side), its degrees of freedom are
    Satterthwaite's. One seed does not show how trainings differ: the interval is then over windows only. comparisons: how
    many such intervals are to be right together, with a probability of 95 % (Bonferroni).
    """
    return average([values], comparisons)


def average(measured: Sequence[Tensor], comparisons: int = 1) -> Estimate:
    """The mean over tasks of their means, each of (seeds, windows) values as of `estimate`, measured apart from each other."""
    parts, means = [], []
    for values in measured:
        check_tensor("values", values)
        if values.dim() != 2 or len(values) < 1 or values.shape[1] < 2 or not values.is_floating_point():
            raise InputError("pass (seeds, windows) losses, of two windows or more", values=values)
        if not bool(values.isfinite().all()):
            raise InputError("has NaN or infinity: pass finite losses", argument="values")
        seeds, windows = values.shape
        parts.append((values.mean(0).var().item() / windows, windows - 1))
        if seeds > 1:
            parts.append((values.mean(1).var().item() / seeds, seeds - 1))
        means.append(values.mean().item())
    from scipy.special import stdtrit  # the quantile of Student's t

    count = len(means)
    mean, variance = sum(means) / count, sum(part for part, _ in parts)
    if variance <= 0:
        return Estimate(mean, 0.0, mean, mean)
    freedom = variance**2 / sum(part**2 / df for part, df in parts)
    half = float(stdtrit(freedom, 1 - 0.025 / comparisons)) * sqrt(variance) / count
    return Estimate(mean, sqrt(variance) / count, mean - half, mean + half)


def moderated(values: Tensor, *, jumps: bool = False) -> tuple[Tensor, float]:
    """The variance of each row's trainings, of (rows, seeds, sequences) values, and its degrees of freedom.

    The few seeds of a row are not enough for its variance: where that is small by chance, differences seem certain. A small one
    is therefore drawn towards those of all rows, as far as they agree: the moderated t-test of Smyth 2004, "Linear models and
    empirical Bayes methods for assessing differential expression"; a large one stays, for some encodings do train less
    reliably. What a seed changes in all rows alike is left out, for rows are compared seed by seed. jumps: trainings learn all or little, and a row whose trainings did the same by chance shows
    no variance; then none is below the mean of all rows.
    """
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    rows, seeds, _ = values.shape
    means = values.mean(2)
    rest = means - means.mean(1, keepdim=True) - means.mean(0) + means.mean()
    own, df = rest.square().sum(1) / (seeds - 1) * rows / (rows - 1), seeds - 1
    most = float(df * (rows - 1))
    if not bool((own > 0).any()):
        return own, most
    logs = own.clamp(min=1e-5 * float(own[own > 0].median())).log()
    spread = float(logs.var()) - float(polygamma(1, df / 2))
    least, widest = float(polygamma(1, most)), float(polygamma(1, 0.25))
    if spread <= least:  # they agree as far as so many seeds can show
        variance, freedom = own.mean().expand(rows), most
    else:
        prior = 2 * float(brentq(lambda x: float(polygamma(1, x)) - spread, 0.25, most)) if spread < widest else 0.5
        centre = float(logs.mean() - digamma(df / 2) + log(df / 2) + digamma(prior / 2) - log(prior / 2))
        variance, freedom = (prior * exp(centre) + df * own) / (prior + df), min(prior + df, most)
    variance = torch.maximum(variance, own)
    return variance.clamp(min=float(own.mean())) if jumps else variance, freedom


def compared(values: Tensor, first: Tensor, second: Tensor, jumps: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Of some pairs of rows: the difference of their means, its variance, and that variance's degrees of freedom."""
    _, seeds, texts = values.shape
    by_text = values.mean(1)
    gaps = by_text[first] - by_text[second]
    of_texts = gaps.var(1) / texts
    variance, squares = of_texts, of_texts.square() / (texts - 1)
    if seeds > 1:
        of_row, freedom = moderated(values, jumps=jumps)
        of_seeds = (of_row[first] + of_row[second]) / seeds
        variance, squares = variance + of_seeds, squares + of_seeds.square() / freedom
    return gaps.mean(1), variance, (variance.square() / squares).nan_to_num(1.0)


def chances(values: Tensor, *, jumps: bool = False) -> Tensor:
    """Of every pair of rows of (rows, sequences) or (rows, seeds, sequences) values: how probable a difference of their means is that is
    as large, or larger, if there were none. (rows, rows). Rows are compared text by text and seed by seed; how trainings
    differ: by `moderated`."""
    from scipy.special import stdtr  # Student's t

    values = values.double()
    values = values[:, None] if values.dim() == 2 else values
    rows = len(values)
    result = torch.ones(rows, rows, dtype=torch.float64)
    if rows > 1:
        first, second = torch.triu_indices(rows, rows, 1)
        gaps, variance, freedom = compared(values, first, second, jumps)
        size = (gaps.abs() / variance.sqrt()).nan_to_num(0.0, torch.inf)
        result[first, second] = result[second, first] = 2 * torch.as_tensor(stdtr(freedom.numpy(), -size.numpy()))
    return result


def found(chances: Tensor) -> Tensor:
    """Which of (n,) chances are low enough, all of them together: by Holm's correction (1979), which leaves 5 % for one or more false
    ones."""
    ordered, order = chances.sort()
    low = (ordered * torch.arange(len(chances), 0, -1) <= 0.05).cumprod(0).bool()
    return torch.zeros(len(chances), dtype=torch.bool).scatter(0, order, low)


def near_best(values: Tensor, margin: float) -> Tensor:
    """How probably the mean of each row is within a margin of the lowest, of (rows, sequences) or (rows, seeds, sequences) values: (rows,).

    A bootstrap over seeds and over sequences, both drawn for all rows alike, which read the same sequences and start from the same
    seeds. Its draws are stretched by n / (n - 1) of the variance, without which few seeds would seem surer than they are.
    """
    check_tensor("values", values)
    if values.dim() not in (2, 3) or not len(values) or values.shape[-1] < 2 or not bool(values.isfinite().all()):
        raise InputError("pass finite (rows, samples) values, of two samples or more", values=values)
    values = values.double()
    values = values[:, None] if values.dim() == 2 else values
    draws = torch.Generator().manual_seed(0)
    _, seeds, texts = values.shape
    means = torch.einsum("rst,bs,bt->br", values, _weights(seeds, draws), _weights(texts, draws))
    return (means <= means.min(1, keepdim=True).values + margin).double().mean(0)


def _weights(count: int, draws: torch.Generator) -> Tensor:
    """How often each of a number of things is drawn, (DRAWS, count), the sum 1."""
    drawn = torch.randint(count, (DRAWS, count), generator=draws)
    share = torch.zeros(DRAWS, count, dtype=torch.float64).scatter_add_(
        1, drawn, torch.ones(1).double().expand_as(drawn)
    )
    return 1 / count + (share / count - 1 / count) * sqrt(count / max(count - 1, 1))


def wilson(hits: float, count: float) -> tuple[float, float]:
    """The 95 % interval of a share, from hits among `count` independent trials (Wilson 1927): within [0, 1], and of some
    width at 0 % and 100 % too."""
    if not 0 <= hits <= count or not count:
        raise InputError("pass at least 0, at most count, of at least one trial", hits=hits, count=count)
    share, z2 = hits / count, Z_975**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z_975 * sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return max(middle - half, 0.0), min(middle + half, 1.0)
