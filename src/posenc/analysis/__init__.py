# SPDX-License-Identifier: Apache-2.0
"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.analyze import Analysis, analyze
from posenc.analysis.bounds import (
    Model,
    base_bound,
    curves,
    decay_integral,
    first_zero,
    longest_length,
    rope_bound,
    safe_base,
    smallest_base,
)
from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.difference import diff
from posenc.analysis.digits import counter, digits
from posenc.analysis.expansion import expansion
from posenc.analysis.finding import Finding
from posenc.analysis.geometry import kernel, shift_matrix, spectrum
from posenc.analysis.model import VectorModel, trained_model, vector_model
from posenc.analysis.phase_errors import phase_error
from posenc.analysis.properties import bounded, deterministic, properties, steps, unique
from posenc.analysis.score_terms import four_terms
from posenc.analysis.scores import bias, rotation, scores
from posenc.analysis.subspaces import add_or_concat, random_dots, subspaces
from posenc.analysis.survival import survival
from posenc.analysis.symmetry import equivariance, twins

__all__ = [
    "Analysis", "Codes", "Finding", "Model", "VectorModel", "add_or_concat", "analyze", "base_bound",
    "bias", "bounded", "codes_of", "counter", "curves", "decay_integral", "deterministic", "diff", "digits", "equivariance",
    "expansion", "first_zero", "four_terms", "kernel", "longest_length", "phase_error", "properties", "random_dots",
    "rope_bound", "rotation", "safe_base", "scores", "shift_matrix", "smallest_base", "spectrum", "steps", "subspaces",
    "survival", "trained_model", "twins", "unique", "vector_model",
]  # fmt: skip
