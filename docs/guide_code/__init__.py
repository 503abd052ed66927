# SPDX-License-Identifier: Apache-2.0
"""What the guide computes of models: twins, digits, subspaces, the four terms, the expansion, and how far position survives. The
package has what is asked of encodings, `posenc.analysis`; with docs/ on the path, `from guide_code import twins`."""

from guide_code.digits import counter, digits
from guide_code.expansion import expansion
from guide_code.model import VectorModel, trained_model, vector_model
from guide_code.score_terms import four_terms
from guide_code.subspaces import add_or_concat, random_dots, subspaces
from guide_code.survival import survival
from guide_code.symmetry import equivariance, twins

__all__ = [
    "VectorModel",
    "add_or_concat",
    "counter",
    "digits",
    "equivariance",
    "expansion",
    "four_terms",
    "random_dots",
    "subspaces",
    "survival",
    "trained_model",
    "twins",
    "vector_model",
]
