# SPDX-License-Identifier: Apache-2.0
"""What must hold for every input: checks that compare a function with itself, so they mean something even where its
values are wrong. Each returns a sentence, or None."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posenc.conformance.asking import not_offered
from posenc.conformance.calling import Caller, own_dtype

HEAD_DIM, ROTARY_DIM = 32, 16
HALF = torch.bfloat16, torch.float16
DTYPES = (
    (torch.float32, torch.float64), (torch.float64, torch.float32), (torch.bfloat16, torch.float32), (torch.float16, torch.float32)
)  # fmt: skip
"""What x can be, and what it was in an earlier call."""


def inputs_unchanged(call: Caller) -> str | None:
    """Tensors that were handed in keep their values, short and long ones, in every dtype."""
    dtypes = [dtype for dtype, _ in DTYPES] if "x" in call.kind.arguments else [torch.float32]
    changed = set()
    for dtype in dtypes:
        for length in (7, 150):
            given = question(call, length, dtype)
            before = {name: value.clone() for name, value in given.items() if isinstance(value, Tensor)}
            try:
                call.with_tensors(given)
            except Exception as error:
                if dtype == torch.float32 or not not_offered(error):
                    raise
            changed |= {name for name, value in before.items() if not torch.equal(value, given[name])}
    return f"changes its input {' and '.join(sorted(changed))} in place" if changed else None


def keeps_dtype(call: Caller) -> str | None:
    """x comes back in its own dtype, also after a call with another dtype."""
    wrong = []
    for number, (dtype, other) in enumerate(DTYPES):
        try:
            fresh = own_dtype(call.with_tensors(question(call, 11 + number, dtype)))  # a length not asked for before
            call.with_tensors(question(call, 21 + number, other))
            later = own_dtype(call.with_tensors(question(call, 21 + number, dtype)))
        except Exception as error:
            if not not_offered(error):
                raise
            continue
        if fresh not in (None, dtype):
            wrong.append(f"{word(dtype)} in, {word(fresh)} out")
        elif later not in (None, dtype):
            what = f"{word(dtype)} in, {word(later)} out"
            return f"cached by shape only: {what} after a call of that shape in {word(other)}"
    return f"result in the wrong dtype: {'; '.join(wrong)}" if wrong else None


def shift_invariant(call: Caller) -> str | None:
    """Scores of rotated queries and keys depend on the difference of their positions alone."""
    q, k = (torch.randn(1, 2, 40, HEAD_DIM, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))

    def scores(offset: int) -> Tensor:
        positions = torch.arange(40) + offset
        return _ask(call, q, positions) @ _ask(call, k, positions).transpose(-1, -2)

    moved = (scores(1000) - scores(0)).abs().max().item()
    # float32 angles at position 1040 are off by 1040 * 2^-22; a score sums head_dim products
    return (
        None
        if moved < 1e-3 * HEAD_DIM
        else f"not shift-invariant: scores move by {moved:.2g} when all positions move by 1000"
    )


def strided(call: Caller) -> str | None:
    """x may be a view with its axes exchanged, as projections of a model are."""
    given = question(call, 9)
    plain = _result(call.with_tensors(given))
    view = given["x"].transpose(1, 2).contiguous().transpose(1, 2)
    moved = (_result(call.with_tensors({**given, "x": view})) - plain).abs().max().item()
    return (
        None
        if moved < 1e-5
        else f"a view with its axes exchanged (x not contiguous) is answered differently, by {moved:.2g}"
    )


def differentiable(call: Caller) -> str | None:
    """The gradient of x passes through."""
    given = question(call, 9)
    if own_dtype(call.with_tensors(given)) is None:
        return None
    leaf = given["x"].clone().requires_grad_()
    result = call.with_tensors({**given, "x": leaf * 1})
    if not result.requires_grad:
        return "no gradient reaches x: the result is detached from it"
    (gradient,) = torch.autograd.grad(result.double().square().sum(), leaf, allow_unused=True)
    if gradient is None:
        return "no gradient reaches x: the result is detached from it"
    return None if bool(gradient.isfinite().all()) else "the gradient of x is not finite"


INVARIANTS: dict[str, tuple[Callable[[Caller], str | None], ...]] = {
    **dict.fromkeys(
        ("rotary", "rotary_interleaved", "rotary_partial"),
        (inputs_unchanged, keeps_dtype, shift_invariant, strided, differentiable),
    ),
    **dict.fromkeys(
        ("sinusoidal", "sinusoidal_concat", "sinusoidal_endpoint", "xpos", "t5", "deberta"), (inputs_unchanged,)
    ),
}


def question(call: Caller, length: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """One question of the kind, with tensors of a length."""
    generator = torch.Generator().manual_seed(length)
    everything = {
        "x": torch.randn(1, 2, length, HEAD_DIM, generator=generator).to(dtype),
        "positions": torch.arange(length),
        "relative_position": torch.arange(length) - length // 2,
        "base": 10000.0, "rotary_dim": ROTARY_DIM, "dim": HEAD_DIM, "head_dim": HEAD_DIM, "scale_base": 512,
        "bidirectional": True, "num_buckets": 32, "max_distance": 128, "buckets": 32, "max_position": 128,
    }  # fmt: skip
    return {name: everything[name] for name in call.kind.arguments}


def _ask(call: Caller, x: Tensor, positions: Tensor) -> Tensor:
    return _result(call.with_tensors({**question(call, 1), "x": x, "positions": positions}))


def _result(result: Any) -> Tensor:
    return torch.as_tensor(result).detach().to("cpu", torch.float64)


def word(dtype: torch.dtype | None) -> str:
    """A dtype as a reader says it."""
    return str(dtype).removeprefix("torch.")
