# SPDX-License-Identifier: Apache-2.0
"""Validation of arguments, in one place and in the same words: declared types, finite numbers, size limits."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache, wraps
from inspect import isclass, signature
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from posenc.errors import InputError, unknown

P = ParamSpec("P")
R = TypeVar("R")

LARGEST = 2**63 - 1
"""The largest integer that a tensor holds."""

LARGEST_SIZE = 2**24
"""Of a width, a count or a table's rows: more than any model has."""

SINGLE_MOST = torch.finfo(torch.float32).max

LEAST_DIVISOR = 1e-19
"""Of what positions or scores are divided by: a quotient of a 63-bit integer stays in float32."""

CALLABLE = get_origin(Callable[..., Any])
WORDS: dict[Any, str] = {
    int: "an integer", float: "a number", bool: "True or False", NoneType: "None", str: "a text", Tensor: "a tensor",
    Sequence: "a list", Mapping: "a dict, from Python", CALLABLE: "a function",
}  # fmt: skip


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which refuses arguments of another type than it declares and numbers that are not finite. What the
    function itself raises passes through as it is. Compiled code skips the check, which never reads a tensor.

    For what is called once a model or once a forward pass; `attention` and encodings check by hand.
    """
    parameters = signature(function).parameters
    places = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = {p.name for p in parameters.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    hints: dict[str, Any] = {}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if not hints:  # names of types may be known only once all modules are there
            hints.update({n: h for n, h in _hints(function).items() if n not in several} or {"": Any})
        for name, value in (*zip(places, args, strict=False), *kwargs.items()):  # a wrong number is left to Python
            hint = hints.get(name, Any)
            if hint is not Any and value is not parameters[name].default:
                check_value(name, value, hint)
        return function(*args, **kwargs)

    return call


def check_fields(data: Any) -> None:
    """`checked` for the fields of a dataclass, from its `__post_init__`."""
    hints = _hints(type(data))
    for field in fields(data):
        value = getattr(data, field.name)
        if value is not field.default:
            check_value(field.name, value, hints.get(field.name, Any))


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Refuse values, by argument, that are not of the types that a function declares, or numbers that are not finite."""
    parameters = signature(function).parameters
    for name, hint in _hints(function).items():
        if name in parameters and name in values and values[name] is not parameters[name].default:
            check_value(name, values[name], hint)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that is not of an argument's declared type, or a number that is not finite.

    Raises:
        InputError: names the argument, the value and what to pass.
    """
    if get_origin(hint) is Literal and not (isinstance(value, str) and value in get_args(hint)):
        raise unknown(name, value, get_args(hint))
    if not fits(value, hint):
        raise InputError(f"{name}={shown(value)}: pass {spelled(hint)}")
    if isinstance(value, Tensor):
        _check_dense(name, value)
    elif isinstance(value, Integral):
        if abs(int(value)) > LARGEST:
            raise InputError(f"{name}={shown(int(value))}: too large, pass an integer of 64 bits")
    elif isinstance(value, Real):
        check_number(name, float(value))


def check_number(name: str, value: float) -> None:
    """Refuse NaN, infinity, and what single precision takes for infinity."""
    if not math.isfinite(value):
        raise InputError(f"{name}={value}: pass a number that is finite")
    if abs(value) > SINGLE_MOST:
        raise InputError(f"{name}={value}: pass a number within +-{SINGLE_MOST:.1e}, as float32 holds")


def check_divisors(**numbers: float) -> None:
    """Refuse what is not above 0, or so little that float32 takes quotients for infinity."""
    for name, value in numbers.items():
        if not LEAST_DIVISOR <= value < math.inf:
            raise InputError(f"{name}={value}: must be a positive number, at least {LEAST_DIVISOR}")


def check_sizes(**sizes: int | None) -> None:
    """Refuse counts below 1, and above what anything has; None is left to whoever allows it."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise InputError(f"{name}={size}: must be at least 1")
        if size is not None and size > LARGEST_SIZE:
            raise InputError(f"{name}={size}: must be at most {LARGEST_SIZE}")


def check_word(name: str, word: str, known: Iterable[str]) -> None:
    """Refuse an option's word that is not among the known ones, naming the nearest."""
    if not isinstance(word, str) or word not in (known := tuple(known)):
        raise unknown(name, word, known)


def check_flags(**flags: Any) -> None:
    """Refuse what is neither true nor false, such as 1 or "no"."""
    for name, flag in flags.items():
        if flag is not True and flag is not False:
            raise InputError(f"{name}={shown(flag)}: pass True or False")


def check_tensor(name: str, x: Any, *, whole: bool = False, meta: bool = False) -> None:
    """Refuse what is no dense tensor of real numbers, without reading one, so that no GPU waits.

    whole: of integers only. meta: it may be on meta, where tensors have no values, as while a model is made there.
    """
    if not isinstance(x, Tensor):
        raise InputError(f"{name}={shown(x)}: pass a tensor")
    _check_dense(name, x)
    if x.dtype == torch.bool or (whole and x.is_floating_point()):
        raise InputError(f"{name} of {x.dtype}: pass {'integers' if whole else 'numbers'}")
    if x.is_meta and not meta and not torch.compiler.is_compiling():
        raise InputError(f"{name} is on meta, where tensors have no values: pass one on a device")


def as_numbers(
    name: str, values: Any, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """A tensor from one, or from an array or nested lists of real numbers."""
    try:
        found = torch.as_tensor(values, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(f"{name}={shown(values)}: pass a tensor, or lists of numbers that are as long") from None
    _check_dense(name, found)
    return found


def check_device(device: torch.device | str | None) -> None:
    """Refuse what names no device of this machine."""
    if device is not None and not isinstance(device, torch.device):
        try:
            torch.device(device)
        except (RuntimeError, TypeError):
            raise InputError(f"device={shown(device)}: pass a device that this machine has, such as 'cpu'") from None


def _check_dense(name: str, x: Tensor) -> None:
    if x.layout != torch.strided:
        raise InputError(f"{name} of {x.layout}: pass a dense tensor, {name}.to_dense()")
    if x.is_complex():
        raise InputError(f"{name} of {x.dtype}: pass real numbers")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type; an int serves as a float, a bool as neither."""
    allowed, kind = kinds(hint), type(value)
    if kind in allowed or Any in allowed or Literal in allowed or object in allowed:
        return True  # the callee knows its words
    if kind is bool or isinstance(value, str):
        return False
    if isinstance(value, Real):
        return float in allowed or (int in allowed and isinstance(value, Integral))
    return any(callable(value) if kind is CALLABLE else isinstance(value, kind) for kind in allowed)


@cache
def kinds(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, without their parameters; those that are no classes, and protocols, count as Any."""
    union = get_origin(hint) in (UnionType, Union)
    found = (get_origin(kind) or kind for kind in (get_args(hint) if union else (hint,)))
    return tuple(kind if kind in (CALLABLE, Literal) or _is_plain_class(kind) else Any for kind in found)


def _is_plain_class(kind: Any) -> bool:
    return isclass(kind) and not getattr(kind, "_is_protocol", False)


def spelled(hint: Any) -> str:
    """A declared type in words."""
    return " or ".join(WORDS.get(kind) or f"{_article(kind.__name__)} {kind.__name__}" for kind in kinds(hint))


def shown(value: object) -> str:
    """A value as a message shows it: short, and never what a tensor holds."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"about {'-' if value < 0 else ''}2^{value.bit_length()}"
    try:
        text = repr(value)
    except Exception:
        text = f"{_article(type(value).__name__)} {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:60]}.. ({type(value).__name__})"


def _article(name: str) -> str:
    return "an" if name[0].lower() in "aeiou" else "a"


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # a caller's own class, with types that exist for its type checker alone
        return {}


def is_whole(value: object) -> bool:
    """Whether a value is an integer, which no bool is."""
    return isinstance(value, (int, torch.SymInt, Integral)) and not isinstance(value, bool)


def holds_integers(x: Tensor) -> bool:
    """Whether a tensor's values are integers that can be read."""
    return not (x.is_floating_point() or x.dtype == torch.bool or x.is_meta)
