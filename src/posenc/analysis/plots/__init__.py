"""Every plot of `posenc.analysis`: functions of a finding that return a matplotlib figure and take `ax`."""

from posenc.analysis.plots.codes import heat_map
from posenc.analysis.plots.subspaces import cosine_histogram, principal_angles, random_dots, read_back
from posenc.analysis.plots.survival import probe_transfer, survival
from posenc.analysis.plots.terms import position_by_distance, position_map, pruning_cost, term_shares

__all__ = [
    "cosine_histogram",
    "heat_map",
    "position_by_distance",
    "position_map",
    "principal_angles",
    "probe_transfer",
    "pruning_cost",
    "random_dots",
    "read_back",
    "survival",
    "term_shares",
]
