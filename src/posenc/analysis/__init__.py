"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.bounds import MODELS, Model, base_bound, longest_length, rope_bound, smallest_base
from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.decay import curves, kernel
from posenc.analysis.finding import Finding
from posenc.analysis.integrals import decay_asymptote, decay_integral, first_zero
from posenc.analysis.precision import phase_error
from posenc.analysis.properties import bounded, deterministic, properties, steps
from posenc.analysis.radix import counter, digits
from posenc.analysis.shift import shift_matrix
from posenc.analysis.spectrum import spectrum
from posenc.analysis.trained import trained_model
from posenc.analysis.uniqueness import unique

__all__ = [
    "MODELS",
    "Codes",
    "Finding",
    "Model",
    "base_bound",
    "bounded",
    "codes_of",
    "counter",
    "curves",
    "decay_asymptote",
    "decay_integral",
    "deterministic",
    "digits",
    "first_zero",
    "kernel",
    "longest_length",
    "phase_error",
    "properties",
    "rope_bound",
    "shift_matrix",
    "smallest_base",
    "spectrum",
    "steps",
    "trained_model",
    "unique",
]
