"""posenc: positional encodings for Transformers, fused, compared and proven next to one another."""

from posenc import frequencies, functional
from posenc.attention import Explanation, attention, explain
from posenc.bibliography import cite
from posenc.encoding import Encoding, PerLayer, Sum
from posenc.encodings import (
    ENCODINGS,
    T5,
    TUPE,
    TUPER,
    ALiBi,
    Binary,
    DeBERTa,
    DeBERTaV2,
    EnhancedMaskDecoder,
    Integer,
    Learned,
    NoPE,
    Normalized,
    Rotary,
    Shaw,
    Sinusoidal,
    TransformerXL,
    XLNet,
    create,
    from_spec,
)
from posenc.errors import InputError
from posenc.positions import Positions

__version__ = "0.1.0"

__all__ = [
    "ENCODINGS", "T5", "TUPE", "TUPER", "ALiBi", "Binary", "DeBERTa", "DeBERTaV2", "Encoding", "EnhancedMaskDecoder",
    "Explanation", "InputError", "Integer", "Learned", "NoPE", "Normalized", "PerLayer", "Positions", "Rotary", "Shaw",
    "Sinusoidal", "Sum", "TransformerXL", "XLNet", "attention", "cite", "create", "explain", "frequencies",
    "from_spec", "functional",
]  # fmt: skip
