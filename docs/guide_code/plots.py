# SPDX-License-Identifier: Apache-2.0
"""The plots of what `guide_code` computes; each takes `ax`."""

from guide_code.decay import plot_curves as curves
from guide_code.decay import plot_rope_bound as rope_bound
from guide_code.digits import plot_counter as counter
from guide_code.digits import plot_digits as digits
from guide_code.digits import plot_squeeze as squeeze
from guide_code.expansion import plot_expansion_terms as expansion_terms
from guide_code.expansion import plot_interaction_block as interaction_block
from guide_code.expansion import plot_interaction_decay as interaction_decay
from guide_code.phases import plot_phase_error as phase_error
from guide_code.score_terms import plot_position_by_distance as position_by_distance
from guide_code.score_terms import plot_position_map as position_map
from guide_code.score_terms import plot_pruning_cost as pruning_cost
from guide_code.score_terms import plot_term_shares as term_shares
from guide_code.subspaces import plot_cosine_histogram as cosine_histogram
from guide_code.subspaces import plot_energy_by_channel as energy_by_channel
from guide_code.subspaces import plot_principal_angles as principal_angles
from guide_code.subspaces import plot_random_dots as random_dots
from guide_code.subspaces import plot_read_back as read_back
from guide_code.survival import plot_probe_transfer as probe_transfer
from guide_code.survival import plot_survival as survival
from guide_code.symmetry import plot_twins_apart as twins_apart
from guide_code.weights import plot_softmax as softmax

__all__ = [
    "cosine_histogram",
    "counter",
    "curves",
    "digits",
    "energy_by_channel",
    "expansion_terms",
    "interaction_block",
    "interaction_decay",
    "phase_error",
    "position_by_distance",
    "position_map",
    "principal_angles",
    "probe_transfer",
    "pruning_cost",
    "random_dots",
    "read_back",
    "rope_bound",
    "softmax",
    "squeeze",
    "survival",
    "term_shares",
    "twins_apart",
]
