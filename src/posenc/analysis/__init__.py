"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.finding import Finding
from posenc.analysis.properties import bounded, deterministic, properties, steps
from posenc.analysis.scores import Bias, Rotation, Scores, bias, rotation, scores
from posenc.analysis.trained import trained_model
from posenc.analysis.uniqueness import unique

__all__ = [
    "Bias",
    "Codes",
    "Finding",
    "Rotation",
    "Scores",
    "bias",
    "bounded",
    "codes_of",
    "deterministic",
    "properties",
    "rotation",
    "scores",
    "steps",
    "trained_model",
    "unique",
]
