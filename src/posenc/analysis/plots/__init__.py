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
from posenc.analysis.plots.scores import bias_by_distance, effective_scores, scores_by_head, wavelengths

__all__ = [
    "bias_by_distance",
    "dot_products",
    "effective_scores",
    "heat_map",
    "norms",
    "scores_by_head",
    "shift_error",
    "shift_matrix",
    "singular_values",
    "step_sizes",
    "wavelengths",
]
