# SPDX-License-Identifier: Apache-2.0
"""Attention in one picture: scores, and the weights that softmax makes of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.analysis.finding import Axes, plot


@plot("Left the scores, of either sign; right the weights that softmax makes of each row.", size=(6.4, 3.2))
def plot_softmax(ax: Axes, words: Sequence[str], scores: Tensor, weights: Tensor) -> None:
    """The scores of queries (rows) and keys (columns), both (n, n), beside the weights, with their numbers."""
    n = len(words)
    gap = torch.full((n, 1), torch.nan)
    shown = torch.cat([scores / scores.abs().max(), gap, weights], 1)
    ax.imshow(shown.numpy(), cmap="RdBu_r", vmin=-1.5, vmax=1.5, interpolation="nearest")
    ax.grid(False)
    for row in range(n):
        for column in range(n):
            for start, numbers in ((0, scores), (n + 1, weights)):
                ax.text(start + column, row, f"{float(numbers[row, column]):.2f}", ha="center", va="center")
    ax.set_yticks(range(n), words)
    ax.set_xticks([*range(n), *range(n + 1, 2 * n + 1)], [*words, *words])
    ax.set(xlabel="keys: left scores, right weights", ylabel="queries")
