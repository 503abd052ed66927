"""Every plot of `posenc.analysis`: functions of a finding that return a matplotlib figure and take `ax`."""

from posenc.analysis.plots.codes import (
    dot_products,
    heat_map,
    norms,
    shift_error,
    shift_matrix,
    singular_values,
    step_sizes,
    wavelengths,
)
from posenc.analysis.plots.expansion import (
    expansion_remainder,
    expansion_terms,
    interaction_block,
    interaction_decay,
    interaction_diagonal,
)
from posenc.analysis.plots.symmetry import symmetry_bars, twins_apart

__all__ = [
    "dot_products",
    "expansion_remainder",
    "expansion_terms",
    "heat_map",
    "interaction_block",
    "interaction_decay",
    "interaction_diagonal",
    "norms",
    "shift_error",
    "shift_matrix",
    "singular_values",
    "step_sizes",
    "symmetry_bars",
    "twins_apart",
    "wavelengths",
]
