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
from posenc.analysis.plots.subspaces import cosine_histogram, principal_angles, random_dots, random_tails, read_back
from posenc.analysis.plots.survival import probe_transfer, survival
from posenc.analysis.plots.terms import position_by_distance, position_map, pruning_cost, term_shares

__all__ = [
    "cosine_histogram",
    "dot_products",
    "heat_map",
    "norms",
    "position_by_distance",
    "position_map",
    "principal_angles",
    "probe_transfer",
    "pruning_cost",
    "random_dots",
    "random_tails",
    "read_back",
    "shift_error",
    "shift_matrix",
    "singular_values",
    "step_sizes",
    "survival",
    "term_shares",
    "wavelengths",
]
