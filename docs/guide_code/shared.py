# SPDX-License-Identifier: Apache-2.0
"""What several questions of the guide need: scores by distance, and names and legends of plots."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posenc.analysis.finding import Axes

VARIES = 1e-20
"""Of squares, relative to their sum: variance below this is rounding."""


def by_distance(scores: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of scores (batch, heads, n, n): the distances, query minus key, at which they are visible; their mean at each, (heads,
    distances); and the share of their variance that the distance explains, (heads,), nan where they do not vary.
    visible: broadcastable to (batch, 1, n, n)."""
    n = scores.shape[-1]
    at = torch.arange(n)
    inside = visible.expand(len(scores), 1, n, n)[:, 0]
    index = (at[:, None] - at + n - 1).expand(len(scores), n, n)[inside]
    values = scores.transpose(0, 1)[:, inside]
    middle = values.mean(-1, keepdim=True)
    off = values - middle
    count = torch.bincount(index, minlength=2 * n - 1)
    means = torch.zeros(len(values), 2 * n - 1, dtype=values.dtype).index_add_(1, index, off) / count
    total = off.square().sum(-1)
    explained = 1 - (off - means[:, index]).square().sum(-1) / total
    varies = total > VARIES * values.square().sum(-1)
    occurs = count > 0
    return torch.arange(1 - n, n)[occurs], (means + middle)[:, occurs], explained.where(varies, torch.nan)


def bar_names(ax: Axes, names: Sequence[str], **options: Any) -> None:
    """Horizontal bars, the first on top, with these names."""
    ax.set_yticks(range(len(names)), list(names), **options)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)


def legend_above(ax: Axes, x: float = 0.5, **options: Any) -> None:
    ax.legend(loc="lower center", bbox_to_anchor=(x, 1), **options)
