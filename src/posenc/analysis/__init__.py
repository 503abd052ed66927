# SPDX-License-Identifier: Apache-2.0
"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.analyze import Analysis, analyze
from posenc.analysis.body import Body, body_of
from posenc.analysis.bounds import MODELS, Model, base_bound, longest_length, rope_bound, smallest_base
from posenc.analysis.codes import codes_of
from posenc.analysis.decay import curves, kernel
from posenc.analysis.expansion import expansion
from posenc.analysis.finding import Finding
from posenc.analysis.integrals import decay_asymptote, decay_integral, first_zero
from posenc.analysis.interaction import diagonal_parts
from posenc.analysis.precision import phase_error
from posenc.analysis.properties import bounded, deterministic, properties, steps
from posenc.analysis.radix import counter, digits
from posenc.analysis.reading import Codes
from posenc.analysis.scores import bias, rotation, scores
from posenc.analysis.shift import shift_matrix
from posenc.analysis.spectrum import spectrum
from posenc.analysis.subspaces import add_or_concat, random_dots, subspaces
from posenc.analysis.survival import survival
from posenc.analysis.symmetry import breakers, equivariance
from posenc.analysis.terms import four_terms
from posenc.analysis.trained import trained_model
from posenc.analysis.twins import twins
from posenc.analysis.uniqueness import unique

__all__ = [
    "MODELS", "Analysis", "Body", "Codes", "Finding", "Model", "add_or_concat", "analyze", "base_bound", "bias",
    "body_of", "bounded", "breakers", "codes_of", "counter", "curves", "decay_asymptote", "decay_integral",
    "deterministic", "diagonal_parts", "digits", "equivariance", "expansion", "first_zero", "four_terms", "kernel",
    "longest_length", "phase_error", "properties", "random_dots", "rope_bound", "rotation", "scores",
    "shift_matrix", "smallest_base", "spectrum", "steps", "subspaces", "survival", "trained_model", "twins",
    "unique",
]  # fmt: skip
