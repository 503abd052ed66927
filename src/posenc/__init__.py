"""posenc: positional encodings for Transformers, fused, compared and proven next to one another."""

from posenc import frequencies, functional
from posenc.attention import Explanation, attention, explain
from posenc.bibliography import cite
from posenc.encoding import Encoding, PerLayer, Sum
from posenc.encodings import (
    ENCODINGS,
    FIRE,
    KERPLE,
    T5,
    ALiBi,
    Binary,
    ClassWindowTable,
    CoPE,
    Integer,
    Learned,
    LogWindow,
    NoPE,
    Normalized,
    Rotary,
    Sandwich,
    Sines,
    Sinusoidal,
    WindowTable,
    create,
    from_spec,
)
from posenc.errors import InputError
from posenc.positions import Positions

__version__ = "0.1.0"

__all__ = [
    "ENCODINGS", "FIRE", "KERPLE", "T5", "ALiBi", "Binary", "ClassWindowTable", "CoPE", "Encoding", "Explanation",
    "InputError", "Integer", "Learned", "LogWindow", "NoPE", "Normalized", "PerLayer", "Positions", "Rotary", "Sandwich",
    "Sines", "Sinusoidal", "Sum", "WindowTable", "attention", "cite", "create", "explain", "frequencies", "from_spec",
    "functional",
]  # fmt: skip
