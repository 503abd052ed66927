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

__all__ = [
    "dot_products",
    "heat_map",
    "norms",
    "shift_error",
    "shift_matrix",
    "singular_values",
    "step_sizes",
    "wavelengths",
]
