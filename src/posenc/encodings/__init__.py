# SPDX-License-Identifier: Apache-2.0
"""Every encoding by name, and how to make one from a name, a short text or a spec."""

import math
import re
from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import Any

from posenc import position_maps
from posenc.checks import LARGEST_SIZE, checked, is_whole, shown
from posenc.composites import Composite, PerLayer, Sum
from posenc.encoding import Encoding
from posenc.encodings.absolute import Absolute, Learned, Sinusoidal
from posenc.encodings.augment import CAPE, SHAPE, Randomized
from posenc.encodings.complex_order import ComplexOrder
from posenc.encodings.contextual import CoPE
from posenc.encodings.deberta import DeBERTa, DeBERTaV2, EnhancedMaskDecoder
from posenc.encodings.denominator import LearnedSink, LogN, SoftmaxN, StepTemperature, Temperature
from posenc.encodings.distance import KERPLE, T5, ALiBi, GridALiBi, Sandwich, Sines
from posenc.encodings.fire import FIRE
from posenc.encodings.floater import FLOATER
from posenc.encodings.grid import GridSinusoidal
from posenc.encodings.mapped import Mapped
from posenc.encodings.naive import Binary, Integer, NoPE, Normalized
from posenc.encodings.polar import PoPE
from posenc.encodings.rotary import DecoupledRotary, PRotary, Rotary, XPos
from posenc.encodings.rotary_axes import AxialRotary, MixedRotary, MRotary
from posenc.encodings.shaw import Shaw
from posenc.encodings.tables import AxialTable, GridTable, Hierarchical, Multiplicative
from posenc.encodings.transformer_xl import TransformerXL, XLNet
from posenc.encodings.tupe import TUPE, TUPER
from posenc.encodings.window import ClassWindowTable, LogWindow, WindowTable
from posenc.errors import InputError, unknown
from posenc.frequencies import SCHEDULES
from posenc.position_maps import PositionMap
from posenc.texts import check_options, literal, named, read_options, split

# fmt: off
__all__ = [
    "CAPE", "ENCODINGS", "FIRE", "FLOATER", "KERPLE", "SHAPE", "T5", "TUPE", "TUPER", "ALiBi", "Absolute",
    "AxialRotary", "AxialTable", "Binary", "ClassWindowTable", "CoPE", "ComplexOrder", "DeBERTa", "DeBERTaV2",
    "DecoupledRotary", "EnhancedMaskDecoder", "GridALiBi", "GridSinusoidal", "GridTable", "Hierarchical", "Integer", "Learned",
    "LearnedSink", "LogN", "LogWindow", "MRotary", "Mapped", "MixedRotary", "Multiplicative", "NoPE", "Normalized", "PRotary",
    "PoPE", "Randomized", "Rotary", "Sandwich", "Shaw", "Sines", "Sinusoidal", "SoftmaxN", "StepTemperature", "Temperature", "TransformerXL",
    "WindowTable", "XLNet", "XPos", "create", "from_spec",
]

ENCODINGS: dict[str, type[Encoding]] = {
    cls.name: cls
    for cls in (
        # at the input: naive ones, then a code per position
        NoPE, Normalized, Integer, Binary,
        Sinusoidal, Learned, Hierarchical, Multiplicative, ComplexOrder, AxialTable, GridTable, GridSinusoidal,
        # at the input, and carried into every layer
        FLOATER,
        # on queries and keys
        Rotary, PRotary, DecoupledRotary, XPos, AxialRotary, MRotary, MixedRotary, PoPE,
        # on the scores, by content and distance
        Shaw, TransformerXL, XLNet, TUPE, TUPER, DeBERTa, DeBERTaV2,
        # on the scores, by distance
        T5, Sines, ALiBi, KERPLE, Sandwich, FIRE, CoPE, WindowTable, ClassWindowTable, LogWindow, GridALiBi,
        # on positions themselves, in training
        SHAPE, CAPE, Randomized,
        # on the softmax
        SoftmaxN, LearnedSink, LogN, Temperature, StepTemperature,
    )
}
# fmt: on


LARGEST = {"dim": 2**14, "head_dim": 2**14, "num_heads": 2**12, "num_kv_heads": 2**12, "num_layers": 2**12}
"""The largest sizes that an encoding's text may ask for; of its other counts, such as rows, LARGEST_SIZE is."""


@checked
def create(
    name: str,
    *,
    dim: int | None = None,
    num_heads: int | None = None,
    head_dim: int | None = None,
    num_kv_heads: int | None = None,
    num_layers: int | None = None,
    max_positions: int | None = None,
    causal: bool | None = None,
    grid: Sequence[int] | None = None,
    classes: Mapping[str, type[Encoding]] = {},
    **options: Any,
) -> Encoding:
    """An encoding by name for a model of the given shape; each takes of the shape what it needs.

    name: a key of ENCODINGS, with options after colons ("rope:rope_theta=500000:layout=interleaved"), a position map
    after "@" ("rope@rerope:window=512"), several joined by "+" ("rope+alibi"), and by "/" when layers take turns
    ("rope/rope/rope/none"). options: keyword arguments of the class; they go with a single name. max_positions: the
    training length, for tables and for those that scale by it. grid: (height, width) or (frames, height, width), in
    patches, of the images trained on: for tables of a grid, for the number of axes, and for max_positions where that
    is not given. classes: further encodings that the text may name.

    Raises:
        InputError: an unknown name (with the nearest one), a missing part of the shape, or an unknown option.
    """
    _check_classes(classes)
    shape: dict[str, Any] = {
        "dim": dim, "num_heads": num_heads, "head_dim": head_dim, "num_kv_heads": num_kv_heads,
        "max_positions": max_positions, "causal": causal, "grid": grid, "classes": classes,
    }  # fmt: skip
    if options and any(sign in name for sign in ("/", "+", "@")):
        raise InputError(f"options {sorted(options)} for {name!r}: write them into the text, as in rope:layout=half")
    for texts, composite in ((name.split("/"), PerLayer), (split(name), Sum)):
        if len(texts) == 1:
            continue
        own = dict.fromkeys(texts, num_layers)
        if composite is PerLayer and num_layers is not None:
            own = {text: max(1, sum(texts[i % len(texts)] == text for i in range(num_layers))) for text in texts}
        made = {text: create(text, num_layers=own[text], **shape) for text in own}
        return composite(*(made[text] for text in texts))
    text, mapped, of_map = name.partition("@")
    if mapped:
        return Mapped(create(text, num_layers=num_layers, **shape), read_map(of_map))
    name, written = named(name)
    cls = classes.get(name) or lookup(name)
    parameters = cls.arguments()
    options |= read_options(name, written, parameters)
    check_options(name, options, parameters, cls.__init__)
    for option, value in options.items():
        most = LARGEST.get(option, LARGEST_SIZE)
        if isinstance(value, int) and value > most and parameters[option].annotation in (int, int | None):
            raise InputError(f"option {option}={value} of {name}: must be at most {most}")
    if head_dim is None and dim is not None and num_heads is not None:
        if "head_dim" in parameters and dim % num_heads:
            raise InputError(f"dim={dim} and num_heads={num_heads}: must divide evenly; or pass head_dim")
        head_dim = dim // num_heads
    if grid is not None:
        check_grid(grid)
        max_positions = math.prod(grid) if max_positions is None else max_positions
    height, width = (None, None) if grid is None else grid[-2:]
    given = {
        "height": height, "width": width, "columns": width, "axes": None if grid is None else len(grid), "dim": dim, "num_heads": num_heads, "head_dim": head_dim, "num_kv_heads": num_kv_heads,
        "num_layers": num_layers, "max_positions": max_positions, "rows": max_positions, "train_length": max_positions,
        "bidirectional": None if causal is None else not causal,
    }  # fmt: skip
    shape = {k: v for k, v in given.items() if k in parameters and k not in options and v is not None}
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in shape | options]
    if missing:
        raise InputError(f"{name} needs {', '.join(missing)}: pass {' and '.join(m + '=' for m in missing)}")
    return cls(**shape, **options)


def _check_classes(classes: Mapping[str, Any]) -> None:
    for name, cls in classes.items():
        if not (isinstance(cls, type) and issubclass(cls, Encoding)):
            raise InputError(f"classes={{{name!r}: {shown(cls)}}}: pass subclasses of posenc.Encoding by name")


def check_grid(grid: Sequence[int]) -> None:
    """Refuse what is no size of an image or a video.

    Raises:
        InputError: names it.
    """
    if len(grid) not in (2, 3) or not all(is_whole(n) and 1 <= n <= LARGEST_SIZE for n in grid):
        raise InputError(
            f"grid={shown(grid)}: pass (height, width) or (frames, height, width) in patches, each at least 1"
        )


@checked
def from_spec(spec: Mapping[str, Any], classes: Mapping[str, type[Encoding]] = {}) -> Encoding:
    """The encoding that `spec()` described; parameters are initialised afresh.

    classes: further ones by name, as in `create`; a spec names a class of your own by its class name.

    Raises:
        InputError: an unknown name or arguments that the encoding does not take.
    """
    arguments = dict(spec)
    name = arguments.pop("name", None)
    composites: dict[str, type[Composite]] = {c.name: c for c in (Sum, PerLayer)}
    _check_classes(classes)
    composites |= {n: cls for n, cls in classes.items() if issubclass(cls, Composite)}
    if isinstance(name, str) and name in composites:
        if set(arguments) - {"order"} != {"parts"}:
            raise InputError(f"spec of {name!r}: needs 'parts' and may have 'order', got {sorted(arguments)}")
        parts = [from_spec(part, classes) for part in arguments["parts"]]
        return composites[name](*(parts[i] for i in arguments.get("order", range(len(parts)))))
    if name == Mapped.name and set(arguments) == {"encoding", "map"}:
        return Mapped(from_spec(arguments["encoding"], classes), arguments["map"])
    cls = classes[name] if isinstance(name, str) and name in classes else lookup(name)
    parameters = cls.arguments()
    for argument, value in arguments.items():
        if argument not in parameters:
            raise unknown(f"argument in the spec of {name!r}:", argument, parameters)
        takes = parameters[argument].annotation
        inner = value.get("name") if isinstance(value, Mapping) else None
        encoding = isinstance(inner, str) and inner in {*ENCODINGS, *composites, *classes, Mapped.name}
        if encoding and (takes is Parameter.empty or "Encoding" in str(takes)):
            arguments[argument] = from_spec(value, classes)
    missing = [n for n, p in parameters.items() if p.default is p.empty and n not in arguments]
    if missing:
        raise InputError(f"spec of {name!r}: lacks {', '.join(missing)}")
    return cls(**arguments)


def lookup(name: object) -> type[Encoding]:
    """The class behind a name; a class's own name, as in "Rotary", is recognised in the hint."""
    if isinstance(name, str) and name in ENCODINGS:
        return ENCODINGS[name]
    for known, cls in ENCODINGS.items():
        if str(name).lower() == cls.__name__.lower():
            raise InputError(f"unknown encoding {name!r}: did you mean {known!r}? known are {', '.join(ENCODINGS)}")
    if isinstance(name, str) and name in SCHEDULES:
        raise InputError(
            f"encoding {name!r}: is a frequency schedule of rope; write posenc.Rotary(head_dim).with_schedule({name!r}, ...), "
            "or extend a pretrained model by it"
        )
    if isinstance(name, str) and name in position_maps.MAPS:
        raise InputError(f"encoding {name!r}: is a position map; write it after an encoding, as in rope@{name}")
    raise unknown("encoding", name, ENCODINGS)


def parts(name: str) -> list[str]:
    """Every single encoding, with its options, in a text like "rope@rerope:window=4+alibi/none", and every position map
    behind its "@"; each once."""
    texts = [part.strip() for layer in name.split("/") for part in split(layer)]
    return list(dict.fromkeys(part for text in texts for part in re.split("(?=@)", text)))


def read_map(text: str) -> PositionMap:
    """The position map of a text like "self_extend:window=1024:group=8".

    Raises:
        InputError: an unknown name or option.
    """
    name, written = named(text)
    pairs = [item.partition("=") for item in written]
    return position_maps.create({"name": name, **{option: literal(value) for option, _, value in pairs}})
