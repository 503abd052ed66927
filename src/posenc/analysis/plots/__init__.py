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
from posenc.analysis.plots.decay import base_bound, curves, integral_and_sum, kernel, rope_bound
from posenc.analysis.plots.precision import phase_error, phase_error_by_pair
from posenc.analysis.plots.radix import counter, digits, squeeze

__all__ = [
    "base_bound",
    "counter",
    "curves",
    "digits",
    "dot_products",
    "heat_map",
    "integral_and_sum",
    "kernel",
    "norms",
    "phase_error",
    "phase_error_by_pair",
    "rope_bound",
    "shift_error",
    "shift_matrix",
    "singular_values",
    "squeeze",
    "step_sizes",
    "wavelengths",
]
