"""What can be held against the golden vectors: how each kind of function is called, and how close it must come."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FLOAT32 = torch.finfo(torch.float32).eps
TENSORS = {"x": torch.float32, "positions": torch.int64, "relative_position": torch.int64}
"""Arguments that are given as tensors, and their dtype."""

OPEN_ENDED = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}

Tolerance = Callable[[Tensor, Mapping[str, Any], float], Tensor]


def of_angles(expected: Tensor, arguments: Mapping[str, Any], eps: float) -> Tensor:
    """Eight roundings of the result's dtype (at least float32), and angles from frequencies in float32: position *
    2^-22; times the size of what is turned."""
    size = (
        max((abs(v) for v in torch.tensor(arguments["x"]).flatten().tolist()), default=1.0) if "x" in arguments else 1.0
    )
    angles = torch.tensor(arguments["positions"], dtype=torch.float64).abs()[:, None] * 2.0**-22
    return ((8 * eps + angles) * size).expand(expected.shape)


def of_values(expected: Tensor, arguments: Mapping[str, Any], eps: float) -> Tensor:
    """A relative error of 32 roundings of float32, or two of a shorter dtype."""
    return expected.abs() * (32 * eps if eps <= FLOAT32 else 2 * eps)


def of_powers(expected: Tensor, arguments: Mapping[str, Any], eps: float) -> Tensor:
    """As `of_values`, growing with the exponent position / scale_base."""
    powers = torch.tensor(arguments["positions"], dtype=torch.float64).abs()[:, None] / arguments["scale_base"]
    return of_values(expected, arguments, eps) * (1 + powers)


def exactly(expected: Tensor, arguments: Mapping[str, Any], eps: float) -> Tensor:
    """Whole numbers, equal."""
    return torch.zeros_like(expected)


@dataclass(frozen=True)
class Kind:
    """One calling convention.

    arguments are always given, options only to a function that names them. failing says which cases are wrong, from
    their count or from the values of an argument.
    """

    what: str
    arguments: tuple[str, ...]
    returns: str
    tolerance: Tolerance
    options: tuple[str, ...] = ()
    failing: str = "{count} of {cases} cases differ"

    @property
    def call(self) -> str:
        """The convention as a reader writes it."""
        return f"f({', '.join(self.arguments)})"

    @property
    def relative(self) -> bool:
        """Whether errors are relative to the values."""
        return self.tolerance in (of_values, of_powers)


ROTARY = ("x", "positions", "base")
SCHEDULE = ("head_dim", "base", "factor", "original_max_positions")
FREQUENCIES = "(head_dim/2,) inv_freq, or (inv_freq, attention_factor)"
TURNED = "x turned, (batch, heads, seq, head_dim)"

KINDS: dict[str, Kind] = {
    "rotary": Kind("RoPE in the half layout: pairs (c, c + head_dim/2)", ROTARY, TURNED, of_angles),
    "rotary_interleaved": Kind("RoPE in the interleaved layout: pairs (2c, 2c + 1)", ROTARY, TURNED, of_angles),
    "rotary_partial": Kind(
        "RoPE, half layout, on the first rotary_dim channels", (*ROTARY, "rotary_dim"), TURNED, of_angles
    ),
    "sinusoidal": Kind("sin and cos alternating", ("positions", "dim", "base"), "(seq, dim)", of_angles),
    "sinusoidal_concat": Kind("all sines, then all cosines", ("positions", "dim", "base"), "(seq, dim)", of_angles),
    "sinusoidal_endpoint": Kind(
        "all sines, then all cosines, slowest frequency 1/base", ("positions", "dim", "base"), "(seq, dim)", of_angles
    ),
    "default": Kind("RoPE's frequencies", SCHEDULE[:2], FREQUENCIES, of_values),
    "linear": Kind("position interpolation", SCHEDULE[:3], FREQUENCIES, of_values),
    "ntk": Kind("NTK-aware scaling, static", SCHEDULE[:3], FREQUENCIES, of_values),
    "yarn": Kind(
        "YaRN as its authors' code computes it", SCHEDULE, FREQUENCIES, of_values, ("beta_fast", "beta_slow", "truncate")
    ),
    "yarn_paper": Kind("YaRN as its paper states it", SCHEDULE, FREQUENCIES, of_values, ("beta_fast", "beta_slow")),
    "llama3": Kind(
        "Llama 3.1's scaling", SCHEDULE, FREQUENCIES, of_values, ("low_freq_factor", "high_freq_factor")
    ),
    "proportional": Kind(
        "the first share of the frequencies, the rest 0", ("head_dim", "base", "fraction"), FREQUENCIES, of_values
    ),
    "alibi": Kind("ALiBi's slopes", ("num_heads",), "(num_heads,) positive slopes", of_values, failing="slopes wrong for {num_heads} heads"),
    "t5": Kind(
        "T5's buckets; relative_position is key minus query",
        ("relative_position", "bidirectional", "num_buckets", "max_distance"), "(n,) integers", exactly,
    ),
    "deberta": Kind(
        "DeBERTa-v2's log buckets; relative_position is query minus key, below max_position",
        ("relative_position", "buckets", "max_position"), "(n,) integers", exactly,
    ),
    "xpos": Kind(
        "xPos's scale of queries, not centred, gamma 0.4", ("positions", "head_dim", "scale_base"), "(seq, head_dim/2)", of_powers
    ),
}  # fmt: skip


def conventions() -> str:
    """The kinds as a table: name, call, result, meaning."""
    rows = [("KIND", "call", "result"), *((name, kind.call, kind.returns) for name, kind in KINDS.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"  {a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in rows)


class Unreadable(Exception):
    """A result that is no array of numbers: the message says what it is."""


@dataclass(frozen=True)
class Caller:
    """Calls a function under a convention: by name where its parameters have the convention's names, else by position."""

    function: Callable[..., Any]
    kind: Kind

    def __call__(self, arguments: Mapping[str, Any], **dtypes: torch.dtype) -> Any:
        """What the function returns; dtypes replace those of TENSORS."""
        given = {
            name: torch.tensor(value, dtype={**TENSORS, **dtypes}[name]) if name in TENSORS else value
            for name, value in arguments.items()
        }
        return self.with_tensors(given)

    def with_tensors(self, given: Mapping[str, Any]) -> Any:
        """The same for tensors already made."""
        names = self.names
        if names is None:
            return self.function(*(given[name] for name in self.kind.arguments[: self.room]))
        return self.function(**{name: value for name, value in given.items() if name in names})

    def takes(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the function can be given all options of a case."""
        return all(name in self.kind.arguments or name in (self.names or ()) for name in arguments)

    @property
    def names(self) -> frozenset[str] | None:
        """The parameters to give by name; None if the function is called by position."""
        known = {*self.kind.arguments, *self.kind.options}
        parameters = self._parameters()
        styles = {p.kind for p in parameters}
        required = {p.name for p in parameters if p.default is p.empty and p.kind not in OPEN_ENDED}
        named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} & known
        if OPEN_ENDED & styles == {inspect.Parameter.VAR_KEYWORD}:
            named |= {*self.kind.arguments}
        return frozenset(named) if named and required <= named else None

    @property
    def room(self) -> int:
        """How many positional arguments it takes, at most those of the convention."""
        parameters = self._parameters()
        if not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return len(self.kind.arguments)
        return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)

    def _parameters(self) -> list[inspect.Parameter]:
        try:
            return list(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError):  # some builtins have none
            return []


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
    factor = None
    if kind.returns == FREQUENCIES:
        if hasattr(result, "inv_freq"):
            result = result.inv_freq, getattr(result, "attention_factor", None)
        if isinstance(result, tuple) and len(result) == 2:
            result, factor = result
    try:
        tensor = result.detach() if isinstance(result, Tensor) else torch.as_tensor(result)
        plain = isinstance(result, (list, tuple)) and tensor.is_floating_point()  # Python's floats have 64 bits
        values = torch.tensor(result, dtype=torch.float64) if plain else tensor.to("cpu", torch.float64)
        return Answer(values, values.dtype if plain else tensor.dtype, None if factor is None else float(factor))
    except (TypeError, ValueError, RuntimeError):
        raise Unreadable(f"returns {_described(result)}, expected {kind.returns}") from None


def _described(result: Any) -> str:
    if isinstance(result, (list, tuple)):
        return f"a {type(result).__name__} of {', '.join(_described(item) for item in result[:3])}"
    return "None" if result is None else f"a {type(result).__name__}"
