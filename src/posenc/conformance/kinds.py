# SPDX-License-Identifier: Apache-2.0
"""What can be held against the golden vectors: the arguments and results of each kind, and how close it must come."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.errors import InputError, unknown

FLOAT32 = torch.finfo(torch.float32).eps
Tolerance = Callable[[Tensor, Mapping[str, Any], float], Tensor]


def of_angles(expected: Tensor, arguments: Mapping[str, Any], eps: float) -> Tensor:
    """Eight roundings of the result's dtype (at least float32), and angles from frequencies in float32: position *
    2^-22; times the size of what is turned."""
    size = (
        max((abs(v) for v in torch.tensor(arguments["x"]).flatten().tolist()), default=1.0) if "x" in arguments else 1.0
    )
    angles = torch.tensor(arguments["positions"], dtype=torch.float64).abs()[:, None] * 2.0**-22
    if expected.shape[-2] != len(angles):  # (batch, seq, heads, head_dim), where that is suspected
        angles = angles[:, None]
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
    "ntk_mixed": Kind("NTK mixed with interpolation, static", SCHEDULE[:3], FREQUENCIES, of_values, ("exponent",)),
    "dynamic": Kind("dynamic NTK for texts of a length", (*SCHEDULE, "length"), FREQUENCIES, of_values),
    "longrope": Kind(
        "LongRoPE for texts of a length",
        ("head_dim", "base", "short_factor", "long_factor", "original_max_positions", "length", "factor"), FREQUENCIES, of_values,
    ),
    "yarn": Kind(
        "YaRN as its authors' code computes it", SCHEDULE, FREQUENCIES, of_values, ("beta_fast", "beta_slow", "truncate")
    ),
    "yarn_revised": Kind(
        "YaRN with blended wavelengths", SCHEDULE, FREQUENCIES, of_values, ("beta_fast", "beta_slow", "truncate")
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


NICKNAMES = {
    "rope": "rotary", "neox": "rotary", "half": "rotary", "gptj": "rotary_interleaved", "interleaved": "rotary_interleaved",
    "sincos": "sinusoidal", "sin": "sinusoidal", "concat": "sinusoidal_concat", "pi": "linear", "slopes": "alibi",
    "llama": "llama3", "llama31": "llama3", "prope": "proportional", "p-rope": "proportional", "inv_freq": "default",
    "relative": "t5", "partial": "rotary_partial",
}  # fmt: skip
"""Other words for some kinds; they are only suggested, as several kinds could be meant."""


def the_kind(name: str, argument: str = "kind") -> Kind:
    """The kind of that name.

    Raises:
        InputError: there is none; it names the argument and the nearest kind.
    """
    if name in KINDS:
        return KINDS[name]
    if meant := NICKNAMES.get(name.lower()):
        known = ", ".join(sorted(KINDS))
        raise InputError(f"unknown {argument} {name!r}: did you mean {meant!r}? known are {known}")
    raise unknown(argument, name, KINDS)


def conventions() -> str:
    """The kinds as a table: name, call, result, meaning."""
    rows = [("KIND", "call", "result"), *((name, kind.call, kind.returns) for name, kind in KINDS.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"  {a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in rows)
