"""Every plot of `posenc.analysis`: functions of a finding that return a matplotlib figure and take `ax`."""

from posenc.analysis.plots.codes import heat_map
from posenc.analysis.plots.expansion import (
    expansion_remainder,
    expansion_terms,
    interaction_block,
    interaction_decay,
    interaction_diagonal,
)
from posenc.analysis.plots.symmetry import symmetry_bars, twins_apart

__all__ = [
    "expansion_remainder",
    "expansion_terms",
    "heat_map",
    "interaction_block",
    "interaction_decay",
    "interaction_diagonal",
    "symmetry_bars",
    "twins_apart",
]
