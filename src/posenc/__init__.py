"""posenc: positional encodings for Transformers, fused, compared and proven next to one another."""

from importlib import import_module
from typing import Any

from posenc import encodings, frequencies, functional, position_maps
from posenc.attention import Explanation, attention, explain
from posenc.bibliography import cite
from posenc.composites import PerLayer, Sum
from posenc.encoding import Encoding
from posenc.encodings import *  # noqa: F403 - its __all__ names every encoding, once
from posenc.errors import InputError
from posenc.layout import convert_layout
from posenc.linear_attention import linear_attention
from posenc.positions import Positions
from posenc.re_rotation import re_rotate
from posenc.transformer import Transformer, TransformerConfig
from posenc.vision import VisionConfig, VisionTransformer

__version__ = "0.1.0"

__all__ = [
    "Encoding", "Explanation", "InputError", "PerLayer", "Positions", "Sum", "Transformer", "TransformerConfig",
    "VisionConfig", "VisionTransformer", "attention", "cite", "convert_layout", "explain", "frequencies", "functional",
    "linear_attention", "position_maps", "re_rotate",
]  # fmt: skip
__all__ += encodings.__all__

_LAZY = {
    "doctor": "posenc.pretrained.doctor",
    "evaluate": "posenc.evals.run",
    "extend": "posenc.pretrained.extend",
    "finetune": "posenc.pretrained.finetune",
    "load": "posenc.pretrained.load",
    "nbce_generate": "posenc.pretrained.nbce",
    "resize": "posenc.pretrained.vision.resize",
    "restore": "posenc.pretrained.extend",
    "to_hf": "posenc.pretrained.export",
}
"""Names for pretrained models, imported when first used: transformers, which they need, is optional and slow to import."""
__all__ += [*_LAZY]


def __getattr__(name: str) -> Any:
    if name == "analysis":
        return import_module("posenc.analysis")
    if name not in _LAZY:
        raise AttributeError(f"module 'posenc' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
