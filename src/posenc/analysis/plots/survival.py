# SPDX-License-Identifier: Apache-2.0
"""Pictures of what is left of position behind each layer."""

from typing import TYPE_CHECKING

import torch

from posenc.analysis.plots.frame import PALETTE, SOFT, UP, plot
from posenc.analysis.survival import CUT, INTACT, SHUFFLED, UNTRAINED, WRITTEN, Survival

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@plot(
    "Compare the full lines, with and without residuals, with the grey ones: those are what chance and no training give."
)
def survival(ax: "Axes", found: Survival) -> None:
    """How much of position a linear probe explains behind each layer."""
    looks = {
        INTACT: (PALETTE[0], "-"),
        WRITTEN: (PALETTE[2], "-"),
        CUT: (PALETTE[1], "-"),
        UNTRAINED: (SOFT, "--"),
        f"{UNTRAINED}, {CUT}": (SOFT, "-."),
        SHUFFLED: (SOFT, ":"),
    }
    for kind, curve in found.curves.items():
        colour, line = looks[kind]
        # a probe can be far worse than guessing; how far says nothing
        ax.plot(
            range(len(curve.r2)), curve.r2.clamp(min=-0.1), line, color=colour, label=kind, marker="o", markersize=3
        )
    layers = len(found.curves[INTACT].r2)
    ax.set(xlabel="layer (0: input of the first)", ylabel="R² of position", ylim=(-0.12, 1.05))
    ax.set_xticks(range(0, layers, max(1, layers // 12)))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")


@plot(
    "Bright off the diagonal: the layers hold position in the same directions. Bright on it alone: each in its own.",
    (5.2, 4.2),
)
def probe_transfer(ax: "Axes", found: Survival) -> None:
    """How well the probe of one layer follows position behind another."""
    image = ax.imshow(found.transfer.numpy(), cmap=UP, vmin=0, vmax=1, interpolation="nearest")
    ax.grid(False)
    marks = torch.arange(0, len(found.transfer), max(1, len(found.transfer) // 12)).tolist()
    ax.set(xlabel="read behind layer", ylabel="probe of layer", xticks=marks, yticks=marks)
    ax.figure.colorbar(image, ax=ax, label="squared correlation with position")
