"""Pictures of codes."""

from typing import TYPE_CHECKING

import torch

from posenc.analysis.codes import Codes
from posenc.analysis.plots.frame import AROUND, plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@plot("Each row is the code of one position: read along a column to see how fast a channel changes.")
def heat_map(ax: "Axes", codes: Codes, length: int = 128) -> None:
    """The codes of positions 0 .. length-1, a row each."""
    values = codes(torch.arange(length))
    most = float(values.abs().max())
    image = ax.imshow(values, aspect="auto", cmap=AROUND, vmin=-most, vmax=most, interpolation="nearest")
    ax.grid(False)
    ax.set(xlabel="channel", ylabel=codes.of)
    ax.figure.colorbar(image, ax=ax)
