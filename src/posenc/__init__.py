"""posenc: positional encodings for Transformers, fused, compared and proven next to one another."""

from posenc import frequencies, functional
from posenc.attention import Explanation, attention, explain
from posenc.bibliography import cite
from posenc.encoding import Encoding, PerLayer, Sum
from posenc.encodings import (
    ENCODINGS,
    FLOATER,
    T5,
    ALiBi,
    AxialTable,
    Binary,
    ComplexOrder,
    GridSinusoidal,
    GridTable,
    Hierarchical,
    Integer,
    Learned,
    Multiplicative,
    NoPE,
    Normalized,
    Rotary,
    Sinusoidal,
    create,
    from_spec,
)
from posenc.errors import InputError
from posenc.positions import Positions

__version__ = "0.1.0"

__all__ = [
    "ENCODINGS", "FLOATER", "T5", "ALiBi", "AxialTable", "Binary", "ComplexOrder", "Encoding", "Explanation",
    "GridSinusoidal", "GridTable", "Hierarchical", "InputError", "Integer", "Learned", "Multiplicative", "NoPE",
    "Normalized", "PerLayer", "Positions", "Rotary", "Sinusoidal", "Sum", "attention", "cite", "create", "explain",
    "frequencies", "from_spec", "functional",
]  # fmt: skip
