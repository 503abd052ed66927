"""What every function refuses, in one place and in the same words: values of another type than its signature declares,
numbers that are none, and sizes that no machine holds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from inspect import Signature, isclass, signature
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from posenc.errors import InputError, unknown

P = ParamSpec("P")
R = TypeVar("R")

TOO_LARGE = ("allocate", "not enough memory", "overflow", "out of range", "too large", "invalid shape dimension")
"""What errors of Python and of PyTorch say of sizes that cannot be."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which refuses arguments of another type than it declares, numbers that are not finite, and sizes too
    large for memory. Compiled code passes it by: what is checked are Python's values, not what tensors hold."""
    declared: list[tuple[Signature, dict[str, Any]]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if not declared:
            declared.append((signature(function), _named_hints(function)))
        form, hints = declared[0]
        try:
            given = form.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # a wrong number of arguments: Python says which
        for name, hint in hints.items():
            if name in given and given[name] is not form.parameters[name].default:
                check_value(name, given[name], hint)
        try:
            return function(*args, **kwargs)
        except (MemoryError, OverflowError, RuntimeError) as error:
            raise _too_large(error, given) or error from None

    return call


def check_fields(data: Any) -> None:
    """`checked` for the fields of a dataclass, from its `__post_init__`."""
    hints = _hints(type(data))
    for field in fields(data):
        value = getattr(data, field.name)
        if value is not field.default:
            check_value(field.name, value, hints.get(field.name, Any))


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that is not of an argument's declared type, or a number that is not finite.

    Raises:
        InputError: names the argument, the value and what to pass.
    """
    if get_origin(hint) is Literal and not (isinstance(value, str) and value in get_args(hint)):
        raise unknown(name, value, get_args(hint))
    if not fits(value, hint):
        raise InputError(f"{name}={shown(value)}: pass {spelled(hint)}")
    if isinstance(value, Real) and not isinstance(value, Integral) and not math.isfinite(value):
        raise InputError(f"{name}={value}: pass a number that is finite")
    if isinstance(value, int) and float in kinds(hint) and abs(value) >= 2**1023:
        raise InputError(f"{name}={shown(value)}: too large for a floating-point number")


def check_bool(**flags: Any) -> None:
    """Refuse what is neither true nor false, such as 1 or "no"."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InputError(f"{name}={shown(flag)}: pass True or False")


def check_whole(least: int | None = 0, /, **counts: Any) -> None:
    """Refuse what is no whole number, or one below `least`; a float is none, even 4.0."""
    for name, count in counts.items():
        if type(count) is not int and not _is_whole(count):
            raise InputError(f"{name}={shown(count)}: pass an integer")
        if least is not None and count < least:
            raise InputError(f"{name}={count}: must be at least {least}")


def _is_whole(count: object) -> bool:
    return type(count) is not bool and isinstance(count, (Integral, torch.SymInt))


def check_number(name: str, value: Any, *, infinite: bool = False) -> None:
    """Refuse what is no real number, and one that is not finite unless that means something."""
    if type(value) is not float:
        check_value(name, value, int | float)
    elif value != value or (not infinite and math.isinf(value)):
        raise InputError(f"{name}={value}: pass a number" + ("" if infinite else " that is finite"))


def check_tensor(name: str, x: Any, *, whole: bool = False, real: bool = True) -> None:
    """Refuse what is no dense tensor of numbers: bool, complex and sparse ones, and those that have no values.

    whole: integers only. Reads no value, so that a GPU need not wait.
    """
    if not isinstance(x, Tensor):
        raise InputError(f"{name}={shown(x)}: pass a tensor")
    if x.dtype == torch.bool or x.is_complex() or x.layout != torch.strided:
        raise InputError(f"{name} of {x.dtype}, {x.layout}: pass a dense tensor of real numbers")
    if whole and x.is_floating_point():
        raise InputError(f"{name} of {x.dtype}: pass integers")
    if x.is_meta and real:
        raise InputError(f"{name} is on meta, where tensors have no values: pass one that has")


def same_device(**tensors: Tensor) -> None:
    """Refuse tensors on several devices."""
    (first, x), *rest = tensors.items()
    for name, y in rest:
        if y.device != x.device:
            raise InputError(f"{name} is on {y.device}, {first} on {x.device}: pass {name}.to({first}.device)")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type; an int serves as a float, a bool as neither."""
    allowed = kinds(hint)
    if any(kind in (Any, Literal, object) or not (isclass(kind) or kind is CALLABLE) for kind in allowed):
        return True  # the callee knows its words
    if isinstance(value, (bool, str)):
        return type(value) in allowed
    if isinstance(value, Real):
        return bool({int, float} & set(allowed)) if isinstance(value, Integral) else float in allowed
    return any(callable(value) if kind is CALLABLE else isinstance(value, kind) for kind in allowed)


CALLABLE = get_origin(Callable[..., Any])


def kinds(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows, without their parameters."""
    union = get_origin(hint) in (UnionType, Union)
    return tuple(get_origin(kind) or kind for kind in (get_args(hint) if union else (hint,)))


def spelled(hint: Any) -> str:
    """A declared type in words."""
    words: dict[Any, str] = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        NoneType: "none",
        str: "a word",
    }
    words |= {Sequence: "a list of numbers", Tensor: "a tensor", Mapping: "a dict, from Python", CALLABLE: "a function"}
    return " or ".join(words.get(kind) or f"{_article(kind.__name__)} {kind.__name__}" for kind in kinds(hint))


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


def _named_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The declared types of what is not *args or **kwargs."""
    named = {n for n, p in signature(function).parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return {name: hint for name, hint in _hints(function).items() if name in named}


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # a caller's own class, with types that exist for its type checker alone
        return {}


def _too_large(error: Exception, given: Mapping[str, Any]) -> InputError | None:
    """What an error about a size comes from: the largest number given. None: it is no error about sizes."""
    numbers = {name: abs(v) for name, v in given.items() if isinstance(v, (int, float)) and v is not True}
    told = str(error).lower()
    if not numbers or not (isinstance(error, MemoryError) or any(words in told for words in TOO_LARGE)):
        return None
    name = max(numbers, key=lambda n: numbers[n])
    return InputError(f"{name}={shown(given[name])}: too large for this machine, pass a smaller number")
