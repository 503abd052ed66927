# SPDX-License-Identifier: Apache-2.0
"""Positional encodings for PyTorch (RoPE, ALiBi, T5, FoX ...) behind one function, and RoPE scaling of pretrained models."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from posenc import encodings, frequencies, functional, position_maps
from posenc.attention import Explanation, attention, explain, linear_attention
from posenc.cache import KVCache
from posenc.encoding import Encoding, Pass, PerLayer, Sum
from posenc.encodings import *  # noqa: F403 - its __all__ names every encoding, once
from posenc.errors import InputError
from posenc.positions import Positions
from posenc_cli.left import instead as _instead
from posenc_version import version as _version

if _TYPE_CHECKING:
    from posenc import analysis
    from posenc.encodings.catalogue import cite
    from posenc.lab.evals.choose import choose
    from posenc.lab.evals.study import evaluate
    from posenc.lab.learning_rates import parameter_groups
    from posenc.lab.transformer import Transformer, TransformerConfig
    from posenc.lab.vision_transformer import VisionConfig, VisionTransformer
    from posenc.pretrained import hf
    from posenc.pretrained.convert import convert_layout, re_rotate
    from posenc.pretrained.doctor import doctor
    from posenc.pretrained.export import to_hf
    from posenc.pretrained.extend import restore
    from posenc.pretrained.finetune import finetune
    from posenc.pretrained.load import load
    from posenc.pretrained.nbce import nbce_generate
    from posenc.pretrained.recipe import extend

    __version__: str

__all__ = [
    "Encoding", "Explanation", "InputError", "KVCache", "Pass", "PerLayer", "Positions", "Sum", "Transformer", "TransformerConfig",
    "VisionConfig", "VisionTransformer", "analysis", "attention", "choose", "cite", "convert_layout", "doctor", "evaluate", "explain",
    "extend", "finetune", "frequencies", "functional", "hf", "linear_attention", "load", "nbce_generate", "parameter_groups",
    "position_maps", "re_rotate", "restore", "to_hf",
]  # fmt: skip
__all__ += encodings.__all__

_LAZY = {
    "Transformer": "posenc.lab.transformer",
    "TransformerConfig": "posenc.lab.transformer",
    "VisionConfig": "posenc.lab.vision_transformer",
    "VisionTransformer": "posenc.lab.vision_transformer",
    "choose": "posenc.lab.evals.choose",
    "cite": "posenc.encodings.catalogue",
    "convert_layout": "posenc.pretrained.convert",
    "doctor": "posenc.pretrained.doctor",
    "evaluate": "posenc.lab.evals.study",
    "extend": "posenc.pretrained.recipe",
    "finetune": "posenc.pretrained.finetune",
    "load": "posenc.pretrained.load",
    "nbce_generate": "posenc.pretrained.nbce",
    "parameter_groups": "posenc.lab.learning_rates",
    "re_rotate": "posenc.pretrained.convert",
    "restore": "posenc.pretrained.extend",
    "to_hf": "posenc.pretrained.export",
}
"""Name -> its module, imported when first used: attention does without them, and what reads pretrained models needs
transformers, which is optional and slow to import."""


_MODULES = {"analysis": "posenc.analysis", "hf": "posenc.pretrained.hf"}


def __getattr__(name: str) -> _Any:
    if name == "__version__":  # asks git, in a clone
        return _version()
    if name in _MODULES:
        return _import_module(_MODULES[name])
    if name not in _LAZY:
        raise AttributeError(_instead(name) or f"module 'posenc' has no attribute {name!r}")
    return getattr(_import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"] + [name for name in globals() if name.startswith("__")])
