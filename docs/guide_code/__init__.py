# SPDX-License-Identifier: Apache-2.0
"""What the guide computes: twins, the decay of codes, digits, subspaces, the four terms, the expansion, phases in low
precision, and how far position survives. The package has what is asked of encodings, `posenc.analysis`; with docs/ on the
path, `from guide_code import twins`."""

from guide_code.decay import curves, decay_integral, first_zero, rope_bound
from guide_code.digits import counter, digits
from guide_code.expansion import expansion
from guide_code.model import VectorModel, tables, trained_model, vector_model
from guide_code.phases import phase_error
from guide_code.score_terms import four_terms
from guide_code.subspaces import add_or_concat, random_dots, subspaces
from guide_code.survival import survival
from guide_code.symmetry import equivariance, twins

__all__ = [
    "VectorModel",
    "add_or_concat",
    "counter",
    "curves",
    "decay_integral",
    "digits",
    "equivariance",
    "expansion",
    "first_zero",
    "four_terms",
    "phase_error",
    "random_dots",
    "rope_bound",
    "subspaces",
    "survival",
    "tables",
    "trained_model",
    "twins",
    "vector_model",
]
