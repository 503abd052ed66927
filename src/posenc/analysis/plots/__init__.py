# SPDX-License-Identifier: Apache-2.0
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
from posenc.analysis.plots.expansion import (
    expansion_remainder,
    expansion_terms,
    interaction_block,
    interaction_decay,
    interaction_diagonal,
)
from posenc.analysis.plots.precision import phase_error, phase_error_by_pair
from posenc.analysis.plots.radix import counter, digits, squeeze
from posenc.analysis.plots.scores import bias_by_distance, effective_scores, pair_wavelengths, scores_by_head
from posenc.analysis.plots.subspaces import cosine_histogram, principal_angles, random_dots, random_tails, read_back
from posenc.analysis.plots.survival import probe_transfer, survival
from posenc.analysis.plots.symmetry import symmetry_bars, twins_apart
from posenc.analysis.plots.terms import position_by_distance, position_map, pruning_cost, term_shares

__all__ = [
    "base_bound",
    "bias_by_distance",
    "cosine_histogram",
    "counter",
    "curves",
    "digits",
    "dot_products",
    "effective_scores",
    "expansion_remainder",
    "expansion_terms",
    "heat_map",
    "integral_and_sum",
    "interaction_block",
    "interaction_decay",
    "interaction_diagonal",
    "kernel",
    "norms",
    "pair_wavelengths",
    "phase_error",
    "phase_error_by_pair",
    "position_by_distance",
    "position_map",
    "principal_angles",
    "probe_transfer",
    "pruning_cost",
    "random_dots",
    "random_tails",
    "read_back",
    "rope_bound",
    "scores_by_head",
    "shift_error",
    "shift_matrix",
    "singular_values",
    "squeeze",
    "step_sizes",
    "survival",
    "symmetry_bars",
    "term_shares",
    "twins_apart",
    "wavelengths",
]
