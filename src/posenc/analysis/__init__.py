# SPDX-License-Identifier: Apache-2.0
"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.analyze import Analysis, analyze
from posenc.analysis.bounds import base_bound, longest_length, smallest_base
from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.difference import diff
from posenc.analysis.finding import Finding
from posenc.analysis.geometry import kernel, shift_matrix, spectrum
from posenc.analysis.properties import bounded, deterministic, properties, steps, unique
from posenc.analysis.scores import bias, rotation, scores

__all__ = [
    "Analysis", "Codes", "Finding", "analyze", "base_bound", "bias", "bounded", "codes_of", "deterministic", "diff", "kernel", "longest_length", "properties", "rotation", "scores", "shift_matrix", "smallest_base", "spectrum", "steps", "unique",
]  # fmt: skip
