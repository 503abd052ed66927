# SPDX-License-Identifier: Apache-2.0
"""Which of many encodings differ: pairs of rows by the test of `posenc.lab.statistics.chances`, corrected for their number."""

from math import sqrt

import torch
from torch import Tensor

from posenc.lab import statistics
from posenc.lab.statistics import Estimate, chances, compared

HOLM, BENJAMINI_HOCHBERG = "Holm", "Benjamini-Hochberg"
"""Corrections for many comparisons."""


def contrast(values: Tensor, one: int, other: int, *, jumps: bool = False) -> Estimate:
    """How much higher the mean of one row than of another is, of (rows, seeds, sequences) values, and the interval, by the test of
    `chances`."""
    from scipy.special import stdtrit

    of_pair = compared(values.double(), torch.tensor([one]), torch.tensor([other]), jumps)
    gap, variance, freedom = (float(each) for each in of_pair)
    half = float(stdtrit(freedom, 0.975)) * sqrt(variance)
    return Estimate(gap, sqrt(variance), gap - half, gap + half)


def different(values: Tensor, correction: str = HOLM, *, jumps: bool = False) -> Tensor:
    """Which rows of (rows, sequences) or (rows, seeds, sequences) values have different means, by `chances`: bool (rows, rows).

    correction: of the chances of all pairs: HOLM (1979) leaves 5 % for one or more false differences; BENJAMINI_HOCHBERG (1995),
    for many rows, leaves on average at most 5 % false among the differences found. A pair that is not found may differ as well.
    """
    rows = len(values)
    first, second = torch.triu_indices(rows, rows, 1)
    result = torch.zeros(rows, rows, dtype=torch.bool)
    result[first, second] = found(chances(values, jumps=jumps)[first, second], correction)
    return result | result.T


def found(chances: Tensor, correction: str = HOLM) -> Tensor:
    """Which of (n,) chances are low enough, all of them together; see `different`."""
    if correction == HOLM:
        return statistics.found(chances)
    ordered, order = chances.sort()
    count = len(chances)
    low = (ordered * count <= 0.05 * torch.arange(1, count + 1)).flip(0).cummax(0).values.flip(0)
    return torch.zeros(count, dtype=torch.bool).scatter(0, order, low)
