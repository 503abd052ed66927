# SPDX-License-Identifier: Apache-2.0
"""Every plot of `posenc.analysis`: functions of a finding that return a matplotlib figure and take `ax`."""

from posenc.analysis.bounds import plot_base_bound as base_bound
from posenc.analysis.bounds import plot_curves as curves
from posenc.analysis.bounds import plot_rope_bound as rope_bound
from posenc.analysis.digits import plot_counter as counter
from posenc.analysis.digits import plot_digits as digits
from posenc.analysis.digits import plot_squeeze as squeeze
from posenc.analysis.expansion import plot_expansion_terms as expansion_terms
from posenc.analysis.expansion import plot_interaction_block as interaction_block
from posenc.analysis.expansion import plot_interaction_decay as interaction_decay
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
from posenc.analysis.score_terms import plot_position_by_distance as position_by_distance
from posenc.analysis.score_terms import plot_position_map as position_map
from posenc.analysis.score_terms import plot_pruning_cost as pruning_cost
from posenc.analysis.score_terms import plot_term_shares as term_shares
from posenc.analysis.scores import plot_bias_by_distance as bias_by_distance
from posenc.analysis.scores import plot_effective_scores as effective_scores
from posenc.analysis.scores import plot_pair_wavelengths as pair_wavelengths
from posenc.analysis.scores import plot_scores_by_head as scores_by_head
from posenc.analysis.subspaces import plot_cosine_histogram as cosine_histogram
from posenc.analysis.subspaces import plot_principal_angles as principal_angles
from posenc.analysis.subspaces import plot_random_dots as random_dots
from posenc.analysis.subspaces import plot_read_back as read_back
from posenc.analysis.survival import plot_probe_transfer as probe_transfer
from posenc.analysis.survival import plot_survival as survival
from posenc.analysis.symmetry import plot_twins_apart as twins_apart

__all__ = [
    "base_bound", "bias_by_distance", "cosine_histogram", "counter", "curves", "digits", "dot_products",
    "effective_scores", "expansion_terms", "heat_map", "interaction_block", "interaction_decay", "kernel", "norms",
    "pair_wavelengths", "phase_error", "position_by_distance", "position_map", "principal_angles", "probe_transfer",
    "pruning_cost", "random_dots", "read_back", "rope_bound", "scores_by_head", "shift_error", "shift_matrix",
    "singular_values", "squeeze", "step_sizes", "survival", "term_shares", "twins_apart", "wavelengths",
]  # fmt: skip
