"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.finding import Finding
from posenc.analysis.properties import bounded, deterministic, properties, steps
from posenc.analysis.shift import shift_matrix
from posenc.analysis.spectrum import spectrum
from posenc.analysis.trained import trained_model
from posenc.analysis.uniqueness import unique

__all__ = [
    "Codes",
    "Finding",
    "bounded",
    "codes_of",
    "deterministic",
    "properties",
    "shift_matrix",
    "spectrum",
    "steps",
    "trained_model",
    "unique",
]
