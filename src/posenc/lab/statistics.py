# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals: of a mean over seeds and windows, and of a share of hits."""

from dataclasses import dataclass
from math import sqrt

from torch import Tensor

from posenc.errors import InputError, check_tensor, shown

__all__ = ["Estimate", "estimate", "wilson"]

Z_975 = 1.959964
"""The normal distribution's 97.5 % quantile."""


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error, and the 95 % interval [low, high]."""

    mean: float
    error: float
    low: float
    high: float


def estimate(values: Tensor) -> Estimate:
    """The mean of (seeds, windows) values and its interval, over the texts and over the trainings that might have been.

    Seeds and windows are crossed: every model reads the same windows. The variance of the mean is that of the window
    means plus that of the seed means (which counts the residual twice: on the safe side), its degrees of freedom are
    Satterthwaite's. One seed does not show how trainings differ: the interval is then over windows only.
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
    half = float(stdtrit(freedom, 0.975)) * sqrt(variance)
    return Estimate(mean, sqrt(variance), mean - half, mean + half)


def wilson(hits: float, count: float) -> tuple[float, float]:
    """The 95 % interval of a share, from hits among `count` independent trials (Wilson 1927): within [0, 1], and of some
    width at 0 % and 100 % too."""
    if not 0 <= hits <= count or not count:
        raise InputError(f"hits={hits} of count={count}: pass at least 0, at most count, of at least one trial")
    share, z2 = hits / count, Z_975**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z_975 * sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return max(middle - half, 0.0), min(middle + half, 1.0)
