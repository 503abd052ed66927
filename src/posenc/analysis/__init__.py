"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.finding import Finding
from posenc.analysis.scores import Bias, Rotation, Scores, bias, rotation, scores
from posenc.analysis.trained import trained_model

__all__ = [
    "Bias",
    "Codes",
    "Finding",
    "Rotation",
    "Scores",
    "bias",
    "codes_of",
    "rotation",
    "scores",
    "trained_model",
]
