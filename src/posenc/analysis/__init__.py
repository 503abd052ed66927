"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.finding import Finding
from posenc.analysis.subspaces import AddOrConcat, RandomDots, Subspaces, add_or_concat, random_dots, subspaces
from posenc.analysis.survival import Survival, survival
from posenc.analysis.terms import FourTerms, four_terms
from posenc.analysis.trained import trained_model

__all__ = [
    "AddOrConcat",
    "Codes",
    "Finding",
    "FourTerms",
    "RandomDots",
    "Subspaces",
    "Survival",
    "add_or_concat",
    "codes_of",
    "four_terms",
    "random_dots",
    "subspaces",
    "survival",
    "trained_model",
]
