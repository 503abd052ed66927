# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals: of a mean over seeds and windows, and of a share of hits; and which of many means differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from posenc.errors import InputError, check_tensor, shown

__all__ = ["BENJAMINI_HOCHBERG", "HOLM", "Estimate", "different", "estimate", "groups", "measurable", "wilson"]

HOLM, BENJAMINI_HOCHBERG = "Holm", "Benjamini-Hochberg"
"""Corrections for many comparisons."""
Z_975 = 1.959964
"""The normal distribution's 97.5 % quantile."""


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error, and the 95 % interval [low, high]."""

    mean: float
    error: float
    low: float
    high: float


def estimate(values: Tensor, comparisons: int = 1) -> Estimate:
    """The mean of (seeds, windows) values and its interval, over the texts and over the trainings that might have been.

    Seeds and windows are crossed: every model reads the same windows. The variance of the mean is that of the window
    means plus that of the seed means (which counts the residual twice: on the safe side), its degrees of freedom are
    Satterthwaite's. One seed does not show how trainings differ: the interval is then over windows only. comparisons: how
    many such intervals are to be right together, with a probability of 95 % (Bonferroni).
    """
    check_tensor("values", values)
    if values.dim() != 2 or len(values) < 1 or values.shape[1] < 2 or not values.is_floating_point():
        raise InputError(f"values={shown(values)}: pass (seeds, windows) losses, of two windows or more")
    if not bool(values.isfinite().all()):
        raise InputError("values=NaN or infinity: pass finite losses")
    from scipy.special import stdtrit  # the quantile of Student's t

    seeds, windows = values.shape
    mean = values.mean().item()
    parts = [(values.mean(0).var().item() / windows, windows - 1)]
    if seeds > 1:
        parts.append((values.mean(1).var().item() / seeds, seeds - 1))
    variance = sum(part for part, _ in parts)
    if variance <= 0:
        return Estimate(mean, 0.0, mean, mean)
    freedom = variance**2 / sum(part**2 / df for part, df in parts)
    half = float(stdtrit(freedom, 1 - 0.025 / comparisons)) * sqrt(variance)
    return Estimate(mean, sqrt(variance), mean - half, mean + half)


def different(values: Tensor, correction: str = HOLM) -> Tensor:
    """Which rows of (rows, texts) or (rows, seeds, texts) values have different means: bool (rows, rows).

    Every pair is compared seed by seed and text by text, as in `estimate`. correction: of the chances of all pairs: HOLM (1979)
    leaves 5 % for one or more false differences; BENJAMINI_HOCHBERG (1995), for many rows, leaves on average at most 5 % false
    among the differences found.
    """
    values = values.double()
    values = values[:, None] if values.dim() == 2 else values
    rows = len(values)
    if rows < 2:
        return torch.zeros(rows, rows, dtype=torch.bool)
    first, second = torch.triu_indices(rows, rows, 1)
    result = torch.zeros(rows, rows, dtype=torch.bool)
    result[first, second] = _found(_chances(values[first] - values[second]), correction)
    return result | result.T


def measurable(differences: Sequence[Tensor], correction: str = HOLM) -> list[bool]:
    """Which of several differences, each of (seeds, texts), have a mean other than 0, by `different`'s test and corrections.

    Raises:
        InputError: differences that are not finite.
    """
    if not all(bool(each.isfinite().all()) for each in differences):
        raise InputError("differences=NaN or infinity: pass finite differences")
    chances = [_chances(each.double()[None]) for each in differences]
    return _found(torch.cat(chances), correction).tolist() if chances else []


def _chances(gaps: Tensor) -> Tensor:
    """Of each of (rows, seeds, texts) differences: how probable a mean is that is so far from 0, or farther, if it were 0."""
    from scipy.special import stdtr  # Student's t

    _, seeds, texts = gaps.shape
    parts = [(gaps.mean(1).var(1) / texts, texts - 1)]
    if seeds > 1:
        parts.append((gaps.mean(2).var(1) / seeds, seeds - 1))
    variance, squares = (torch.stack(each).sum(0) for each in zip(*((p, p**2 / df) for p, df in parts), strict=True))
    freedom = (variance**2 / squares).nan_to_num(1.0)
    size = (gaps.mean((1, 2)).abs() / variance.sqrt()).nan_to_num(0.0, torch.inf)
    return 2 * torch.as_tensor(stdtr(freedom.numpy(), -size.numpy()))


def _found(chances: Tensor, correction: str) -> Tensor:
    """Which of the chances are low enough, all of them together."""
    ordered, order = chances.sort()
    count = len(chances)
    if correction == HOLM:
        low = (ordered * torch.arange(count, 0, -1) <= 0.05).cumprod(0).bool()
    else:
        low = (ordered * count <= 0.05 * torch.arange(1, count + 1)).flip(0).cummax(0).values.flip(0)
    return torch.zeros(count, dtype=torch.bool).scatter(0, order, low)


def groups(values: Tensor, correction: str = HOLM) -> list[int]:
    """The group of each row of (rows, texts) or (rows, seeds, texts) values, 1 with the lowest mean: a group is the best row
    that has none yet, and all others of those that are not `different` from it."""
    check_tensor("values", values)
    if values.dim() not in (2, 3) or not len(values) or values.shape[-1] < 2 or not bool(values.isfinite().all()):
        raise InputError(f"values={shown(values)}: pass finite (rows, texts) values, of two texts or more")
    apart, means, found = (
        different(values, correction),
        values.flatten(1).mean(1),
        torch.zeros(len(values), dtype=torch.int64),
    )
    while bool((found == 0).any()):
        best = int(means.masked_fill(found > 0, torch.inf).argmin())
        found[(found == 0) & ~apart[best]] = found.max() + 1
    return found.tolist()


def wilson(hits: float, count: float) -> tuple[float, float]:
    """The 95 % interval of a share, from hits among `count` independent trials (Wilson 1927): within [0, 1], and of some
    width at 0 % and 100 % too."""
    if not 0 <= hits <= count or not count:
        raise InputError(f"hits={hits} of count={count}: pass at least 0, at most count, of at least one trial")
    share, z2 = hits / count, Z_975**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z_975 * sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return max(middle - half, 0.0), min(middle + half, 1.0)
