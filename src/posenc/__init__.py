"""posenc: positional encodings for Transformers, fused, compared and proven next to one another."""

from posenc import frequencies, functional
from posenc.attention import Explanation, attention, explain
from posenc.bibliography import cite
from posenc.encoding import Encoding, PerLayer, Sum
from posenc.encodings import (
    ENCODINGS,
    T5,
    ALiBi,
    AxialRotary,
    Binary,
    DecoupledRotary,
    Integer,
    Learned,
    MixedRotary,
    MRotary,
    NoPE,
    Normalized,
    PoPE,
    PRotary,
    Rotary,
    Sinusoidal,
    XPos,
    create,
    from_spec,
)
from posenc.errors import InputError
from posenc.linear_attention import linear_attention
from posenc.positions import Positions

__version__ = "0.1.0"

__all__ = [
    "ENCODINGS", "T5", "ALiBi", "AxialRotary", "Binary", "DecoupledRotary", "Encoding", "Explanation", "InputError",
    "Integer", "Learned", "MRotary", "MixedRotary", "NoPE", "Normalized", "PRotary", "PerLayer", "PoPE", "Positions",
    "Rotary", "Sinusoidal", "Sum", "XPos", "attention", "cite", "create", "explain", "frequencies", "from_spec",
    "functional", "linear_attention",
]  # fmt: skip
