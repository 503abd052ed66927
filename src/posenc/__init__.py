"""posenc: positional encodings for Transformers, fused, compared and proven next to one another."""

from posenc import frequencies, functional
from posenc.attention import Explanation, attention, explain
from posenc.bibliography import cite
from posenc.encoding import Encoding, PerLayer, Sum
from posenc.encodings import (
    CAPE,
    ENCODINGS,
    SHAPE,
    T5,
    ALiBi,
    Binary,
    Integer,
    Learned,
    LearnedSink,
    LogN,
    NoPE,
    Normalized,
    Randomized,
    Rotary,
    Sinusoidal,
    SoftmaxN,
    create,
    from_spec,
)
from posenc.errors import InputError
from posenc.layout import convert_layout
from posenc.positions import Positions

__version__ = "0.1.0"

__all__ = [
    "CAPE", "ENCODINGS", "SHAPE", "T5", "ALiBi", "Binary", "Encoding", "Explanation", "InputError", "Integer",
    "Learned", "LearnedSink", "LogN", "NoPE", "Normalized", "PerLayer", "Positions", "Randomized", "Rotary",
    "Sinusoidal", "SoftmaxN", "Sum", "attention", "cite", "convert_layout", "create", "explain", "frequencies",
    "from_spec", "functional",
]  # fmt: skip
