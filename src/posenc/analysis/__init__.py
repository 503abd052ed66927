"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.body import Body, body_of
from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.expansion import Expansion, expansion
from posenc.analysis.finding import Finding
from posenc.analysis.interaction import diagonal_parts
from posenc.analysis.symmetry import Breakers, Equivariance, breakers, encoder, equivariance
from posenc.analysis.trained import trained_model
from posenc.analysis.twins import Twins, twins

__all__ = [
    "Body",
    "Breakers",
    "Codes",
    "Equivariance",
    "Expansion",
    "Finding",
    "Twins",
    "body_of",
    "breakers",
    "codes_of",
    "diagonal_parts",
    "encoder",
    "equivariance",
    "expansion",
    "trained_model",
    "twins",
]
