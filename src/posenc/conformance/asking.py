# SPDX-License-Identifier: Apache-2.0
"""Asking a function one case, and holding its answer against the expected one."""

import dis
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.conformance.calling import Answer, Caller, Unreadable, read
from posenc.conformance.golden import Case
from posenc.conformance.kinds import FLOAT32, Kind

NOT_OFFERED = "raises NotImplementedError"

NUMPY_CANNOT = "unsupported ScalarType", "Can't call numpy() on Tensor that requires grad"
"""What torch says where a tensor cannot become a numpy array at all."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """One case, and what came of it: an answer, or the reason why there is none."""

    kind: Kind
    case: Case
    answer: Answer | None = None
    refusal: str = ""

    @property
    def expected(self) -> Tensor:
        return numbers(self.case.expected)

    @property
    def right(self) -> bool:
        return self.equals(self.expected)

    def equals(self, values: Tensor) -> bool:
        """Whether the answer is these values, within the tolerance of its dtype; axes of length 1 do not count."""
        wrong = self.wrong(values)
        return wrong is not None and not bool(wrong.any())

    def wrong(self, values: Tensor) -> Tensor | None:
        """Where the answer is not these values, in their shape; None if the shapes differ."""
        assert self.answer is not None
        got, dtype = self.answer.values, self.answer.dtype
        if got.squeeze().shape != values.squeeze().shape:
            return None
        eps = max(torch.finfo(dtype).eps, FLOAT32) if dtype.is_floating_point else FLOAT32
        allowed = self.kind.tolerance(values, self.case.arguments, eps)
        return ~((got.reshape(values.shape) - values).abs() <= allowed)  # not a number is wrong


def numbers(expected: Any) -> Tensor:
    """Expected values as a float64 tensor."""
    values = expected["inv_freq"] if isinstance(expected, Mapping) else expected
    return torch.tensor(values, dtype=torch.float64)


def ask(caller: Caller, case: Case, **dtypes: torch.dtype) -> Outcome:
    """What comes of a case; dtypes replace those that tensors usually have."""
    try:
        return Outcome(caller.kind, case, read(caller(case.arguments, **dtypes), caller.kind))
    except Unreadable as error:
        return Outcome(caller.kind, case, refusal=str(error))
    except (Exception, SystemExit) as error:
        return Outcome(caller.kind, case, refusal=NOT_OFFERED if not_offered(error) else f"raises {told(error)}")


def not_offered(error: BaseException) -> bool:
    """Whether a function says itself that it does not offer a case, or lets numpy decline it; torch's own
    NotImplementedError, of an operator that a dtype lacks, is a failure."""
    if isinstance(error, NotImplementedError):
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is None:
            return True
        code = trace.tb_frame.f_code
        return dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"
    return any(words in str(error) for words in NUMPY_CANNOT)


def told(error: BaseException) -> str:
    """An exception in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + text[0][:160] if text else ''}"
