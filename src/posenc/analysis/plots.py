# SPDX-License-Identifier: Apache-2.0
"""Every plot of `posenc.analysis`: functions of a finding that return a matplotlib figure and take `ax`."""

from posenc.analysis.bounds import plot_base_bound as base_bound
from posenc.analysis.geometry import plot_dot_products as dot_products
from posenc.analysis.geometry import plot_kernel as kernel
from posenc.analysis.geometry import plot_shift_error as shift_error
from posenc.analysis.geometry import plot_shift_matrix as shift_matrix
from posenc.analysis.geometry import plot_singular_values as singular_values
from posenc.analysis.geometry import plot_wavelengths as wavelengths
from posenc.analysis.phase_errors import plot_phase_error as phase_error
from posenc.analysis.properties import plot_heat_map as heat_map
from posenc.analysis.properties import plot_norms as norms
from posenc.analysis.properties import plot_step_sizes as step_sizes
from posenc.analysis.scores import plot_bias_by_distance as bias_by_distance
from posenc.analysis.scores import plot_effective_scores as effective_scores
from posenc.analysis.scores import plot_pair_wavelengths as pair_wavelengths
from posenc.analysis.scores import plot_scores_by_head as scores_by_head

__all__ = [
    "base_bound",
    "bias_by_distance",
    "dot_products",
    "effective_scores",
    "heat_map",
    "kernel",
    "norms",
    "pair_wavelengths",
    "phase_error",
    "scores_by_head",
    "shift_error",
    "shift_matrix",
    "singular_values",
    "step_sizes",
    "wavelengths",
]
