"""Properties, proofs and pictures of any encoding: what it does to positions, computed."""

from posenc.analysis.codes import Codes, codes_of
from posenc.analysis.finding import Finding
from posenc.analysis.trained import trained_model

__all__ = ["Codes", "Finding", "codes_of", "trained_model"]
