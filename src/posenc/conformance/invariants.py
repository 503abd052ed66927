# SPDX-License-Identifier: Apache-2.0
"""Checks that compare a function with itself, so that they mean something even where its values are wrong. Each returns a
sentence, or None."""

from typing import Any

import torch
from torch import Tensor

from posenc.conformance import golden
from posenc.conformance.golden import Caller, declines, format_exception
from posenc.conformance.kinds import TENSORS

HEAD_DIM = 32
DTYPES = {
    torch.float32: torch.float64, torch.float64: torch.float32, torch.bfloat16: torch.float32, torch.float16: torch.float32
}  # fmt: skip
"""A dtype of x -> the one of an earlier call."""


def inputs_unchanged(call: Caller) -> str | None:
    """Input tensors are not changed, short and long ones, in every dtype."""
    changed = set()
    for dtype in DTYPES if "x" in call.convention.arguments else [torch.float32]:
        for length in (7, 150):
            given = arguments(call, length, dtype)
            before = {name: value.clone() for name, value in given.items() if isinstance(value, Tensor)}
            try:
                call(given)
            except Exception as error:
                if dtype == torch.float32 or not declines(error):
                    raise
            changed |= {name for name, value in before.items() if not torch.equal(value, given[name])}
    return f"changes its input {' and '.join(sorted(changed))} in place" if changed else None


def dtype_preserved(call: Caller) -> str | None:
    """x comes back in its own dtype, also after a call with another dtype."""
    wrong = []
    for number, (dtype, other) in enumerate(DTYPES.items()):
        try:
            fresh = _dtype(call(arguments(call, 11 + number, dtype)))  # a length that no other call has
            call(arguments(call, 21 + number, other))
            later = _dtype(call(arguments(call, 21 + number, dtype)))
        except Exception as error:
            if not declines(error):
                raise
            continue
        if fresh not in (None, dtype):
            wrong.append(f"{dtype_name(dtype)} in, {dtype_name(fresh)} out")
        elif later not in (None, dtype):
            what = f"{dtype_name(dtype)} in, {dtype_name(later)} out"
            return f"cached by shape only: {what} after a call of that shape in {dtype_name(other)}"
    return f"result in the wrong dtype: {'; '.join(wrong)}" if wrong else None


def shift_invariant(call: Caller) -> str | None:
    """Scores of rotated queries and keys depend on the difference of their positions alone."""
    given = arguments(call, 40)
    vectors = [torch.randn(1, 2, 40, HEAD_DIM, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    (name,) = given.keys() & {*call.convention.shifts}

    def scores(offset: int) -> Tensor:
        q, k = (_values(call({**given, "x": x, name: given[name] + offset})) for x in vectors)
        return q @ k.transpose(-1, -2)

    moved = (scores(1000) - scores(0)).abs().max().item()
    # float32 angles at position 1040 are off by 1040 * 2^-22; a score sums head_dim products
    if moved < 1e-3 * HEAD_DIM:
        return None
    return f"not shift-invariant: scores move by {moved:.2g} when all positions move by 1000"


def strided(call: Caller) -> str | None:
    """x may be a view with its axes exchanged, as projections of a model are."""
    given = arguments(call, 9)
    plain = _values(call(given))
    view = given["x"].transpose(1, 2).contiguous().transpose(1, 2)
    moved = (_values(call({**given, "x": view})) - plain).abs().max().item()
    return None if moved < 1e-5 else f"x that is not contiguous (a view with its axes exchanged) changes the result by {moved:.2g}"  # fmt: skip


def differentiable(call: Caller) -> str | None:
    """The gradient of x passes through."""
    given = arguments(call, 9)
    if _dtype(call(given)) is None:
        return None
    leaf = given["x"].clone().requires_grad_()
    result = call({**given, "x": leaf * 1})
    gradient = None
    if result.requires_grad:
        (gradient,) = torch.autograd.grad(result.double().square().sum(), leaf, allow_unused=True)
    if gradient is None:
        return "no gradient reaches x: the result is detached from it"
    return None if bool(gradient.isfinite().all()) else "the gradient of x is not finite"


def broken_invariants(call: Caller) -> tuple[list[str], list[str]]:
    """The findings, and notes on what could not be tested because the function does not offer it."""
    findings, notes = [], []
    names = {*call.convention.arguments}
    invariants = {
        inputs_unchanged: bool(TENSORS.keys() & names),
        dtype_preserved: "x" in names,
        strided: "x" in names,
        shift_invariant: "x" in names and bool({*call.convention.shifts} & names),
        differentiable: "x" in names,
    }
    for invariant in (function for function, applies in invariants.items() if applies):
        claim = (invariant.__doc__ or "").rstrip(".")
        try:
            if finding := invariant(call):
                findings.append(finding)
        except (Exception, SystemExit) as error:
            if declines(error):
                notes.append(f"not tried, the function does not offer it: {claim}")
            else:
                findings.append(f"raises {format_exception(error)} (while checking: {claim})")
    return findings, notes


def arguments(call: Caller, length: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Arguments of the kind, with tensors of a length."""
    given = {
        name: torch.tensor(value, dtype=TENSORS[name]) if name in TENSORS else value
        for name, value in golden.example(call.convention, list(range(length)), HEAD_DIM).items()
    }
    if "x" in call.convention.arguments:
        generator, rows = torch.Generator().manual_seed(length), 1 if "cosines" in given else 2
        x = torch.randn(1, rows, length, HEAD_DIM, generator=generator)
        given["x"] = x.to(dtype)
    return given


def dtype_name(dtype: torch.dtype | None) -> str:
    """A dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def _dtype(result: Any) -> torch.dtype | None:
    """The dtype of a tensor; None for lists and numpy arrays, which do not have all of torch's dtypes."""
    return result.dtype if isinstance(result, Tensor) else None


def _values(result: Any) -> Tensor:
    return torch.as_tensor(result).detach().to("cpu", torch.float64)
