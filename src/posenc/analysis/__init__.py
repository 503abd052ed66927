"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.finding import Finding
from posenc.analysis.properties import bounded, deterministic, properties, steps
from posenc.analysis.shift import shift_matrix
from posenc.analysis.spectrum import spectrum
from posenc.analysis.subspaces import AddOrConcat, RandomDots, Subspaces, add_or_concat, random_dots, subspaces
from posenc.analysis.survival import Survival, survival
from posenc.analysis.terms import FourTerms, four_terms
from posenc.analysis.trained import trained_model
from posenc.analysis.uniqueness import unique

__all__ = [
    "AddOrConcat",
    "Codes",
    "Finding",
    "FourTerms",
    "RandomDots",
    "Subspaces",
    "Survival",
    "add_or_concat",
    "bounded",
    "codes_of",
    "deterministic",
    "four_terms",
    "properties",
    "random_dots",
    "shift_matrix",
    "spectrum",
    "steps",
    "subspaces",
    "survival",
    "trained_model",
    "unique",
]
