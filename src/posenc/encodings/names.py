# SPDX-License-Identifier: Apache-2.0
"""The names of this package: what its files define under a name and a title, see registry.py."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from posenc.encodings.create_encoding import ENCODINGS, create, from_spec

# fmt: off
if _TYPE_CHECKING:  # type checkers do not find a class by its definition; one that is not listed here is Any to them
    from posenc.encodings.absolute import Absolute, GridSinusoidal, Learned, Sinusoidal
    from posenc.encodings.accumulated_rotary import CARoPE, Mamba3Rotary, RePo, SelectiveRotary
    from posenc.encodings.augment import CAPE, SHAPE, PoSE, Randomized
    from posenc.encodings.block_rotary import STRING, ComRoPE, LieRE
    from posenc.encodings.complex_order import ComplexOrder
    from posenc.encodings.cope import TAPA, CoPE
    from posenc.encodings.dape import DAPE
    from posenc.encodings.deberta import DeBERTa, DeBERTaV2, EnhancedMaskDecoder
    from posenc.encodings.distance import KERPLE, T5, ALiBi, DistanceBias, GridALiBi, Sandwich, Sines
    from posenc.encodings.fire import FIRE
    from posenc.encodings.floater import FLOATER
    from posenc.encodings.forgetting import FoX
    from posenc.encodings.grape import GRAPEA, GRAPEAP
    from posenc.encodings.learned_rotary import FoPE, HeadRotary, LearnedRotary, RoPEPlusPlus
    from posenc.encodings.mapped import Mapped
    from posenc.encodings.naive import Binary, Integer, NoPE, Normalized
    from posenc.encodings.path import PaTH
    from posenc.encodings.pope import PoPE
    from posenc.encodings.projected_relative import ProjectedRelative
    from posenc.encodings.rotary import DecoupledRotary, PRotary, Rotary, XPos
    from posenc.encodings.rotary_axes import AxialRotary, MixedRotary, MRotary
    from posenc.encodings.rove import RoVE
    from posenc.encodings.selective import SelectiveAttention
    from posenc.encodings.shaw import Shaw
    from posenc.encodings.sinks import LearnedSink, PrefixKV, SoftmaxN
    from posenc.encodings.stick_breaking import StickBreaking
    from posenc.encodings.tables import AxialTable, GridTable, Hierarchical, Multiplicative
    from posenc.encodings.temperature import LogN, StepTemperature, Temperature
    from posenc.encodings.tisa import TISA
    from posenc.encodings.transformer_xl import TransformerXL, XLNet
    from posenc.encodings.tupe import TUPE, TUPER
    from posenc.encodings.visible import Chunks, Window
    from posenc.encodings.wall import Wall
    from posenc.encodings.window import ClassWindowTable, LogWindow, WindowTable

    __all__ = [
        "CAPE", "DAPE", "ENCODINGS", "FIRE", "FLOATER", "GRAPEA", "GRAPEAP", "KERPLE", "SHAPE", "STRING", "T5",
        "TAPA", "TISA", "TUPE", "TUPER", "ALiBi", "Absolute", "AxialRotary", "AxialTable", "Binary", "CARoPE",
        "Chunks", "ClassWindowTable", "CoPE", "ComRoPE", "ComplexOrder", "DeBERTa", "DeBERTaV2", "DecoupledRotary",
        "DistanceBias", "EnhancedMaskDecoder", "FoPE", "FoX", "GridALiBi", "GridSinusoidal", "GridTable",
        "HeadRotary", "Hierarchical", "Integer", "Learned", "LearnedRotary", "LearnedSink", "LieRE", "LogN",
        "LogWindow", "MRotary", "Mamba3Rotary", "Mapped", "MixedRotary", "Multiplicative", "NoPE", "Normalized",
        "PRotary", "PaTH", "PoPE", "PoSE", "PrefixKV", "ProjectedRelative", "Randomized", "RePo", "RoPEPlusPlus",
        "RoVE", "Rotary", "Sandwich", "SelectiveAttention", "SelectiveRotary", "Shaw", "Sines", "Sinusoidal",
        "SoftmaxN", "StepTemperature", "StickBreaking", "Temperature", "TransformerXL", "Wall", "Window",
        "WindowTable", "XLNet", "XPos", "create", "from_spec",
    ]
else:
    from posenc.encodings.absolute import Absolute
    from posenc.encodings.deberta import EnhancedMaskDecoder
    from posenc.encodings.distance import DistanceBias
    from posenc.encodings.mapped import Mapped

    _CLASSES = {x.__name__: x for x in [*ENCODINGS.values(), Absolute, DistanceBias, EnhancedMaskDecoder, Mapped]}  # type: ignore[attr-defined]
    globals().update(_CLASSES)
    __all__ = [*_CLASSES, "ENCODINGS", "create", "from_spec"]
# fmt: on
