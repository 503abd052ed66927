# SPDX-License-Identifier: Apache-2.0
"""Pictures of the four terms of attention scores."""

from typing import TYPE_CHECKING

import torch

from posenc.analysis.plots.frame import AROUND, INK, PALETTE, plot
from posenc.analysis.terms import FourTerms
from posenc.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@plot("A head with a tall position-position bar attends by where tokens are, one without it by what they are.")
def term_shares(ax: "Axes", found: FourTerms) -> None:
    """Each term's share of the variance of the scores, a bar a head."""
    heads = range(len(found.share))
    bottom = torch.zeros(len(heads), dtype=found.share.dtype)
    for index, term in enumerate(found.terms):
        ax.bar(heads, found.share[:, index], bottom=bottom, color=PALETTE[index], label=term, width=0.7)
        bottom = bottom + found.share[:, index]
    ax.set(xlabel="head", ylabel="share of the scores' variance", xticks=list(heads), ylim=(0, 1))
    ax.grid(False, axis="x")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")


@plot("Diagonal stripes mean that the score depends on the distance; columns mean that one position draws all queries.")
def position_map(ax: "Axes", found: FourTerms, head: int | None = None) -> None:
    """What positions alone add to the scores of a head, query by key. head: None is that with the largest share."""
    shares = found.share[:, found.of("position-position")]
    if head is not None and not 0 <= head < len(shares):
        raise InputError(f"head={head}: the layer has heads 0 to {len(shares) - 1}")
    chosen = int(shares.argmax()) if head is None else head
    values = found.map[chosen] - found.map[chosen].nanmean()
    most = float(values.nan_to_num().abs().max()) or 1.0
    image = ax.imshow(values.numpy(), cmap=AROUND, vmin=-most, vmax=most, interpolation="nearest")
    ax.grid(False)
    ax.set(xlabel="position of the key", ylabel="position of the query", title=f"head {chosen}")
    ax.figure.colorbar(image, ax=ax, label="score, above its mean")


@plot("Where a curve peaks is how far back (or ahead) a head looks by position alone.")
def position_by_distance(ax: "Axes", found: FourTerms) -> None:
    """The mean of the position-position term at each distance, a line a head."""
    for head, values in enumerate(found.by_distance):
        alike = float(found.explained[head])
        ax.plot(
            found.distances,
            values,
            color=PALETTE[head % len(PALETTE)],
            linestyle=("-", "--", ":")[head // len(PALETTE) % 3],
            label=f"head {head} ({alike:.0%})",
        )
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.set(xlabel="distance, query minus key", ylabel="position-position score, above its mean")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small", title="(by distance alone)")


@plot("Long bars are terms that the model needs; where a bar is short, a design without that term loses little.")
def pruning_cost(ax: "Axes", found: FourTerms) -> None:
    """How much of the attention moves when a term is taken away, or only some stay, mean over heads."""
    moved = {f"without {term}": found.removed[:, index] for index, term in enumerate(found.terms)}
    moved |= {f"kept: {name}": values for name, values in found.kept.items()}
    rows = range(len(moved))
    colours = [PALETTE[0]] * len(found.terms) + [PALETTE[1]] * len(found.kept)
    ax.barh(rows, [float(values.mean()) for values in moved.values()], color=colours, height=0.7)
    for row, values in enumerate(moved.values()):
        ax.plot(values, [row] * len(values), "|", color=INK, markersize=7)
    ax.set(xlabel="attention moved (total variation; a mark a head)", yticks=list(rows), yticklabels=list(moved))
    ax.grid(False, axis="y")
    ax.invert_yaxis()
