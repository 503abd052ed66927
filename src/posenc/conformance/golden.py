# SPDX-License-Identifier: Apache-2.0
"""The golden vectors: cases of every kind with the values of the authors' formulas, computed at first use; how a function is
called with a case, and how its result compares."""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import Parameter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.conformance.cases import CASES, content
from posenc.conformance.faults import expected_values
from posenc.conformance.kinds import FLAGS, FLOAT32, FREQUENCIES, KINDS, TENSORS, Convention
from posenc.errors import InputError
from posenc.lab.messages import first_line, users_line
from posenc.testing.oracles import rotations

DECLINED = "raises NotImplementedError"


@dataclass(frozen=True, eq=False)
class GoldenCase:
    """Arguments by name, and the expected values in float64; of a frequency schedule its attention factor, too."""

    arguments: dict[str, Any]
    expected: Tensor
    attention_factor: float | None = None


@cache
def cases(kind: str) -> list[GoldenCase]:
    """The cases of a kind, with the values of its formula in float64."""
    return [GoldenCase(given, expected_values(kind, given), attention_factor(kind, given)) for given in CASES[kind]]


def attention_factor(kind: str, given: Mapping[str, Any]) -> float | None:
    """What a frequency schedule multiplies cos and sin by: sqrt(1 + ln(factor) / ln(original length)) (Ding et al. 2024);
    0.1 ln(factor) + 1 (Peng et al. 2023, eq. 22; the code's get_mscale). None: it is no schedule."""
    if KINDS[kind].returns != FREQUENCIES:
        return None
    if kind == "longrope":
        return math.sqrt(1 + math.log(given["factor"]) / math.log(given["original_max_positions"]))
    return 0.1 * math.log(given["factor"]) + 1 if kind.startswith("yarn") and given["factor"] > 1 else 1.0


def example(convention: Convention, positions: list[int], width: int) -> dict[str, Any]:
    """Arguments of a kind other than x, for tokens at these positions and heads of a width."""
    rows, pairs = len(positions), width // 2
    weights = [[[(2 * m - 3 * c) % 5 / 4 - 0.5 for c in range(pairs // 2)] for m in range(pairs // 2)]]
    text = rows - 4
    values = {
        "positions": [[p // divisor for p in positions] for divisor in (1, 2, 3)] if {"sections", "widths"} & {*convention.arguments} else positions,
        "relative_position": [p - rows // 2 for p in positions],
        "base": 1e4, "rotary_dim": pairs, "dim": width, "head_dim": width, "scale_base": 512, "fraction": 0.5,
        "sections": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3], "offsets": positions[:1], "cu_seqlens": [0, rows],
        "cosines": weights, "sines": weights, "bidirectional": True, "num_buckets": 32, "max_distance": 128,
        "buckets": 32, "max_position": 128, "merge": 2, "attention_mask": [[1] * rows],
        "widths": [width - width // 8 * 4, width // 8 * 2, width // 8 * 2],
        "height": 2, "width": 3, "size": min(rows, 9), "chunk": 3, "left_chunks": 1, "window": 3, "num_queries": 3, "num_keys": 9,
        "document_ids": [2 * n // rows for n in range(rows)], "q": content(1, 2, 9, width), "table": content(1, 1, 15 if "height" in convention.arguments else 7, width)[0][0],
        "scores": content(1, 2, 3, 3 if convention.past else 5), "log_gates": content(1, 1, 2, rows)[0],
        "token_types": [[0, 1, 1, *[0] * (text - 1), 2, 2]], "image_grids": [[1, 2, 4]], "video_grids": [[1, 4, 2]],
    }  # fmt: skip
    return {name: values[name] for name in convention.arguments if name != "x"}


# -------------------------------------------------------------------- calling


class Caller:
    """Call a function under a convention: by name where its parameters have the convention's names; the other arguments
    go, in the order of the convention, to the other parameters, in theirs.

    by_position: the convention's names of arguments that are passed by position. by_name: a parameter of the function ->
    the convention's name of its argument.

    Raises:
        InputError: a class, or a method without its object.
    """

    def __init__(self, function: Callable[..., Any], convention: Convention) -> None:
        parameters = _parameters(function)
        name = getattr(function, "__qualname__", type(function).__name__)
        if inspect.isclass(function):
            raise InputError(f"{name} is a class: pass a function that makes an object of it and calls that")
        if inspect.isfunction(function) and parameters and parameters[0].name == "self":
            raise InputError(f"{name} is a method without its object: pass the method of an object, or a wrapper")
        self.function, self.convention = function, convention
        self.by_position, self.by_name = _bind(parameters, convention)

    def __call__(self, given: Mapping[str, Any]) -> Any:
        """What the function returns for arguments under the convention's names."""
        named = {parameter: given[name] for parameter, name in self.by_name.items() if name in given}
        return self.function(*(given[name] for name in self.by_position), **named)

    def cast(self, dtype: torch.dtype) -> "Caller | None":
        """A copy whose module is cast, as that of a model is by model.to(dtype); None: the function is no module's."""
        method = self.function if inspect.ismethod(self.function) else None
        module = method.__self__ if method else self.function
        if not isinstance(module, torch.nn.Module):
            return None
        module = copy.deepcopy(module).to(dtype)
        return Caller(getattr(module, method.__name__) if method else module, self.convention)

    def accepts(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the function has parameters for all options of a case."""
        return all(name in self.convention.arguments or name in self.by_name.values() for name in arguments)

    @property
    def missing(self) -> list[str]:
        """The convention's arguments for which the function has no parameter."""
        return [name for name in self.convention.arguments if name not in (*self.by_position, *self.by_name.values())]


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    """Declared parameters; some builtins have none."""
    try:
        called = function.forward if isinstance(function, torch.nn.Module) else function
        return list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return []


def _bind(parameters: list[Parameter], convention: Convention) -> tuple[list[str], dict[str, str]]:
    arguments, known = convention.arguments, {*convention.arguments, *convention.options}
    if not parameters:
        return list(arguments), {}
    styles = {p.kind for p in parameters}
    by_name = {p.name: p.name for p in parameters if p.name in known and p.kind is not p.POSITIONAL_ONLY}
    if Parameter.VAR_POSITIONAL in styles:
        by_name = {p.name: p.name for p in parameters if p.name in by_name and p.kind is p.KEYWORD_ONLY}
        return [name for name in arguments if name not in by_name], by_name
    rest = iter([p for p in parameters if p.name not in by_name and p.kind is not p.VAR_KEYWORD])
    by_position: list[str] = []
    for name in [name for name in arguments if name not in by_name]:
        if Parameter.VAR_KEYWORD in styles:
            by_name[name] = name
        elif (parameter := _next_of_type(rest, name)) is None:
            break
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            by_position.append(name)
        else:
            by_name[parameter.name] = name
    required = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if not {*required} <= {*by_name, *(p.name for p in parameters[: len(by_position)])}:
        return list(arguments[: len(required)]), {}  # the names meant something else
    return by_position, by_name


def _next_of_type(parameters: Iterator[Parameter], name: str) -> Parameter | None:
    """The next parameter whose default, if it has one, is of the argument's type."""
    for parameter in parameters:
        default = parameter.default
        flag, number = isinstance(default, bool), isinstance(default, (int, float))
        fits = flag if name in FLAGS else number and not flag and name not in TENSORS
        if default is parameter.empty or default is None or fits:
            return parameter
    return None


def from_angles(function: Callable[..., Any], convention: Convention) -> Callable[..., Any] | None:
    """Wrap a function of cos and sin, f(x, cos, sin) or f(q, k, cos, sin), in one under a rotary convention, which makes
    them as transformers does: (1, seq, channels) in x's dtype, an angle for each channel. None: it is no such function."""
    names = [p.name for p in _parameters(function)]
    before = names.index("cos") if "cos" in names else 0
    kinds = (KINDS[kind] for kind in ("rotary", "rotary_interleaved", "rotary_partial"))
    takes_angles = before in (1, 2) and names[before : before + 2] == ["cos", "sin"] and names[0] != "self"
    if convention not in kinds or inspect.isclass(function) or not takes_angles:
        return None

    def rotary(x: Tensor, positions: Tensor, base: float, rotary_dim: int | None = None) -> Any:
        width = x.shape[-1] if rotary_dim is None else rotary_dim
        turns = rotations.angles(positions.double(), width, base)
        layout = "interleaved" if convention == KINDS["rotary_interleaved"] else "half"
        angles = rotations.by_layout(layout, turns, turns)
        cos, sin = angles.cos().to(x.dtype)[None], angles.sin().to(x.dtype)[None]
        if before == 1:
            return function(x, cos, sin)
        q, k = function(x, x.clone(), cos, sin)
        if not torch.equal(q, k):
            raise WrongResult("equal queries and keys at the same positions come back unequal")
        return q

    return rotary


class WrongResult(Exception):
    """What is wrong with a result that has no values to compare."""


TORCH_LACKS = "not implemented for '", "Could not run '"
"""torch's NotImplementedError, of an operator that a dtype or a device lacks."""
NUMPY_LACKS = "unsupported ScalarType", "Can't call numpy() on Tensor that requires grad"
"""torch's message where a tensor cannot become a numpy array at all."""


def declines(error: BaseException) -> bool:
    """Whether a function declines a case itself, with NotImplementedError, or numpy does for it."""
    if isinstance(error, NotImplementedError):
        return not any(words in str(error) for words in TORCH_LACKS)
    return any(words in str(error) for words in NUMPY_LACKS)


def format_exception(error: BaseException) -> str:
    """An exception's type and first line, and the line of the caller's own code that it came through."""
    line = users_line(error)
    text = f"{type(error).__name__}{': ' + first_line(error)[:160] if str(error).strip() else ''}"
    return text if line is None else f"{text} ({Path(line).name})"


# -------------------------------------------------------------------- results


@dataclass(frozen=True, eq=False)
class CaseResult:
    """A case and its result: float64 values, the dtype they had, and the attention factor of a schedule that returned
    one; or, with values=None, the reason why there is none, and whether it is that the function raised."""

    convention: Convention
    case: GoldenCase
    values: Tensor | None = None
    dtype: torch.dtype = torch.float64
    attention_factor: float | None = None
    refusal: str = ""
    raised: bool = False

    @property
    def expected(self) -> Tensor:
        return self.case.expected

    @property
    def right(self) -> bool:
        return self.matches(self.expected)

    def matches(self, values: Tensor) -> bool:
        """Whether these are the result, within the tolerance of its dtype; axes of length 1 do not count."""
        wrong = self.wrong(values)
        return wrong is not None and not bool(wrong.any())

    def wrong(self, values: Tensor) -> Tensor | None:
        """Where the result is not these values, in their shape; None if the shapes differ."""
        assert self.values is not None
        if self.values.squeeze().shape != values.squeeze().shape:
            return None
        eps = max(torch.finfo(self.dtype).eps, FLOAT32) if self.dtype.is_floating_point else FLOAT32
        allowed = self.convention.tolerance(values, self.case.arguments, eps)
        return ~((self.values.reshape(values.shape) - values).abs() <= allowed)  # NaN is wrong


def _tensor(name: str, value: Any, dtype: torch.dtype) -> Tensor:
    # never the case's: the function may change it
    tensor = value.to(dtype, copy=True) if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype)
    return tensor.view(-1, 3) if name.endswith("grids") else tensor  # none are (0, 3)


def run_case(caller: Caller, case: GoldenCase, **dtypes: torch.dtype) -> CaseResult:
    """Call the function with a case's arguments; dtypes replace those of `TENSORS`."""
    convention, types = caller.convention, {**TENSORS, **dtypes}
    given = {
        name: _tensor(name, value, types[name]) if name in types else copy.copy(value)
        for name, value in case.arguments.items()
    }
    try:
        returned = caller(given)
    except WrongResult as wrong:
        return CaseResult(convention, case, refusal=str(wrong))
    except (Exception, SystemExit) as error:
        refusal = DECLINED if declines(error) else f"raises {format_exception(error)}"
        return CaseResult(convention, case, refusal=refusal, raised=refusal != DECLINED)
    try:
        numbers, factor = _schedule(returned) if convention.returns == FREQUENCIES else (returned, None)
        if isinstance(numbers, (list, tuple)) and any(getattr(item, "ndim", 0) > 1 for item in numbers):
            raise TypeError  # a query and a key, say, which would stack to one array
        tensor = numbers.detach() if isinstance(numbers, Tensor) else torch.as_tensor(numbers)
        if isinstance(numbers, (list, tuple)) and tensor.is_floating_point():  # Python's floats have 64 bits
            tensor = torch.tensor(numbers, dtype=torch.float64)
        factor = None if factor is None else float(factor)
        values = convention.counted(tensor.to("cpu", torch.float64))
        return CaseResult(convention, case, values, tensor.dtype, factor)
    except (TypeError, ValueError, RuntimeError):
        return CaseResult(convention, case, refusal=f"returns {_type_of(returned)}, expected {convention.returns}")


def _schedule(result: Any) -> tuple[Any, Any]:
    if isinstance(result, Mapping) and "inv_freq" in result:
        return result["inv_freq"], result.get("attention_factor")
    if hasattr(result, "inv_freq"):
        return result.inv_freq, getattr(result, "attention_factor", None)
    return result if isinstance(result, tuple) and len(result) == 2 else (result, None)


def _type_of(result: Any) -> str:
    if isinstance(result, (list, tuple)):
        return f"a {type(result).__name__} of {', '.join(_type_of(item) for item in result[:3])}"
    return "None" if result is None else f"a {type(result).__name__}"
