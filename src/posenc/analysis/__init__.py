"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.body import Body, body_of
from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.expansion import Expansion, expansion
from posenc.analysis.finding import Finding
from posenc.analysis.interaction import diagonal_parts
from posenc.analysis.properties import bounded, deterministic, properties, steps
from posenc.analysis.shift import shift_matrix
from posenc.analysis.spectrum import spectrum
from posenc.analysis.symmetry import Breakers, Equivariance, breakers, equivariance
from posenc.analysis.trained import trained_model
from posenc.analysis.twins import Twins, twins
from posenc.analysis.uniqueness import unique

__all__ = [
    "Body",
    "Breakers",
    "Codes",
    "Equivariance",
    "Expansion",
    "Finding",
    "Twins",
    "body_of",
    "bounded",
    "breakers",
    "codes_of",
    "deterministic",
    "diagonal_parts",
    "equivariance",
    "expansion",
    "properties",
    "shift_matrix",
    "spectrum",
    "steps",
    "trained_model",
    "twins",
    "unique",
]
