# SPDX-License-Identifier: Apache-2.0
"""The golden vectors: cases of every kind with the values of the authors' formulas, stored in golden.json, and how a
function's result compares with them."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.conformance.calls import Caller, declines, format_exception
from posenc.conformance.kinds import FLOAT32, FREQUENCIES, TENSORS, Convention

PATH = Path(__file__).with_name("golden.json")
DECLINED = "raises NotImplementedError"


@dataclass(frozen=True)
class GoldenCase:
    """Arguments by name, and the expected result: nested lists, or for frequency schedules a dict of inv_freq and
    attention_factor."""

    arguments: dict[str, Any]
    expected: Any

    @property
    def values(self) -> list[Any]:
        """The expected numbers, without the attention factor."""
        return self.expected["inv_freq"] if isinstance(self.expected, dict) else self.expected


@cache
def load() -> dict[str, list[GoldenCase]]:
    """The shipped cases of every kind."""
    kinds = json.loads(PATH.read_text(encoding="utf-8"))["kinds"]
    return {name: [GoldenCase(**case) for case in kind["cases"]] for name, kind in kinds.items()}


def content(batch: int, heads: int, rows: int, dim: int) -> list[list[list[list[float]]]]:
    """Numbers without a pattern in [-2, 2], multiples of 1/8 and so exact in every dtype: (batch, heads, rows, dim)."""
    numbers = torch.tensor([(37 * n * n + 11 * n + n // 33) % 33 / 8 - 2 for n in range(batch * heads * rows * dim)])
    nested: list[list[list[list[float]]]] = numbers.view(batch, heads, rows, dim).tolist()
    return nested


@dataclass(frozen=True, eq=False)
class CaseResult:
    """A case and its result: float64 values, the dtype they had, and the attention factor of a schedule that returned
    one; or, with values=None, the reason why there is none."""

    convention: Convention
    case: GoldenCase
    values: Tensor | None = None
    dtype: torch.dtype = torch.float64
    attention_factor: float | None = None
    refusal: str = ""

    @property
    def expected(self) -> Tensor:
        return torch.as_tensor(self.case.values, dtype=torch.float64)

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


def run_case(caller: Caller, case: GoldenCase, **dtypes: torch.dtype) -> CaseResult:
    """Call the function with a case's arguments; dtypes replace those of `TENSORS`."""
    convention, types = caller.convention, {**TENSORS, **dtypes}
    given = {
        name: torch.tensor(value, dtype=types[name]) if name in types else copy.copy(value)
        for name, value in case.arguments.items()
    }
    try:
        returned = caller(given)
    except (Exception, SystemExit) as error:
        return CaseResult(
            convention, case, refusal=DECLINED if declines(error) else f"raises {format_exception(error)}"
        )
    try:
        numbers, factor = _schedule(returned) if convention.returns == FREQUENCIES else (returned, None)
        if isinstance(numbers, (list, tuple)) and any(getattr(item, "ndim", 0) > 1 for item in numbers):
            raise TypeError  # a query and a key, say, which would stack to one array
        tensor = numbers.detach() if isinstance(numbers, Tensor) else torch.as_tensor(numbers)
        if isinstance(numbers, (list, tuple)) and tensor.is_floating_point():  # Python's floats have 64 bits
            tensor = torch.tensor(numbers, dtype=torch.float64)
        factor = None if factor is None else float(factor)
        return CaseResult(convention, case, tensor.to("cpu", torch.float64), tensor.dtype, factor)
    except (TypeError, ValueError, RuntimeError):
        return CaseResult(convention, case, refusal=f"returns {_type_of(returned)}, expected {convention.returns}")


def _schedule(result: Any) -> tuple[Any, Any]:
    """inv_freq and attention_factor."""
    if isinstance(result, Mapping) and "inv_freq" in result:
        return result["inv_freq"], result.get("attention_factor")
    if hasattr(result, "inv_freq"):
        return result.inv_freq, getattr(result, "attention_factor", None)
    return result if isinstance(result, tuple) and len(result) == 2 else (result, None)


def _type_of(result: Any) -> str:
    if isinstance(result, (list, tuple)):
        return f"a {type(result).__name__} of {', '.join(_type_of(item) for item in result[:3])}"
    return "None" if result is None else f"a {type(result).__name__}"
