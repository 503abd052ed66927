# SPDX-License-Identifier: Apache-2.0
"""The grammar of names with options: "rope:layout=half@rerope:window=4+alibi/none" for encodings,
"yarn:factor=4+resonance" for schedules, "key_value:keys=digits" for tasks. `parse` reads a text into a tree, str() prints it.

    encoding = layer / layer ..        layers that take turns
    layer    = term + term ..          a sum
    term     = single [@ single]       with a position map
    single   = name [: option=value] ..

The name of an encoding may be MODULE:CLASS or FILE:CLASS, which `posenc.lab.user_code` imports. A colon in a value is written \\:.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter
from pathlib import Path
from typing import Any, get_type_hints

from torch import Tensor

from posenc.errors import InputError, fits, listed, shown, spelled, unknown

PLUS = re.compile(r"\+(?=\s*(?:[A-Za-z_~]|\.{0,2}/))")
"""Between terms: what follows begins a name or a path, unlike in a value's 1e+5."""

MOST_TERMS = 64
"""Of a sum: each term is a module or a nested call."""
MOST_LAYERS = 1024
"""Of a text and of a pattern of layers."""
MOST_CHARACTERS = 100_000
"""Of a text."""


@dataclass(frozen=True)
class Spec:
    """One name with its options as they are written, and the position map after its "@"."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    map: "Spec | None" = None

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> "Spec":
        """A name with values for its options, which `values` reads again."""
        return cls(name, tuple((key, _as_text(value)) for key, value in options.items()))

    def __str__(self) -> str:
        options = (f"{key}={value}".replace(":", "\\:") for key, value in self.options)
        return ":".join((self.name, *options)) + (f"@{self.map}" if self.map else "")

    def values(self, what: str, known: Iterable[str] | None = None) -> dict[str, Any]:
        """The options with numbers, true, false, none and lists of numbers (1,2.5) as Python has them.

        what: the name's kind, for messages. known: the options there are; None: any."""
        values: dict[str, Any] = {}
        known = None if known is None else list(known)
        for key, text in self.options:
            if known is not None and key not in known:
                raise unknown(f"option of {what}", f"{key}={text}", known)
            if key in values:
                raise InputError(f"option {key} of {what} is written twice; write it once")
            value = values[key] = literal(text)
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"option {key}={text} of {what}: write a finite number")
            if isinstance(value, list) and any(map(math.isnan, value)):
                raise InputError(f"option {key}={text} of {what}: write numbers")
        return values


@dataclass(frozen=True)
class EncodingSpec:
    """The tree of an encoding's text: layers that take turns, each a sum of terms."""

    layers: tuple[tuple[Spec, ...], ...]

    def __str__(self) -> str:
        return "/".join("+".join(map(str, terms)) for terms in self.layers)

    @property
    def terms(self) -> tuple[Spec, ...]:
        """Every term of every layer, each once."""
        return tuple(dict.fromkeys(term for terms in self.layers for term in terms))

    def replaced(self, change: Callable[[Spec], Spec]) -> "EncodingSpec":
        """The tree with every term changed."""
        return EncodingSpec(tuple(tuple(map(change, terms)) for terms in self.layers))


def parse(text: str) -> EncodingSpec:
    """The tree of an encoding's text. Nothing is imported, and names are not looked up.

    Raises:
        InputError: an option without a value, more than 64 terms in a sum, 1024 layers or 100,000 characters.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{shown(text)}: has {len(text):,} characters; write at most {MOST_CHARACTERS:,}")
    layers = _layers(text)
    check_layers(text, len(layers))
    return EncodingSpec(tuple(tuple(parse_sum(layer, classes=True)) for layer in layers))


def check_layers(text: str, count: int) -> None:
    """Refuse more layers than a text may have."""
    if count > MOST_LAYERS:
        raise InputError(f"{shown(text)}: has {count:,} layers that take turns; write at most {MOST_LAYERS:,}")


def parse_sum(text: str, classes: bool = False) -> list[Spec]:
    """The terms of a sum, "yarn:factor=4+resonance"; the sign in a value's "1e+5" does not part terms.

    classes: names may be MODULE:CLASS or FILE:CLASS, and have position maps."""
    terms = PLUS.split(text) if classes else re.split(r"\+(?=\s*[A-Za-z])", text)
    if len(terms) > MOST_TERMS:
        raise InputError(f"{terms[0]!r} and {len(terms) - 1} more joined by +: join at most {MOST_TERMS}")
    if not classes:
        return [parse_single(term) for term in terms]
    singles = []
    for term in terms:
        single, at, of_map = term.partition("@")
        singles.append(replace(parse_single(single, True), map=parse_single(of_map) if at else None))
    return singles


def parse_single(text: str, classes: bool = False) -> Spec:
    """A name and its options, "key_value:keys=digits", without the space around them."""
    name, *pieces = (piece.strip().replace("\\:", ":") for piece in re.split(r"(?<!\\):", text))
    if classes and pieces and re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", pieces[0]):
        name = f"{name}:{pieces.pop(0)}"
    options = []
    for piece in pieces:
        key, _, value = piece.partition("=")
        if not value:
            raise InputError(f"option {piece} of {name}: write {key or 'option'}=value")
        options.append((key, value))
    return Spec(name, tuple(options))


def _layers(text: str) -> list[str]:
    """The text at its slashes, except those in the path of a file that there is, or else in the longest path."""
    paths = []
    # from a sign on, or the beginning: from any other character the rest would be read again
    for match in re.finditer(r"(?<![^:+@,])[^:+@,]*\.py(?=:[A-Za-z_])", text):
        starts = [i + 1 for i in range(match.start(), match.end()) if text[i] == "/"]
        if match.start() == 0 or PLUS.match(text, match.start() - 1):  # else an option's value comes first
            starts.insert(0, match.start())
        there = (start for start in starts if Path(text[start : match.end()].strip()).is_file())
        paths.append(range(next(there, min(starts, default=match.end())), match.end()))
    inside = {i for path in paths for i in path}
    cuts = [i for i, sign in enumerate(text) if sign == "/" and i not in inside]
    return [text[start + 1 : end] for start, end in itertools.pairwise([-1, *cuts, len(text)])]


def split_list(text: str) -> list[str]:
    """Encodings joined by commas, where what follows a comma as a number does goes on with an option's list:
    "rope,m_rope:sections=16,8,8"."""
    items: list[list[str]] = []
    listing, valued = False, False  # valued: the last item ends in an option's value
    for piece in text.split(","):
        if listing and (not piece or re.match(r"[-+]?(\.?\d|inf|nan)", piece)):
            items[-1].append(piece)
        elif piece:
            items.append([piece])
            valued = False
        last = re.split(r"[:+@/]", piece)
        valued = "=" in last[-1] or (valued and len(last) == 1)
        listing = valued and (piece[-1:].isdecimal() or (listing and not piece and items[-1][-2:] != ["", ""]))
    return [",".join(item) for item in items]


# ---------------------------------------------------------------- values


def literal(text: str) -> Any:
    """A number, true/false/none, a list of numbers (1,2.5 or [1, 2.5]; one alone 1, or [1]), or the text itself; between single
    quotes ('1') always a text."""
    if QUOTED.fullmatch(text):
        return unquoted(text)
    if text.startswith("[") and text.endswith("]"):
        text = f"{text[1:-1].strip().removesuffix(',')},"
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return [kind(part) for part in text.removesuffix(",").split(",")] if "," in text else kind(text)
        except ValueError:
            continue
    return text


QUOTED = re.compile(r"'.*'", re.DOTALL)


def unquoted(text: str) -> str:
    """A text without the single quotes around it."""
    return text[1:-1] if QUOTED.fullmatch(text) else text


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        same = literal(value) == value and value == value.strip() and value
        return value if same else f"'{value}'"
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) + ("," if len(value) == 1 else "")
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def check_options(what: str, options: Mapping[str, Any], known: Iterable[str], function: Callable[..., Any]) -> None:
    """Refuse options that a function does not take, and values that are not of the type it declares."""
    known, hints = list(known), get_type_hints(function)
    for key, value in options.items():
        if key not in known:
            raise unknown(f"option of {what}", key, known)
        if not fits(value, hints.get(key, Any)):
            raise InputError(f"option {key}={shown(value)} of {what}: pass {spelled(hints[key])}")


def check_complete(what: str, given: Iterable[str], parameters: Mapping[str, Parameter], /, **ways: str) -> None:
    """Refuse a call without arguments that have no default. ways: how to give one, if not under its name."""
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in given]
    if missing:
        raise InputError(f"{what} needs {listed(missing)}: pass {' and '.join(ways.get(k, f'{k}=') for k in missing)}")


def read_json(text: str | bytes) -> Any:
    """What a JSON text holds."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deep") from None
