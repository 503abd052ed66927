"""Ways to compute attention, fastest first. All agree; each says what it cannot serve."""

from posenc.backends.problem import Backend, Problem
from posenc.backends.reference import Reference
from posenc.backends.sdpa import SDPA

__all__ = ["BACKENDS", "Backend", "Problem"]

BACKENDS: dict[str, Backend] = {"sdpa": SDPA(), "reference": Reference()}
