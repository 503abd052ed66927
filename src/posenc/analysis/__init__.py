"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.bounds import MODELS, BaseBound, Model, base_bound, longest_length, rope_bound, smallest_base
from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.decay import Curve, Curves, Kernel, curves, kernel
from posenc.analysis.finding import Finding
from posenc.analysis.integrals import decay_asymptote, decay_integral, first_zero
from posenc.analysis.precision import PhaseError, phase_error
from posenc.analysis.radix import Counter, Digits, counter, digits
from posenc.analysis.trained import trained_model

__all__ = [
    "MODELS",
    "BaseBound",
    "Codes",
    "Counter",
    "Curve",
    "Curves",
    "Digits",
    "Finding",
    "Kernel",
    "Model",
    "PhaseError",
    "base_bound",
    "codes_of",
    "counter",
    "curves",
    "decay_asymptote",
    "decay_integral",
    "digits",
    "first_zero",
    "kernel",
    "longest_length",
    "phase_error",
    "rope_bound",
    "smallest_base",
    "trained_model",
]
