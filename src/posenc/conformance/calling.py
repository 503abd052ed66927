# SPDX-License-Identifier: Apache-2.0
"""How a function is called under a convention, and how its result becomes numbers."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posenc.conformance.kinds import FREQUENCIES, KINDS, Kind
from posenc.errors import InputError

TENSORS = {"x": torch.float32, "positions": torch.int64, "relative_position": torch.int64}
"""Arguments that are given as tensors, and their dtype."""

Parameter = inspect.Parameter


@dataclass(frozen=True)
class Caller:
    """Calls a function under a convention: by name where its parameters have the convention's names; what then remains
    goes, in the order of the convention, to the parameters that remain, in theirs.

    Raises:
        InputError: a class, or a method without its object.
    """

    function: Callable[..., Any]
    kind: Kind

    def __post_init__(self) -> None:
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        if inspect.isclass(self.function):
            raise InputError(f"{name} is a class: hand over a function that makes an object of it and calls that")
        first = next(iter(self._parameters), None)
        if inspect.isfunction(self.function) and first is not None and first.name == "self":
            raise InputError(f"{name} is a method without its object: hand over the method of an object, or a wrapper")

    def __call__(self, arguments: Mapping[str, Any], **dtypes: torch.dtype) -> Any:
        """What the function returns; dtypes replace those of TENSORS."""
        return self.with_tensors(
            {
                name: torch.tensor(value, dtype={**TENSORS, **dtypes}[name]) if name in TENSORS else value
                for name, value in arguments.items()
            }
        )

    def with_tensors(self, given: Mapping[str, Any]) -> Any:
        """The same for tensors already made."""
        by_position, by_name = self.places
        return self.function(
            *(given[name] for name in by_position),
            **{parameter: given[name] for parameter, name in by_name.items() if name in given},
        )

    def takes(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the function can be given all options of a case."""
        return all(name in self.kind.arguments or name in self.places[1].values() for name in arguments)

    @property
    def missing(self) -> list[str]:
        """The convention's arguments for which the function has no parameter."""
        by_position, by_name = self.places
        return [name for name in self.kind.arguments if name not in {*by_position, *by_name.values()}]

    @cached_property
    def places(self) -> tuple[list[str], dict[str, str]]:
        """The arguments given by position, and those given by name: {the function's name: the convention's}."""
        arguments, parameters = self.kind.arguments, self._parameters
        if not parameters:
            return list(arguments), {}
        styles = {p.kind for p in parameters}
        known = {*arguments, *self.kind.options}
        named = {p.name: p.name for p in parameters if p.name in known and p.kind is not p.POSITIONAL_ONLY}
        if Parameter.VAR_POSITIONAL in styles:
            alone = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
            by_name = {name: name for name in named if name in alone}
            return [name for name in arguments if name not in by_name], by_name
        left = iter([p for p in parameters if p.name not in named and p.kind is not p.VAR_KEYWORD])
        by_position = []
        for name in arguments:
            if name in named.values():
                continue
            if Parameter.VAR_KEYWORD in styles:
                named[name] = name
            elif (parameter := _next_that_fits(left, name)) is None:
                break
            elif parameter.kind is parameter.POSITIONAL_ONLY:
                by_position.append(name)
            else:
                named[parameter.name] = name
        filled = {*named, *(p.name for p in parameters[: len(by_position)])}
        required = {p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
        return (by_position, named) if required <= filled else (list(arguments[: len(required)]), {})

    @cached_property
    def _parameters(self) -> list[Parameter]:
        return parameters_of(self.function)


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """Those that it declares; some builtins have none."""
    try:
        called = function.forward if isinstance(function, torch.nn.Module) else function
        return list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return []


def from_angles(function: Callable[..., Any], kind: Kind) -> Callable[..., Any] | None:
    """For a function of cos and sin, f(x, cos, sin) or f(q, k, cos, sin), one under the rotary convention, which makes them
    as transformers does: (1, seq, channels) in x's dtype, an angle for each channel. None: it is no such function."""
    names = [p.name for p in parameters_of(function)]
    before = names.index("cos") if "cos" in names else 0
    if "x" not in kind.arguments or inspect.isclass(function) or before not in (1, 2):
        return None
    if names[before : before + 2] != ["cos", "sin"] or names[0] == "self":
        return None

    def turned(x: Tensor, positions: Tensor, base: float, rotary_dim: int | None = None) -> Any:
        width = x.shape[-1] if rotary_dim is None else rotary_dim
        angles = positions.double()[:, None] * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        interleaved = kind == KINDS["rotary_interleaved"]
        angles = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype)[None], angles.sin().to(x.dtype)[None]
        if before == 1:
            return function(x, cos, sin)
        q, k = function(x, x.clone(), cos, sin)
        if not torch.equal(q, k):
            raise ValueError("equal queries and keys at the same positions come back unequal")
        return q

    return turned


FLAGS = {"bidirectional", "truncate"}


def _next_that_fits(parameters: Iterator[Parameter], name: str) -> Parameter | None:
    """The next parameter whose default, if it has one, is of the argument's sort."""
    for parameter in parameters:
        default = parameter.default
        flag, number = isinstance(default, bool), isinstance(default, (int, float))
        fits = flag if name in FLAGS else number and not flag and name not in TENSORS
        if default is parameter.empty or default is None or fits:
            return parameter
    return None


# -------------------------------------------------------------------- results


class Unreadable(Exception):
    """A result that is no array of numbers: the message says what it is."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A result as numbers: float64 values, the dtype they came in, and a schedule's attention factor if it was given."""

    values: Tensor
    dtype: torch.dtype
    attention_factor: float | None = None


def read(result: Any, kind: Kind) -> Answer:
    """The numbers of a result.

    Raises:
        Unreadable: it is no array of numbers.
    """
    try:
        factor = None
        if kind.returns == FREQUENCIES:
            result, factor = _schedule(result)
        elif isinstance(result, (list, tuple)) and any(getattr(item, "ndim", 0) > 1 for item in result):
            raise TypeError  # a query and a key, say, which would stack to one array
        tensor = result.detach() if isinstance(result, Tensor) else torch.as_tensor(result)
        plain = isinstance(result, (list, tuple)) and tensor.is_floating_point()  # Python's floats have 64 bits
        values = torch.tensor(result, dtype=torch.float64) if plain else tensor.to("cpu", torch.float64)
        return Answer(values, values.dtype if plain else tensor.dtype, None if factor is None else float(factor))
    except (TypeError, ValueError, RuntimeError):
        raise Unreadable(f"returns {_described(result)}, expected {kind.returns}") from None


def _schedule(result: Any) -> tuple[Any, Any]:
    if isinstance(result, Mapping) and "inv_freq" in result:
        return result["inv_freq"], result.get("attention_factor")
    if hasattr(result, "inv_freq"):
        return result.inv_freq, getattr(result, "attention_factor", None)
    return result if isinstance(result, tuple) and len(result) == 2 else (result, None)


def own_dtype(result: Any) -> torch.dtype | None:
    """The dtype of a tensor; None for lists and numpy arrays, which do not have all of torch's dtypes."""
    return result.dtype if isinstance(result, Tensor) else None


def _described(result: Any) -> str:
    if isinstance(result, (list, tuple)):
        return f"a {type(result).__name__} of {', '.join(_described(item) for item in result[:3])}"
    return "None" if result is None else f"a {type(result).__name__}"
