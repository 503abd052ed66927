# SPDX-License-Identifier: Apache-2.0
"""How to make an encoding from a name, a short text or a spec."""

import math
from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import Any

import torch

from posenc import position_maps
from posenc.encoding import Composite, Encoding, PerLayer, Size, Sum
from posenc.encodings.mapped import Mapped
from posenc.encodings.patterns import PATTERNS, read
from posenc.encodings.registry import ENCODINGS
from posenc.errors import InputError, check_arguments, check_integers, check_sizes, check_value, is_integer, unknown
from posenc.frequencies import SCHEDULES
from posenc.position_maps import PositionMap
from posenc.spec import EncodingSpec, Spec, check_complete, check_options

__all__ = ["ENCODINGS", "create", "from_spec"]

LENGTHS = "rows", "train_length"
"""Arguments that are the model's `max_positions`, if the text does not give them."""
MOST_BYTES = 2**30
"""What an encoding may take because of its options; the model's shape is not bounded here."""


def create(
    name: str | EncodingSpec,
    *,
    dim: Size | None = None,
    num_heads: Size | None = None,
    head_dim: Size | None = None,
    num_kv_heads: Size | None = None,
    num_layers: Size | None = None,
    max_positions: Size | None = None,
    causal: bool | None = None,
    grid: Sequence[int] | None = None,
    prefix: int | None = None,
    classes: Mapping[str, type[Encoding]] = {},
    may_import: bool = True,
    **options: Any,
) -> Encoding:
    """Create an encoding by name for a model of the given shape; each uses the parts of the shape that it needs.

    Args:
        name: a key of ENCODINGS, with options after colons ("rope:rope_theta=500000:layout=interleaved"), a position map
            after "@" ("rope@rerope:window=512"), several joined by "+" ("rope+alibi"), and by "/" for layers that
            alternate ("rope/rope/rope/none"); or a pattern of layers ("local_nope:window=512", see
            `posenc.encodings.patterns`). A class of any other package is MODULE:CLASS or FILE:CLASS
            ("fade.py:Fade:slope=2"), which is imported.
        dim: the width of the model's input.
        num_heads: query heads.
        head_dim: channels of a head; None: dim / num_heads, where it is an integer.
        num_kv_heads: key heads, where several query heads share one.
        num_layers: of the model; for parameters per layer, and for layers that alternate.
        max_positions: the context length of the training, in tokens, for tables and for those that scale by it; None: with a
            grid its number of patches.
        causal: whether a query sees only the keys before it.
        grid: (height, width) or (frames, height, width), in patches, of the images trained on: for tables of a grid, and for
            the number of axes.
        prefix: tokens without a place, such as [CLS], before the patches: for tables that have rows for them.
        classes: further encodings by name.
        may_import: False for a name that was read from a file, which must not be MODULE:CLASS or FILE:CLASS.
        options: keyword arguments of the class, with a single name.

    Raises:
        InputError: an unknown name (with the nearest one), a missing part of the shape, or an unknown option.
    """
    check_arguments(create, locals())
    spec = read(name, classes)
    if options and (len(spec.layers) > 1 or len(spec.layers[0]) > 1 or spec.layers[0][0].map):
        raise InputError(f"options {sorted(options)}: write them into the text, as in rope:layout=half")
    if head_dim is None and dim is not None and num_heads is not None and dim % num_heads == 0:
        head_dim = dim // num_heads
    if grid is not None:
        if len(grid) not in (2, 3):
            raise InputError("pass (height, width) or (frames, height, width) in patches", grid=grid)
        for n in grid:
            check_sizes(grid=n)
        max_positions = math.prod(grid) if max_positions is None else max_positions
    if prefix is not None:
        check_integers(0, prefix=prefix)
    height, width = (None, None) if grid is None else grid[-2:]
    shape = {
        "prefix": prefix,
        "height": height, "width": width, "columns": width, "axes": None if grid is None else len(grid), "dim": dim,
        "num_heads": num_heads, "head_dim": head_dim, "num_kv_heads": num_kv_heads, "max_positions": max_positions,
        **dict.fromkeys(LENGTHS, max_positions), "bidirectional": None if causal is None else not causal,
    }  # fmt: skip

    def layer(terms: Sequence[Spec], layers: int | None) -> Encoding:
        of_layer = shape | {"num_layers": layers}
        made = {term: _single(term, of_layer, classes, options, may_import) for term in dict.fromkeys(terms)}
        return made[terms[0]] if len(terms) == 1 else Sum(*(made[term] for term in terms))

    if len(spec.layers) == 1:
        return layer(spec.layers[0], num_layers)
    turns: dict[tuple[Spec, ...], int | None] = dict.fromkeys(spec.layers)
    if num_layers is not None:
        acting = [spec.layers[i % len(spec.layers)] for i in range(num_layers)]
        turns = {terms: max(1, acting.count(terms)) for terms in turns}
    parts = {terms: layer(terms, layers) for terms, layers in turns.items()}
    return PerLayer(*(parts[terms] for terms in spec.layers), num_layers=num_layers)


def _single(
    spec: Spec,
    shape: Mapping[str, Any],
    classes: Mapping[str, type[Encoding]],
    options: Mapping[str, Any],
    may_import: bool,
) -> Encoding:
    """One term of an encoding's text. shape: what a class may take of the model's."""
    name, cls = spec.name, classes.get(spec.name) or lookup(spec.name, may_import=may_import)
    parameters = cls.arguments()
    options = {**options, **spec.values(name, parameters)}
    check_options(name, options, parameters, cls.__init__)
    dim, heads = shape["dim"], shape["num_heads"]
    unknown_width = "head_dim" in parameters and "head_dim" not in options and shape["head_dim"] is None
    if unknown_width and dim is not None and heads is not None:
        raise InputError("must divide evenly; or pass head_dim", dim=dim, num_heads=heads)
    given = {k: v for k, v in shape.items() if k in parameters and k not in options and v is not None}
    own = parameters.keys() - create.__annotations__.keys()
    ways = {key: f"{'max_positions' if key in LENGTHS else key}= (or write {name}:{key}=VALUE)" for key in own}
    check_complete(name, given | options, parameters, **ways)
    check_affordable(name, cls, given, options)
    encoding = cls(**given, **options)
    vars(encoding)["heads_of_model"] = heads  # by which a call tells heads from tokens
    return encoding if spec.map is None else Mapped(encoding, create_map(spec.map))


def from_spec(spec: Mapping[str, Any], classes: Mapping[str, type[Encoding]] = {}) -> Encoding:
    """Create the encoding that `spec()` describes, with newly initialised parameters.

    classes: further ones by name, as in `create`; a spec names a class without a `name` by its class name.

    Raises:
        InputError: an unknown name or arguments that the encoding does not take, or parts nested some hundreds deep.
    """
    check_arguments(from_spec, locals())
    try:
        return _of_spec(spec, classes)
    except RecursionError:
        raise InputError("its parts are nested too deep", spec=spec) from None


def _of_spec(spec: Mapping[str, Any], classes: Mapping[str, type[Encoding]]) -> Encoding:
    arguments = dict(spec)
    name = arguments.pop("name", None)
    known = {**ENCODINGS, **{c.name: c for c in (Sum, PerLayer, Mapped)}, **classes}
    cls = (known.get(name) if isinstance(name, str) else None) or lookup(name, may_import=False)
    parameters = cls.arguments()
    if issubclass(cls, Composite):
        if set(arguments) - {"order", *parameters} != {"parts"}:
            may = " and ".join(map(repr, ("order", *parameters)))
            raise InputError(f"spec of {name!r}: needs 'parts' and may have {may}, got {sorted(arguments)}")
        check_value("parts", given := arguments.pop("parts"), Sequence)
        parts = [from_spec(part, classes) for part in given]
        check_value("order", order := arguments.pop("order", range(len(parts))), Sequence)
        for at in order:
            check_integers(0, len(parts) - 1, order=at)
        return cls(*(parts[at] for at in order), **arguments)
    ranges = {key: arguments.pop(key) for key in ("heads", "kv_heads") if key in arguments and key not in parameters}
    for argument, value in arguments.items():
        if argument not in parameters:
            raise unknown(f"argument in the spec of {name!r}:", argument, parameters)
        takes = parameters[argument].annotation
        inner = value.get("name") if isinstance(value, Mapping) else None
        if isinstance(inner, str) and inner in known and (takes is Parameter.empty or "Encoding" in str(takes)):
            arguments[argument] = from_spec(value, classes)
    check_complete(f"spec of {name!r}", arguments, parameters)
    check_affordable(str(name), cls, {}, arguments)
    made = cls(**arguments)
    return _part_of(made, **ranges) if ranges else made


def _part_of(encoding: Encoding, heads: Any = None, kv_heads: Any = None) -> Encoding:
    """The part of a spec."""
    for what, value in (("heads", heads), ("kv_heads", kv_heads)):
        pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_integer, value))
        if not pair or not 0 <= value[0] < value[1]:
            raise InputError("give the first head and the end, such as [4, 8]", argument=what, value=value)
    sharing, rest = divmod(heads[1] - heads[0], kv_heads[1] - kv_heads[0])
    if rest or [sharing * at for at in kv_heads] != [*heads]:
        raise InputError(f"these are not the key heads of heads={heads}", kv_heads=kv_heads)
    count = getattr(encoding, "num_heads", None) or heads[1]
    return encoding.heads(slice(*heads), num_heads=count, num_kv_heads=max(count // sharing, 1))


def check_affordable(name: str, cls: type[Encoding], given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse options with which an encoding would take more than `MOST_BYTES`, before they are allocated. given: the model's
    shape."""
    sizes = {key: value for key, value in options.items() if isinstance(value, int) and value > 1}
    if cls not in ENCODINGS.values() or not sizes:  # without options, the model is as large
        return
    shape = [value for value in given.values() if isinstance(value, int) and value > 1]
    if math.prod(sizes.values()) ** 2 * math.prod(shape) < MOST_BYTES // 64:  # a size may be both sides of a table
        return
    with torch.device("meta"):
        made = cls(**given, **options)
    size = sum(each.numel() * each.element_size() for each in {*made.parameters(), *made.buffers()})
    if size > MOST_BYTES:
        written = ", ".join(f"{key}={value}" for key, value in sizes.items())
        raise InputError(f"{name} with {written}: takes {size:,} bytes; give sizes that take at most {MOST_BYTES:,}")


def lookup(name: object, *, may_import: bool) -> type[Encoding]:
    """The class behind a name, or behind MODULE:CLASS or FILE:CLASS, which is imported. may_import: see `load_object`."""
    if isinstance(name, str) and name in ENCODINGS:
        return ENCODINGS[name]
    if isinstance(name, str) and ":" in name:
        base, _, option = name.partition(":")
        if base in ENCODINGS:
            raise InputError(f"option {option} of {base}: write {option}=value")
        from posenc.lab.user_code import load_object, printing_to_stderr

        with printing_to_stderr():
            cls = load_object(name, may_import=may_import)
        if not (isinstance(cls, type) and issubclass(cls, Encoding)):
            raise InputError(f"{name}: is a {type(cls).__name__}; name a subclass of posenc.Encoding")
        return cls
    for known, cls in ENCODINGS.items():
        if str(name).lower() == cls.__name__.lower():
            raise InputError(f"unknown encoding {name!r}: did you mean {known!r}? known are {', '.join(ENCODINGS)}")
    schedule = f"a frequency schedule of rope; write posenc.Rotary(head_dim).with_schedule({name!r}, ...), or extend a model by it"
    a_map = f"a position map; write it after an encoding, as in rope@{name}"
    pattern = "a pattern of layers; pass it to posenc.create, as a text"
    for names, what in ((SCHEDULES, schedule), (position_maps.MAPS, a_map), (PATTERNS, pattern)):
        if isinstance(name, str) and name in names:
            raise InputError(f"encoding {name!r}: is {what}")
    raise unknown("encoding", name, [*ENCODINGS, *PATTERNS])


def create_map(spec: Spec) -> PositionMap:
    """The position map that a text names after "@", such as self_extend:window=1024:group=8."""
    return position_maps.create({"name": spec.name, **spec.values(f"position map {spec.name!r}")})
